"""Pages change their slab class all the time under items filled by RDMA READs and sent by RDMA WRITEs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from daemon_tools import Conversation, eventually, rdma_at_rest, rdma_client
from servers import Server
from transport import rounds, within

pytestmark = pytest.mark.usefixtures("rdma_transport")

SECONDS = 3.0
LONGEST = within(5.0)  # seconds, the limit of one operation: all share two cores with the daemon
SIZES = (3_000, 20_000, 90_000, 400_000, 900_000)  # values of several classes, two of them chained
CLIENTS = 4


def value_of(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(1024) * (size // 1024 + 1)


def work(server: Server, number: int, stop: threading.Event, problems: list[str], done: list[int]) -> None:
    """Stores, reads and compares the keys of a client."""
    source = random.Random(number)
    stored: dict[str, bytes] = {}
    try:
        with rdma_client(server) as client:
            while not stop.is_set():
                began = time.monotonic()
                key = f"{number}-{source.randrange(12)}"
                if source.random() < 0.4 or key not in stored:
                    size = source.choice(SIZES)
                    value = value_of(source.randrange(1000), size)[:size]
                    if client.set(key, value):
                        stored[key] = value
                else:
                    found = client.get(key)
                    if found is not None and found != stored[key]:
                        problems.append(f"wrong bytes of {key}")
                if time.monotonic() - began > LONGEST:
                    problems.append(f"{key} took {time.monotonic() - began} s")
                done[number] += 1
    except Exception as error:
        problems.append(f"{type(error).__name__}: {error}")


@pytest.mark.device("READs and WRITEs of memory that moves")
def test_payloads_while_pages_move(rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server("-m", "64", "-o", "slab_reassign,slab_automove=1,slab_chunk_max=512")
    problems: list[str] = []
    done = [0] * CLIENTS
    stop = threading.Event()
    with Conversation(server) as control:
        clients = [threading.Thread(target=work, args=(server, n, stop, problems, done)) for n in range(CLIENTS)]
        for client in clients:
            client.start()
        source = random.Random(1)
        began = time.monotonic()

        def moved() -> bool:
            """Asks for a move. Tells whether there were enough moves of pages, and operations of clients meanwhile."""
            classes = [int(name.split(":")[0]) for name in control.stats("slabs") if name.endswith(":chunk_size")]
            target = source.choice([0, *classes])
            assert control.ask(b"slabs reassign -1 %d\r\n" % target)
            enough = min(done) > rounds(10) and control.number("slabs_moved") > rounds(5)
            return bool(problems) or (enough and time.monotonic() - began > SECONDS)

        try:
            eventually(moved, within(60.0))
        finally:
            stop.set()
            for client in clients:
                client.join()
        assert not problems
        eventually(lambda: rdma_at_rest(control))
        # The clients have gone, so nothing holds a reference to an item: once all items are deleted, no chunk is used.
        eventually(lambda: control.number("slab_reassign_running") == 0)
        assert control.ask(b"flush_all\r\n") == b"OK\r\n"
        for number in range(CLIENTS):
            for key in range(12):
                assert control.ask(b"delete %d-%d\r\n" % (number, key)) in (b"DELETED\r\n", b"NOT_FOUND\r\n")
        assert control.number("curr_items") == 0

        def at_rest() -> bool:
            slabs = control.stats("slabs")
            return all(value == "0" for name, value in slabs.items() if name.endswith(":used_chunks"))

        eventually(at_rest)
