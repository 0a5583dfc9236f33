"""External storage (-o ext_path) and the memory that its values leave: references, moves of pages, flush_all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from daemon_tools import Conversation, rdma_client, tcp_client
from flash_tools import options, settle, value_of, writer_held
from polling import eventually
from servers import Server
from suspended import threads_named

ServerFactory = Callable[..., Server]

SIZE = 60_000


@pytest.fixture(params=["", ",lru_algorithm=s3fifo", ",rdma_direct=all"], ids=["segmented", "s3fifo", "direct"])
def more(request: pytest.FixtureRequest) -> str:
    """Further options of the daemon."""
    return str(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flash"


def fill_memory(server: Server, control: Conversation, size: int = SIZE) -> dict[str, bytes]:
    """Stores values until memory is full, and the writer has made room."""
    values: dict[str, bytes] = {}
    with closing(tcp_client(server)) as client:
        while control.number("extstore_objects_written") < 100:
            for _ in range(50):
                key = f"key{len(values)}"
                values[key] = value_of(key, size)
                assert client.set(key, values[key])
    return values


def there(server: Server, values: dict[str, bytes]) -> dict[str, bytes]:
    """The values that a client finds, compared with `values`."""
    with closing(tcp_client(server)) as client:
        found = {key: client.get(key) for key in values}
    kept = {key: value for key, value in found.items() if value is not None}
    assert all(values[key] == value for key, value in kept.items())
    return kept


def is_short(control: Conversation, before: int) -> bool:
    """Whether the page mover has found no chunk for an item."""
    return control.number("slab_reassign_busy_nomem") > before


@pytest.mark.parametrize("size", [SIZE, 700_000], ids=["whole", "chunked"])
def test_a_moved_page_loses_no_value(rmemcached_server: ServerFactory, file: Path, more: str, size: int) -> None:
    """Without a free chunk for a moved item, external storage takes an item; the mover waits for the writer."""
    server = rmemcached_server(
        "-m", "64", "-t", "2", "-o", options(file, "512m", ext_item_age=None, slab_automove=0) + more
    )
    with Conversation(server) as control, closing(tcp_client(server)) as client:
        client.set("small", b"x" * 2000)
        to = control.ask(b"me small\r\n").split(b" cls=")[1].split()[0]
        values = there(server, fill_memory(server, control, size))
        # Chunks of a long value are of the class with the largest chunks.
        source = control.ask(b"me %s\r\n" % list(values)[-1].encode()).split(b" cls=")[1].split()[0]
        evictions, moved = control.number("evictions"), control.number("slabs_moved")
        wanted = moved
        while wanted < moved + 6:
            # At first the writer has a page's worth of chunks free.
            with writer_held(server):
                short = control.number("slab_reassign_busy_nomem")
                while not is_short(control, short):
                    wanted += 1
                    assert control.ask(b"slabs reassign %s %s\r\n" % (source, to)) == b"OK\r\n"
                    eventually(lambda: control.number("slabs_moved") == wanted or is_short(control, short))  # noqa: B023
            eventually(lambda: control.number("slabs_moved") == wanted)  # noqa: B023
        assert control.number("evictions") == evictions
        assert there(server, values) == values
        assert control.number("miss_from_extstore") == 0


class Writer:
    """The writer's sleep, as the kernel counts it."""

    def __init__(self, server: Server) -> None:
        (tid,) = threads_named(server.pid, "mc-ext-write")
        self.status = Path(f"/proc/{server.pid}/task/{tid}/status")
        self.sleeps = self.count()

    def count(self) -> int:
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", self.status.read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    def wake(self) -> float:
        """Waits until the writer has woken up, and sleeps again. Returns how long the wait was."""
        begin = time.monotonic()
        while (now := self.count()) == self.sleeps:
            time.sleep(0.001)
        self.sleeps = now
        return time.monotonic() - begin

    def rest(self, least: float) -> float:
        """Waits until the writer has slept for so long, and has just fallen asleep again. Returns how long it was."""
        while (slept := self.wake()) < least:
            pass
        return slept


