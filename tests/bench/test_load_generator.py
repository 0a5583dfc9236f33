"""The load generator: its requests and counts, its checks of replies, and the distributions of its draws."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_runs import measured, names, run, unwrapped
from program import ROOT
from servers import Server

from rmemcached.bench import command, distributions, load, measure
from rmemcached.bench._load import Load, store_commands
from rmemcached.client import Client

TRANSPORTS = ("tcp", "soft_shm", "soft_iw")


@contextlib.contextmanager
def loading(server: Server, count: int = 1, transport: str = "socket", **options: Any) -> Iterator[Load]:
    """A load with connected connections."""
    with contextlib.ExitStack() as stack:
        made = Load(**options)
        if transport == "socket":
            for _ in range(count):
                made.add_socket(stack.enter_context(server.connect(10)))
        else:
            client = stack.enter_context(Client(server.address, timeout=10, transport=transport))
            for _ in range(count):
                made.add_client(client)
        yield stack.enter_context(made)


def counts(server: Server) -> dict[str, int]:
    return {name: int(value) for name, value in server.stats().items() if name in COUNTERS}


COUNTERS = (
    "cmd_get",
    "cmd_set",
    "get_hits",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "curr_items",
    "get_misses",
    "touch_hits",
)


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiget", [1, 100])
@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("batch", [False, True])
def test_counts_are_the_servers(module_rmemcached: Server, multiget: int, size: int, batch: bool) -> None:
    """The counts include requests that a socket does not take at once."""
    server = module_rmemcached
    with loading(
        server, 3, keys=20, value_size=size, depth=9, sets=0.3, multiget=multiget, batch=batch, complete=True
    ) as made:
        made.fill()
        before = counts(server)
        done = made.run(0.05)
        after = counts(server)
    assert done["gets"] > 0 and done["sets"] > 0 and done["misses"] == 0
    assert after["cmd_get"] - before["cmd_get"] == done["gets"] * multiget == done["hits"]
    assert after["cmd_set"] - before["cmd_set"] == done["sets"]
    assert sum(done["latencies"].values()) == done["requests"] == done["gets"] + done["sets"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("connections, options", [(1, {}), (5, {}), (3, {"think": 0.001}), (3, {"rate": 2000.0})])
def test_each_transport(module_rmemcached: Server, transport: str, connections: int, options: dict[str, Any]) -> None:
    server = module_rmemcached
    sets = counts(server)["cmd_set"]
    with loading(server, connections, transport, keys=50, depth=7, sets=0.3, complete=True, **options) as made:
        made.fill()
        before = counts(server)
        done = made.run(0.05)
        after = counts(server)
    assert before["cmd_set"] - sets == 50
    assert after["cmd_get"] - before["cmd_get"] == done["gets"] > 0
    assert after["cmd_set"] - before["cmd_set"] == done["sets"] > 0


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("connections", [1, 2])
def test_large_values_on_each_transport(module_rmemcached: Server, transport: str, connections: int) -> None:
    """Values beyond the buffers of a lane or socket arrive: sending goes on while replies are read."""
    with loading(
        module_rmemcached, connections, transport, keys=5, value_size=900_000, depth=3, sets=0.5, complete=True
    ) as made:
        made.fill()
        done = made.run(0.1)
    assert done["gets"] > 0 and done["sets"] > 0


def test_client_is_of_use_afterwards(rmemcached_server: Any) -> None:
    server: Server = rmemcached_server()
    with Client(server.address, timeout=10, transport="soft_shm", default_noreply=False) as client:
        for _ in range(2):
            with Load(keys=10) as made:
                made.add_client(client)
                made.fill()
                made.run(0.01)
        assert client.get(made.key(3).decode()) == made.value(3)
        assert int(client.stats()[b"curr_items"]) == 10
        client.set(made.key(3).decode(), b"?" * 100)
        with pytest.raises(ValueError, match="wrong value"), Load(keys=10) as made:
            made.add_client(client)
            made.run(10)
        assert client.get(made.key(3).decode()) == b"?" * 100, "the client makes a new connection"


def test_deletes_and_counters(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with loading(server, 2, keys=30, depth=2, sets=0.2, deletes=0.2, incrs=0.2) as made:
        made.fill()
        assert counts(server)["curr_items"] == 60
        before = counts(server)
        done = made.run(0.05)
        after = counts(server)
        assert made.counter(7) == b"c" * 31 + b"7"
    gained = {name: after[name] - before[name] for name in before}
    assert gained["delete_hits"] + gained["delete_misses"] == done["deletes"] > 0
    assert gained["incr_hits"] == done["incrs"] > 0
    assert done["misses"] > 0
    assert done["hits"] == gained["get_hits"] + gained["delete_hits"] + gained["incr_hits"]


def test_think_times_are_kept(memcached_server: Any) -> None:
    """Each connection sends at most once in a think time, and its batch of requests together."""
    server: Server = memcached_server()
    with loading(server, 4, keys=10, depth=2, think=0.02) as made:
        made.fill()
        done = made.run(0.2)
    assert 4 * 2 <= done["requests"] <= 4 * 2 * (0.2 / 0.02 + 1)


def test_sizes_belong_to_keys(memcached_server: Any) -> None:
    """Another client reads the sizes of the generator, with several distributions at once."""
    server: Server = memcached_server()
    keys = distributions.Sizes("etc", distributions.etc_key).table("H", 4, 250)
    values = distributions.Sizes("etc", distributions.etc_value).table("I", 0, 1000)
    with loading(server, 2, keys=2000, depth=8, sets=0.1, key_sizes=keys, value_sizes=values, complete=True) as made:
        made.fill()
        made.run(0.05)
        with Client(server.address) as client:
            for number in range(0, 2000, 100):
                value = made.value(number)
                assert len(value) == made.value_bytes(number) and client.get(made.key(number).decode()) == value
    assert len({len(made.key(number)) for number in range(100)}) > 10


# ---- faults ----------------------------------------------------------------------------------------------------------


def overwrite(server: Server, made: Load, value: bytes) -> None:
    """Stores another value under the only requested key."""
    with Client(server.address, default_noreply=False) as other:
        other.set(made.key(0).decode(), value)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 300_000])
@pytest.mark.parametrize("transport", ["socket", "soft_shm"])
def test_a_wrong_byte_is_seen(shared_rmemcached: Server, transport: str, size: int) -> None:
    for place in {0, size // 2, size - 1}:
        with (
            pytest.raises(ValueError, match=rf"get of k+0: a wrong value came back: .* at byte {place} of {size}"),
            loading(shared_rmemcached, 1, transport, keys=1, value_size=size) as made,
        ):
            value = bytearray(made.value(0))
            value[place] ^= 1
            overwrite(shared_rmemcached, made, bytes(value))
            made.run(20)


def test_a_foreign_value_is_seen(shared_rmemcached: Server) -> None:
    """The generator sees a foreign value of the same length, a shorter value even without a check of bytes, and a
    miss."""
    with pytest.raises(ValueError, match="wrong value"), loading(shared_rmemcached, 1, keys=1) as made:
        overwrite(shared_rmemcached, made, Load(keys=10).value(7))
        made.run(20)
    with (
        pytest.raises(ValueError, match=r"wrong reply came back: b'VALUE .* 0 99\\r\\n', not VALUE k+0 0 100"),
        loading(shared_rmemcached, 1, keys=1, verify=False) as made,
    ):
        overwrite(shared_rmemcached, made, made.value(0)[:99])
        made.run(20)
    with (
        pytest.raises(ValueError, match=r"get of k+0: the key is missing"),
        loading(shared_rmemcached, 1, keys=1, key_size=77, complete=True) as made,
    ):
        made.run(20)
    with loading(shared_rmemcached, 1, keys=1, verify=False) as made:
        overwrite(shared_rmemcached, made, bytes(100))
        assert made.run(0.01)["hits"] > 0, "without verification the bytes are not looked at"


def test_a_refusal_is_told(shared_memcached: Server) -> None:
    with (
        pytest.raises(ValueError, match=r"set of k+0: a wrong reply came back: b'SERVER_ERROR object too large"),
        loading(shared_memcached, 1, keys=1, value_size=9 << 20, sets=1.0) as made,
    ):
        made.run(20)


def killing(server: Server) -> Callable[[float], None]:
    """A function for `tick` that ends the server."""

    def tick(part: float) -> None:
        server.kill()

    return tick


@pytest.mark.parametrize("transport", ["socket", *TRANSPORTS])
@pytest.mark.parametrize("options", [{}, {"rate": 1000.0}])
def test_a_server_that_dies(rmemcached_server: Any, transport: str, options: dict[str, Any]) -> None:
    server: Server = rmemcached_server()
    with (
        pytest.raises(ConnectionError, match="the server has closed a connection"),
        loading(server, 3, transport, keys=10, **options) as made,
    ):
        made.fill()
        made.run(60, killing(server))


def test_a_silent_server(memcached_server: Any) -> None:
    server: Server = memcached_server()
    try:
        with (
            pytest.raises(TimeoutError, match=r"no answer for 0\.3 s"),
            loading(server, 2, keys=10, patience=0.3) as made,
        ):
            made.fill()
            made.run(60, lambda part: os.kill(server.pid, signal.SIGSTOP))
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"keys": 0}, "0 keys"),
        ({"keys": 10**6, "key_size": 5}, "keys have 6"),
        ({"key_size": 251}, "to 250 bytes"),
        ({"depth": 0}, "depth and multiget"),
        ({"sets": 0.7, "deletes": 0.7}, "0 to 1 together"),
        ({"rate": 1.0, "think": 1.0}, "exclude each other"),
        ({"value_sizes": [1, 2]}, r"an array\('I'\) of 65536"),
    ],
)
def test_a_wrong_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Load(**options)


# ---- time ------------------------------------------------------------------------------------------------------------


def stall(server: Server) -> Callable[[float], None]:
    """A function for `tick` that stops the server once for 200 ms."""
    stopped: list[threading.Timer] = []

    def tick(part: float) -> None:
        if not stopped:
            os.kill(server.pid, signal.SIGSTOP)
            stopped.append(threading.Timer(0.2, os.kill, (server.pid, signal.SIGCONT)))
            stopped[0].start()

    return tick


def slow(latencies: dict[int, int], ms: float) -> int:
    return sum(count for ns, count in latencies.items() if ns >= ms * 1e6)


def test_a_stall_delays_what_was_due(memcached_server: Any) -> None:
    """The 200 requests due during a stall count as late, though only two connections have requests under way."""
    server: Server = memcached_server()
    with loading(server, 2, keys=10, rate=1000.0) as made:
        made.fill()
        done = made.run(0.6, stall(server))
    assert done["unsent"] == 0 and abs(done["requests"] - 600) <= 1
    # Some 200 requests were due in the stall of 200 ms: half of them waited for 100 ms and more, and a twentieth for
    # 190 ms and more.
    assert slow(done["latencies"], 100) >= 90
    assert slow(done["latencies"], 190) >= 5
    assert slow(done["late"], 100) >= 80, "they waited here, not under way"


def test_a_closed_loop_omits_it(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with loading(server, 2, keys=10) as made:
        made.fill()
        done = made.run(0.6, stall(server))
    assert 1 <= slow(done["latencies"], 190) <= 2


def test_what_cannot_be_sent_counts(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with loading(server, 1, keys=10, rate=1e7, rate_varies=True) as made:
        made.fill()
        done = made.run(0.1)
    assert done["unsent"] > 100_000
    assert sum(done["latencies"].values()) == done["requests"] + done["unsent"]
    assert max(done["latencies"]) > 50e6


def test_the_shortest_run_asks_once(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with loading(server, 3, keys=10) as made:
        assert made.run(1e-9)["requests"] == 3


@pytest.mark.parametrize("varies", [False, True])
def test_rate(memcached_server: Any, varies: bool) -> None:
    server: Server = memcached_server()
    with loading(server, 5, keys=10, rate=4000.0, rate_varies=varies) as made:
        made.fill()
        done = made.run(0.5)
    # The limit is five standard deviations of a Poisson process.
    assert abs(done["requests"] + done["unsent"] - 2000) <= (5 * math.sqrt(2000) if varies else 1)


def test_latencies_are_an_hdr_histograms(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with loading(server, 2, keys=10, depth=4) as made:
        made.fill()
        done = made.run(0.1)
    found = measure.histogram(done["latencies"])
    assert found.get_total_count() == done["requests"]
    for ns in done["latencies"]:
        assert found.get_lowest_equivalent_value(ns) == ns
    assert load.percentile(done["latencies"], 50) * 1000 == pytest.approx(found.get_value_at_percentile(50), rel=2e-3)


# ---- laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 0.3, 0.99, 1.0, 1.5, 2.7])
def test_zipf(exponent: float) -> None:
    """A chi-square test against rank ** -exponent. 0.1 % of correct generators would fail; the seed here is fixed."""
    keys, count = 200, 400_000
    found = Counter(Load(keys=keys, exponent=exponent, seed=7).draw_ranks(count))
    weights = [(rank + 1) ** -exponent for rank in range(keys)]
    expected = [count * weight / sum(weights) for weight in weights]
    # Ranks expected less often than ten times form a class together.
    common = [rank for rank in range(keys) if expected[rank] >= 10]
    rare = [count - sum(part[rank] for rank in common) for part in (expected, found)]
    pairs = [(expected[rank], found[rank]) for rank in common] + ([(rare[0], rare[1])] if rare[0] > 1e-6 else [])
    square = sum((got - wanted) ** 2 / wanted for wanted, got in pairs)
    freedom = len(pairs) - 1
    # The limit is Wilson and Hilferty's approximation of the 99.9 % quantile.
    assert square < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert max(found) < keys


def test_popular_keys_are_scattered() -> None:
    """Ranks map to numbers, one to one, and the most popular keys do not have the first numbers."""
    made = Load(keys=1000, exponent=1.0, seed=3)
    numbers = Counter(made.draw(200_000))
    ranks = Counter(Load(keys=1000, exponent=1.0, seed=3).draw_ranks(200_000))
    assert sorted(numbers.values()) == sorted(ranks.values())
    top = [number for number, _ in numbers.most_common(10)]
    assert max(top) > 500 and max(abs(one - two) for one, two in itertools.pairwise(top)) > 100


def test_zipf_of_many_keys() -> None:
    """The most popular of 100 million keys has 1 / H of the requests, H being the sum of rank ** -0.99."""
    keys, count, s = 100_000_000, 200_000, 0.99
    harmonic = sum(rank**-s for rank in range(1, 1000)) + ((keys + 0.5) ** (1 - s) - 999.5 ** (1 - s)) / (1 - s)
    first = Counter(Load(keys=keys, exponent=s, seed=2).draw_ranks(count))[0]
    wanted = count / harmonic
    assert abs(first - wanted) < 5 * math.sqrt(wanted)


def mean(table: Any) -> float:
    return sum(table) / len(table)


def test_uniform_sizes() -> None:
    table = load.value_sizes("uniform:10:19")[0].table("I", 0, 1 << 20)  # type: ignore[union-attr]
    found = Counter(table)
    assert sorted(found) == list(range(10, 20)) and max(found.values()) - min(found.values()) <= 1


def test_lognormal_sizes() -> None:
    table = load.value_sizes("lognormal:1000:0.5")[0].table("I", 0, 1 << 20)  # type: ignore[union-attr]
    assert table[len(table) // 2] == 1000
    assert mean(table) == pytest.approx(1000 * math.exp(0.5**2 / 2), rel=0.002)
    assert table[int(0.8413447 * len(table))] == pytest.approx(1000 * math.exp(0.5), rel=0.001)


def test_etc_sizes() -> None:
    """Means, and some quantiles, agree with the closed forms of the distributions."""
    _, scale, shape = distributions.ETC_KEYS
    location = distributions.ETC_KEYS[0]
    keys = distributions.Sizes("etc", distributions.etc_key).table("H", 1, 250)
    assert mean(keys) == pytest.approx(location + scale * (math.gamma(1 - shape) - 1) / shape, rel=0.002)
    assert keys[len(keys) // 2] == round(location + scale * (math.log(2) ** -shape - 1) / shape)
    values = distributions.Sizes("etc", distributions.etc_value).table("I", 0, 1 << 20)
    found = Counter(values)
    for size, part in enumerate(distributions.ETC_SMALL):
        assert found[size] / len(values) == pytest.approx(part, abs=3e-5)
    small = sum(distributions.ETC_SMALL)
    assert small == pytest.approx(0.44155)
    # `above` is E[X | X >= 15] of a generalized Pareto distribution from 0 on.
    above = 15 + (distributions.ETC_SCALE + distributions.ETC_SHAPE * 15) / (1 - distributions.ETC_SHAPE)
    wanted = sum(size * part for size, part in enumerate(distributions.ETC_SMALL)) + (1 - small) * above
    assert mean(values) == pytest.approx(wanted, rel=0.01)
    made = Load(keys=50_000, value_sizes=values)
    assert mean([made.value_bytes(number) for number in range(50_000)]) == pytest.approx(wanted, rel=0.05)


def test_values_are_all_different() -> None:
    made = Load(keys=1000)
    assert len({made.value(number) for number in range(1000)}) == 1000
    assert store_commands(3, 1) == b"set %s 0 0 100\r\n%s\r\n" % (made.key(3), made.value(3))


# ---- the command -----------------------------------------------------------------------------------------------------

QUICK = ("--seconds", "0.1", "--warm-up", "0.02", "--rounds", "2", "--keys", "500")


def test_load(tmp_path: Path) -> None:
    wanted = "soft_shm,soft_iw,tcp,unix,memcached"
    words = ("--connections", "2,9", "--depths", "3", "--verify", "--popularity", "zipf:0.99", "--contenders", wanted)
    figures, text, outline = measured(tmp_path, "load", *QUICK, *words)
    assert names(figures) == wanted.split(",") and figures["reference"] == "memcached"
    assert [case["parameters"]["connections"] for case in figures["cases"]] == [2, 9]
    found = {(row["contender"], row["figure"]): row for row in figures["results"]}
    for name in names(figures):
        assert found[name, "hit_percent"]["median"] == 100
        assert min(found[name, figure]["median"] for figure in ("per_second", "client_cpu_us", "cpu_us")) > 0
        row = found[name, "p50_us"]
        assert 0 < row["p50"] <= row["p90"] <= row["p99"] <= row["p99_9"] <= row["max"]
    assert "Every value that came back was compared, byte by byte." in unwrapped(text)
    # The page has a plot of p50 against connections, and a plot of percentiles for each case.
    assert outline.tags.count("svg") == 1 + 2


def test_load_with_rates(tmp_path: Path) -> None:
    words = ("--rates", "500,2000", "--values", "etc", "--key-size", "etc", "--ratio", "8:1:1")
    figures, text, _ = measured(tmp_path, "load", *QUICK, *words, "--contenders", "soft_shm,memcached")
    assert len(figures["cases"]) == 2 and "values of etc" in unwrapped(text)
    assert "2000 requests a second" in unwrapped(text)
    for row in figures["results"]:
        if row["figure"] == "per_second":
            rate = next(case for case in figures["cases"] if case["name"] == row["case"])["parameters"]["rate"]
            assert rate * 0.5 < row["median"] < rate * 1.5
        assert row["figure"] != "hit_percent" or row["median"] < 100


@pytest.mark.parametrize("workload", ["etc", "twitter14", "twitter22"])
def test_load_with_a_workload(tmp_path: Path, workload: str) -> None:
    words = ("--workload", workload, "--think", "200", "--exponential", "--contenders", "tcp")
    figures, _, _ = measured(tmp_path, "load", *QUICK, *words)
    said = figures["cases"][0]["parameters"]
    known = distributions.WORKLOADS[workload]
    assert said["exponent"] == known.exponent and str(said["key_size"]) == known.key_size
    assert [float(part) for part in said["ratio"].split(":")][1:] == pytest.approx(
        [known.sets, known.deletes, known.incrs], rel=1e-4
    )


def test_load_on_a_running_server(rmemcached_server: Any, tmp_path: Path) -> None:
    server: Server = rmemcached_server()
    where = ("--server", f"127.0.0.1:{server.port}")
    figures, _, _ = measured(tmp_path, "load", *QUICK, *where, "--transports", "tcp,soft_shm,soft_iw", "--verify")
    assert names(figures) == ["tcp", "soft_shm", "soft_iw"]
    assert all(known["server"].startswith("memcached 1.") and not known["command"] for known in figures["contenders"])
    sets = counts(server)["cmd_set"]
    run("load", *QUICK, *where, "--no-fill", "--ratio", "1")
    assert counts(server)["cmd_set"] == sets and server.alive()


def test_load_on_a_unix_socket(rmemcached_server: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    rmemcached_server(path=path)
    for place in (path, os.path.relpath(path, ROOT)):
        figures, _, _ = measured(tmp_path, "load", *QUICK, "--server", place, "--transports", "unix,soft_shm")
        assert names(figures) == ["unix", "soft_shm"]


def test_load_ends_with_its_server(rmemcached_server: Any) -> None:
    """The end of the server gives a line and status 1."""
    server: Server = rmemcached_server()
    words = ["load", "--server", f"127.0.0.1:{server.port}", "--seconds", "100", "--keys", "10"]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rmemcached.bench", *words],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as bench:
        while counts(server)["cmd_get"] < 1000 and bench.poll() is None:
            pass
        server.kill()
        _, said = bench.communicate(timeout=60)
    assert bench.returncode == 1
    assert said.splitlines()[-1] == "rmemcached-bench: tcp: the server has closed a connection"


def test_load_ends_with_a_wrong_value(memcached_server: Any) -> None:
    server: Server = memcached_server()
    where = ("--server", f"127.0.0.1:{server.port}", "--ratio", "1", *QUICK)
    run("load", *where)
    with Client(server.address, default_noreply=False) as other:
        other.set(Load(keys=500).key(77).decode(), bytes(100))
    run("load", *where, "--no-fill")
    said = run("load", *where, "--no-fill", "--verify", status=1).stderr.splitlines()[-1]
    assert said.startswith(f"rmemcached-bench: tcp: get of {'k' * 30}77: a wrong value came back: b'\\x00")


@pytest.mark.parametrize(
    "words, message, status",
    [
        ("--server 127.0.0.1:1", "tcp: no connection: Connection refused", 1),
        ("--server /nowhere/socket", "unix: no connection: No such file or directory", 1),
        ("--server 127.0.0.1:99999", "'127.0.0.1:99999': the port must be from 1 to 65535, not '99999'", 2),
        ("--server one:5:6", "'one:5:6': 'one:5' is no host", 2),
        ("--server shm://one:5", "shm://one:5: transport: it is said by other options", 2),
        ("--server 127.0.0.1:1 --contenders tcp", "--server and --contenders exclude each other", 1),
        ("--server 127.0.0.1:1 --transports unix", "it needs the path of a UNIX socket", 1),
        ("--server /nowhere/socket --transports tcp", "--transports tcp: it needs HOST:PORT", 1),
        ("--transports tcp", "without it --contenders names them", 1),
        ("--contenders tcp+pymemcache", "it measures our own client only", 1),
        ("--values pareto:1", "'pareto:1' is no distribution of sizes: BYTES, uniform", 2),
        ("--values uniform:9:3", "is no distribution of sizes", 2),
        ("--values 2m", "--values: 1 MB at most", 1),
        ("--popularity zipf", "is not uniform or zipf:EXPONENT", 2),
        ("--ratio 0:0", "is not GETS:SETS", 2),
        ("--rates 100 --think 5", "--rates and --think exclude each other", 1),
        ("--keys 100000 --key-size 4", "--key-size of 100000 keys is 5 to 250", 1),
        ("--depths 0", "--depths 0: it is at least 1", 1),
        ("--seconds 0", "--seconds 0.0: it is at least 0.001", 1),
        ("--seconds 1e300", "--seconds 1e+300: it is at most 1000000", 1),
        ("--rates 1000000000000", "--rates 1000000000000: it is at most 10000000", 1),
        ("--multiget 5000000000", "--multiget 5000000000: it is at most 1000000", 1),
        ("--think 100000000000000000000", "it is at most 1000000000", 1),
        ("--values lognormal:100:1000", "is no distribution of sizes", 2),
        ("--values lognormal:100:inf", "is no distribution of sizes", 2),
        ("--multiget 1000000 --depths 1000000 --connections 100 --contenders tcp", "there is not enough memory", 1),
        ("--connections 100000000", "descriptors (ulimit -Hn)", 1),
        ("--workload facebook", "invalid choice: 'facebook'", 2),
    ],
)
def test_a_wrong_option_is_named(words: str, message: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = command.main(["load", *words.split()])
    except SystemExit as end:
        found = int(str(end.code))
    assert found == status and message in capsys.readouterr().err.splitlines()[-1]


def test_progress_within_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    bar = measure.Progress()
    bar.shown = True
    steps = measure.Steps(2, bar.show)
    steps.within(0.5, "halfway")
    steps.step("next")
    steps.within(0.5, "further")
    bar.end()
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert [line.count("#") for line in shown] == [0, 7, 15, 22, 0]
    assert "halfway" in shown[1] and "left" in shown[1]


@pytest.mark.parametrize(
    ("only", "counter"),
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
def test_loads_of_one_kind(memcached_server: Any, only: str, counter: str, rate: int) -> None:
    """The server and the generator count the same number of requests of the kind, and no latency is missing."""
    server: Server = memcached_server()
    with loading(server, 3, keys=500, depth=7, batch=True, complete=True, only=only, rate=rate) as made:
        made.fill()
        before = counts(server)
        done = made.run(0.05)
        after = counts(server)
    assert done["requests"] == after[counter] - before[counter] > 0 == done["gets"] + done["sets"]
    assert sum(done["latencies"].values()) == done["requests"] + done["unsent"]
    if only == "delete":
        assert after["curr_items"] == 500 - done["requests"]
    if only == "new":
        assert after["curr_items"] == 500 + done["requests"]
    if rate:
        assert done["requests"] <= 20_000 * 0.05 + 1


def test_a_load_of_one_kind_notices_what_is_wrong(memcached_server: Any) -> None:
    server: Server = memcached_server()
    with (
        pytest.raises(ValueError, match="a wrong reply came back: b'EN"),
        loading(server, 1, keys=5, complete=True, only="mg") as made,
    ):
        made.run(5)
    with (
        pytest.raises(ValueError, match="too large"),
        loading(server, 1, keys=1, value_size=2 << 20, only="new") as made,
    ):
        made.run(5)
    with pytest.raises(ValueError, match="only is one of"):
        Load(only="gets")
