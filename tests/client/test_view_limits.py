"""The costs of views for others: evictions, pages that cannot move, and limits on all kept items."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from polling import eventually
from servers import Server
from viewing import is_pinned, views

from rmemcached.client import Client, MemcacheServerError

ServerFactory = Callable[..., Server]
TIMEOUT = 20.0
OPTIONS: dict[str, Any] = {"timeout": TIMEOUT, "default_noreply": False, "transport": "soft_shm"}


@pytest.mark.segmented("which item goes first")
def test_eviction_goes_round_what_is_seen(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "16", "-t", "1", "-o", "rdma_direct,rdma_view_limit=12")
    with Client(server.address, **OPTIONS) as client:
        value = os.urandom(100_000)
        client.set("seen", value)
        client.set("large", value * 9)
        seen = [client.get_view("seen"), *client.get_view("large")]
        for number in range(400):
            client.set(f"{number}", os.urandom(100_000))
        assert int(client.stats()[b"evictions"]) > 100
        assert client.get("seen") is None
        assert seen[0] == value and b"".join(seen[1:]) == value * 9
        del seen
        client.version()
        assert views(server)[0] == 0


def test_nobody_is_refused_because_of_what_others_see(rmemcached_server: ServerFactory) -> None:
    """Views within the limits, even of the items next to be evicted, cause no refusal for other clients."""
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct")
    with Client(server.address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as other:
        value = os.urandom(60_000)
        viewers = [Client(server.address, **OPTIONS) for _ in range(4)]
        seen = []
        for number, viewer in enumerate(viewers):
            names = [f"{number}-{place}" for place in range(60)]
            viewer.set_many(dict.fromkeys(names, value))
            seen += [viewer.get_view(name) for name in names]
        assert all(map(is_pinned, seen))
        for place in range(2000):
            other.set(f"{place}", value)
        assert all(view == value for view in seen)
        for viewer in viewers:
            viewer.close()


def class_of(client: Client, number: int) -> str:
    """The slab class with this number of items."""
    found = client.stats("items")
    return next(name.split(b":")[1].decode() for name in found if b":number" in name and found[name] == number)


def moved(client: Client, pages: int) -> None:
    """Waits until this number of pages has moved, in all."""
    eventually(lambda: client.stats()[b"slabs_moved"] == pages, TIMEOUT)


def test_the_page_mover_goes_round_what_is_seen(rmemcached_server: ServerFactory) -> None:
    """The mover takes a page without views. If each page has views no move begins, and nothing is copied or evicted in
    vain."""
    flags = "rdma_direct,slab_automove=0,slab_chunk_max=16"
    server = rmemcached_server("-m", "64", "-t", "1", "-o", flags)
    with Client(server.address, **OPTIONS) as client:
        values = {f"{number}": os.urandom(15_000) for number in range(200)}
        small = {f"small-{number}": os.urandom(5000) for number in range(450)}
        client.set_many(values | small)
        source, other = class_of(client, 200), class_of(client, 450)
        seen = {name: client.get_view(name) for name in list(values)[:100]}
        # The deletes make room for the items of one page.
        for name in list(values)[100:160]:
            client.delete(name)
            del values[name]
        assert client.stats()[b"direct_pinned_pages"] in (2, 3)
        assert client.raw_command(f"slabs reassign {source} {other}") == b"OK"
        moved(client, 1)
        assert all(view == values[name] and is_pinned(view) for name, view in seen.items())
        seen |= {name: client.get_view(name) for name in values}
        assert client.raw_command(f"slabs reassign {source} {other}") == b"OK"
        # The mover takes up requests in order: when a second page has moved, the request before this request has ended.
        assert client.raw_command(f"slabs reassign {other} {source}") == b"OK"
        moved(client, 2)
        found = client.stats()
        assert found[b"slab_reassign_busy_items"] == found[b"evictions"] == 0
        assert all(view == values[name] == client.get(name) for name, view in seen.items())
        seen.clear()
        client.version()
        assert client.stats()[b"direct_pinned_pages"] == 0
        assert client.raw_command(f"slabs reassign {source} {other}") == b"OK"
        moved(client, 3)
        assert client.get_many(values) == values


def test_small_items_that_are_seen_lie_on_few_pages(rmemcached_server: ServerFactory) -> None:
    """Views of small items are limited to few pages: views of some bytes on each page would keep all pages in place."""
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,rdma_view_limit=4:4096")
    with Client(server.address, **OPTIONS) as client:
        names = [f"{number}" for number in range(20_000)]
        client.set_many({name: name.encode() * 150 for name in names})
        seen = {name: client.get_view(name) for name in names[::200]}
        assert all(view == name.encode() * 150 for name, view in seen.items())
        pinned = sum(map(is_pinned, seen.values()))
        kept, refused = views(server)
        assert 0 < pinned == kept < len(seen) == kept + refused
        assert 8 <= client.stats()[b"direct_pinned_pages"] <= 10
        seen.clear()
        client.version()
        assert views(server)[0] == client.stats()[b"direct_pinned_pages"] == 0


def test_a_class_of_which_all_is_seen_gets_another_page(rmemcached_server: ServerFactory) -> None:
    """A class full of views gets another page, for new values of the size."""
    server = rmemcached_server("-m", "16", "-t", "1", "-o", "rdma_direct")
    greedy = [Client(server.address, **OPTIONS) for _ in range(4)]
    with Client(server.address, **OPTIONS | {"transport": "tcp"}) as client:
        seen = []
        # The views cover all of three pages.
        for number in range(30):
            client.set(f"{number}", bytes(100_000))
            seen.append(greedy[number % 4].get_view(f"{number}"))
        assert all(map(is_pinned, seen))
        number = 0
        while not client.stats()[b"evictions"]:
            client.set_many({f"small-{number + more}": bytes(1000) for more in range(500)})
            number += 500
        deadline = time.monotonic() + TIMEOUT
        stored = 0
        while stored < 30:
            assert time.monotonic() < deadline
            try:
                client.set(f"other-{stored}", bytes(100_000))
                stored += 1
            except MemcacheServerError as error:
                assert "out of memory" in str(error)
        assert all(map(is_pinned, seen))
    for one in greedy:
        one.close()


def test_limits_of_a_connection(rmemcached_server: ServerFactory, key: str) -> None:
    """A connection at its limit gets copies, and no other connection does."""
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,rdma_view_limit=1:12")
    with Client(server.address, **OPTIONS) as greedy, Client(server.address, **OPTIONS) as other:
        greedy.set_many({f"{key}-{number}": b"value" for number in range(6)})
        for number in range(2):
            greedy.set(f"{key}-large-{number}", bytes(200_000))
        seen = [greedy.get_view(f"{key}-{number}") for number in range(5)]
        assert [is_pinned(view) for view in seen] == [True] * 3 + [False] * 2
        assert all(view == b"value" for view in seen)
        assert views(server) == (3, 2)
        large = other.get_view(f"{key}-large-0")
        assert is_pinned(large) and not is_pinned(other.get_view(f"{key}-large-1"))
        assert views(server) == (4, 3)
        del seen[0]
        seen.append(greedy.get_view(f"{key}-5"))
        assert is_pinned(seen[-1])


def test_limits_of_all_connections(rmemcached_server: ServerFactory) -> None:
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,rdma_view_limit=1:8")
    clients = [Client(server.address, **OPTIONS) for _ in range(5)]
    for name in ("1", "2"):
        clients[0].set(name, b"value")
    seen = [[client.get_view("1"), client.get_view("2")] for client in clients]
    assert [all(map(is_pinned, two)) for two in seen] == [True] * 4 + [False]
    assert views(server) == (8, 2)
    seen.pop(0)
    clients[0].version()
    assert is_pinned(clients[4].get_view("1"))
    for client in clients:
        client.close()


def test_switched_off(rmemcached_server: ServerFactory, key: str) -> None:
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,rdma_view_limit=0")
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        view = client.get_view(key)
        assert view == b"value" == client.get(key) and not is_pinned(view)
        # A client without the right to more views gets copies by direct reads, as by any get.
        value = os.urandom(400_000)
        client.set(key, value)
        before = client.stats()[b"direct_hits"]
        views = [client.get_view(key) for _ in range(5)]
        assert all(view == value and view.readonly for view in views)
        assert client.stats()[b"direct_hits"] == before + 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("rdma_view_limit=x", "rdma_view_limit must be megabytes, or megabytes:number of items, not 'x'"),
        ("rdma_view_limit=5:", "rdma_view_limit must be megabytes, or megabytes:number of items, not '5:'"),
        ("rdma_view_limit=5:3", "rdma_view_limit must be for 4 to 30000 items, not 3"),
        ("rdma_view_limit=5:30001", "rdma_view_limit must be for 4 to 30000 items, not 30001"),
        ("rdma_view_limit=65", "rdma_view_limit cannot be more than the memory limit: 65 MB, and -m 64"),
        (
            "rdma_view_limit=5,tail_repair_time=100",
            "tail_repair_time frees items that clients have views of: it needs rdma_view_limit=0",
        ),
    ],
)
def test_options_that_are_refused(options: str, text: str) -> None:
    command = [sys.executable, "-m", "rmemcached", "-u", "root", "-o", f"rdma_direct,{options}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode != 0 and done.stderr.strip() == text


def test_a_limit_of_what_there_is_not() -> None:
    command = [sys.executable, "-m", "rmemcached", "-u", "root", "-o", "rdma_direct=off,rdma_view_limit=5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == os.EX_USAGE
    assert done.stderr.strip() == "rdma_view_limit is for what rdma_direct lets clients see, and that is off"


def test_repair_goes_without_views(rmemcached_server: ServerFactory, key: str) -> None:
    server = rmemcached_server("-m", "64", "-t", "1", "-o", "rdma_direct,tail_repair_time=100")
    with Client(server.address, **OPTIONS) as client:
        client.set(key, b"value")
        assert not is_pinned(client.get_view(key))