def test_scarce_memory_wakes_the_writer(rmemcached_server: ServerFactory, file: Path) -> None:
    """After a pause the writer sleeps for long, but not while a burst takes the last free page."""
    size = 900_000
    more = ",slab_automove=0,slab_chunk_max=1024"
    server = rmemcached_server(
        "-m", "64", "-o", options(file, "512m", ext_item_age=None, ext_max_sleep=1_000_000) + more
    )
    with Conversation(server) as control, closing(tcp_client(server)) as client:
        # Each value takes a page.
        keys = [f"key{number}" for number in range(control.number("slab_global_page_pool") - 1)]
        for key in keys:
            assert client.set(key, value_of(key, size))
        writer = Writer(server)
        # The thread may be late on a busy machine; without a wake it never comes early.
        for _ in range(5):
            usual = writer.rest(0.05)
            left = range(control.number("slab_global_page_pool"))
            assert left and all(client.set(f"last{number}", value_of("last", size)) for number in left)
            if writer.wake() < usual / 2:
                break
            clsid = control.ask(b"me last0\r\n").split(b" cls=")[1].split()[0]
            # The headers may take the first page.
            eventually(
                lambda: control.ask(b"slabs reassign %s 0\r\n" % clsid) and control.number("slab_global_page_pool")  # noqa: B023
            )
        else:
            pytest.fail("the writer has slept on")
        assert control.number("evictions") == 0


@pytest.mark.usefixtures("rdma_transport")
def test_items_with_readers_leave_without_effect(rmemcached_server: ServerFactory, file: Path) -> None:
    """Values go to flash while clients have views of them. Their memory is not free yet, so further items follow."""
    server = rmemcached_server("-m", "64", "-o", options(file, "256m", ext_item_size=512) + ",rdma_direct=all")
    with Conversation(server) as control, closing(tcp_client(server)) as client, rdma_client(server) as viewer:
        client.set("first", b"x" * SIZE)
        settle(control, 1)
        assert control.ask(b"extstore item_age 3600\r\n") == b"OK\r\n"
        written = control.number("extstore_objects_written")
        values = {f"key{n}": value_of(f"key{n}", SIZE) for n in range(100)}
        for key, value in values.items():
            assert client.set(key, value)
        views = {key: viewer.get_view(key) for key in values}
        with writer_held(server):
            for n in range(1500):
                assert client.set(f"more{n}", b"x" * SIZE)
        assert control.number("extstore_objects_written") > written
        for key, view in views.items():
            assert bytes(view) == values[key]
            view.release()


@pytest.mark.segmented("the flat LRU")
def test_a_flush_in_flat_mode_meets_items_behind_headers(rmemcached_server: ServerFactory, file: Path) -> None:
    """A header keeps the time of its value's last use, so a flat queue is not sorted by time."""
    server = rmemcached_server(
        "-m", "64", "-o", options(file, ext_item_size=512, ext_item_age=3600) + ",debug_commands"
    )
    with Conversation(server) as control:
        for request in (b"lru mode flat\r\n", b"set old 0 0 3000\r\n%s\r\n" % bytes(3000)):
            assert control.ask(request) in (b"OK\r\n", b"STORED\r\n")
        for request in (b"debugtime p\r\n", b"debugtime 5\r\n"):
            assert control.ask(request) == b"OK\r\n"
        assert control.ask(b"set young 0 0 10\r\n0123456789\r\n") == b"STORED\r\n"
        assert control.ask(b"mg old t l\r\n") == b"HD t-1 l5\r\n"
        assert control.ask(b"extstore item_age 0\r\n") == b"OK\r\n"
        settle(control, 1)
        assert b" cls=" in (line := control.ask(b"me old\r\n"))
        assert line.split(b" cls=")[1].split()[0] == control.ask(b"me young\r\n").split(b" cls=")[1].split()[0]
        # The move to flash is no use.
        assert control.ask(b"mg old l\r\n") == b"HD l5\r\n"
        assert control.ask(b"flush_all\r\n") == b"OK\r\n"
        assert control.ask(b"get young old\r\n") == b"END\r\n"
