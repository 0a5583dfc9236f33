"""The cases of pytest-benchmark run."""

from __future__ import annotations

import sys

from program import run_program


def test_pytest_benchmark_cases() -> None:
    words = ["-m", "pytest", "-q", "--benchmark-disable", "-p", "no:cacheprovider", "bench"]
    done = run_program([sys.executable, "-P", *words], 170)
    assert done.returncode == 0, done.stdout
    assert "60 passed" in done.stdout
<<<<<<< HEAD
=======


def test_load_generator_notices_a_wrong_value(memcached_server: Any) -> None:
    from servers import Server

    from rmemcached.client import _load

    server: Server = memcached_server()
    with server.connect() as plain:
        commands = bytearray(_load.store_commands(0, 10))
        where = commands.rindex(b"\r\n") - 50
        commands[where] ^= 1
        plain.sendall(commands)
        received = b""
        while len(received) < 10 * len(b"STORED\r\n"):
            received += plain.recv(4096)
        plain.setblocking(False)
        with pytest.raises(ValueError, match="wrong reply"):
            _load.run([plain.fileno()], 10, keys=10, set_every=0)


@pytest.mark.parametrize("multiget", [1, 100])
@pytest.mark.parametrize("size", [10, 100_000])
def test_load_generator_asks_for_many_keys(rmemcached_server: Any, multiget: int, size: int) -> None:
    """Batches that a socket does not take at once are sent and compared, too."""
    from servers import Server

    from rmemcached.client import _load

    server: Server = rmemcached_server()
    with contextlib.ExitStack() as stack:
        plain = [stack.enter_context(server.connect()) for _ in range(3)]
        plain[0].sendall(_load.store_commands(0, 20, value_size=size))
        received = b""
        while len(received) < 20 * len(b"STORED\r\n"):
            received += plain[0].recv(4096)
        before = server.stats()
        done = _load.run(
            [p.fileno() for p in plain], 0.05, keys=20, value_size=size, depth=9, set_every=3, multiget=multiget
        )
        after = server.stats()
    assert done["gets"] > 0 and done["sets"] > 0
    assert int(after["cmd_get"]) - int(before["cmd_get"]) == done["gets"] * multiget
    assert int(after["cmd_set"]) - int(before["cmd_set"]) == done["sets"]


@pytest.mark.parametrize("transport", ["soft_shm", "soft_iw", "tcp"])
def test_load_generator_on_a_client(rmemcached_server: Any, transport: str) -> None:
    """As many requests as asked for are under way, gets and sets, and each reply is compared."""
    from servers import Server

    from rmemcached.bench.cpu import fill
    from rmemcached.client import Client, _load

    server: Server = rmemcached_server()
    fill(server, 50)
    with Client(server.address, timeout=10, transport=transport) as client:
        before = client.stats()
        done = _load.run_client(client, 0.05, keys=50, depth=7, set_every=3)
        after = client.stats()
        assert done["requests"] == done["gets"] + done["sets"] >= 7 and done["sets"] > 0
        assert int(after[b"cmd_get"]) - int(before[b"cmd_get"]) == done["gets"]
        assert int(after[b"cmd_set"]) - int(before[b"cmd_set"]) == done["sets"]
        client.set("k" * 31 + "7", b"?" * 100)
        with pytest.raises(ValueError, match="wrong reply"):
            _load.run_client(client, 10, keys=50)
        assert client.get("k" * 31 + "7") == b"?" * 100, "the client makes a new connection"


@pytest.mark.parametrize(
    ("ask", "counter"),
    [
        ("miss", "get_misses"),
        ("delete", "delete_hits"),
        ("incr", "incr_hits"),
        ("touch", "touch_hits"),
        ("mg", "get_hits"),
        ("ms", "cmd_set"),
        ("new", "cmd_set"),
    ],
)
@pytest.mark.parametrize("rate", [0, 20_000])
def test_load_generator_asks_for_other_things(rmemcached_server: Any, ask: str, counter: str, rate: int) -> None:
    from rmemcached.bench.cpu import connected, fill, store
    from rmemcached.client import _load

    server = rmemcached_server()
    fill(server, 500)
    if ask == "incr":
        store(server, 500, _load.count_commands)
    before = server.stats()
    with connected(server, 3) as descriptors:
        done = _load.run(descriptors, 0.05, keys=500, depth=7, ask=ask, rate=rate)
    after = server.stats()
    assert done["requests"] == int(after[counter]) - int(before[counter]) > 0 == done["gets"] + done["sets"]
    assert 0 < done["p50_us"] <= done["p99_us"] <= done["longest_us"] * 1.05
    if ask == "delete":
        assert after["curr_items"] == str(500 - done["requests"])
    if ask == "new":
        assert int(after["curr_items"]) == 500 + done["requests"]
    if rate:
        assert done["requests"] <= 20_000 * 0.05 + 3 * 7


def test_load_generator_notices_what_is_not_stored(rmemcached_server: Any) -> None:
    from rmemcached.bench.cpu import connected
    from rmemcached.client import _load

    server = rmemcached_server()
    with connected(server, 1) as descriptors, pytest.raises(ValueError, match="too large"):
        _load.run(descriptors, 5, keys=1, value_size=2 << 20, ask="new")
    with pytest.raises(ValueError, match="ask is one of"):
        _load.run([], 1, ask="gets")
>>>>>>> x-sock
