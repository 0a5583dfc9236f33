"""The benchmark scripts run, verify what they read, and write well-formed figures."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from program import ROOT, run_program


def run(script: str, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_program([sys.executable, str(ROOT / "bench" / script), *arguments], 170)
    assert done.returncode == status, done.stderr
    return done


def test_direct_figures() -> None:
    # So few items have more than 12 B each: a bound that is missed.
    figures = json.loads(run("direct.py", "--seconds", "0.1", "--items", "30000", "--json", "-", status=1).stdout)
    assert 0 < figures["get 100 B, Python"] < figures["get 100 B, Python, asked"] * 10
    assert figures["8 processes, C, each core"] > 0.1
    assert figures["daemon CPU of a hit, of one that asks"] < 0.2
    assert 12 < figures["memory of the index for an item"] < 26
    assert figures["items not in the index"] < 5


def test_pytest_benchmark_cases() -> None:
    words = ["-m", "pytest", "-q", "--benchmark-disable", "-p", "no:cacheprovider", "bench"]
    done = run_program([sys.executable, "-P", *words], 170)
    assert done.returncode == 0, done.stdout
    assert "60 passed" in done.stdout


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


def test_fabrics_figures(tmp_path: Path) -> None:
    target, picture = tmp_path / "out.json", tmp_path / "out.svg"
    done = run(
        "fabrics.py",
        "--rounds",
        "1",
        "--iterations",
        "50",
        "--idle",
        "5",
        "--json",
        str(target),
        "--plot",
        str(picture),
    )
    figures = json.loads(target.read_text())
    assert len(figures["results"]) == 12
    for row in figures["results"]:
        assert row["value"] > 0 and row["beside_value"] > 0 and row["ratio"] > 0
        assert row["name"] in done.stdout
    assert picture.read_text().lstrip().startswith("<?xml")


def test_realuse_figures(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    words = (
        "--rounds 1 --seconds 0.01 --cores together --depth 3 --large 1m --threads 1,2 --sizes 4k,100k"
        " --busy 1 --transports soft_shm,tcp,unix --sharers 1,3"
    )
    done = run("realuse.py", *words.split(), "--json", str(target))
    figures = json.loads(target.read_text())
    assert list(figures) == ["large", "threads", "sharing", "beside"]
    assert [(row["size"], row["operation"], row["through"]) for row in figures["large"]] == [
        (1 << 20, operation, through) for operation in ("get", "set") for through in ("registered buffers", "bytes")
    ]
    assert all(row["to_memcpy"] > 0 for row in figures["large"])
    assert len(figures["threads"]) == 2 * 2 * 2 * 2
    assert all(row["to_tcp"] == 1 for row in figures["threads"] if row["transport"] == "tcp")
    assert [(row["depth"], row["threads"], row["queue_pairs"]) for row in figures["sharing"]] == [
        (depth, threads, pairs) for threads in (1, 3) for depth in (1, 3) for pairs in ("shared", "own")
    ]
    assert all(row["to_own"] == 1 for row in figures["sharing"] if row["queue_pairs"] == "own")
    assert all(row["to_fewest"] == 1 for row in figures["sharing"] if row["threads"] == 1)
    assert [(row["others"], row["transport"]) for row in figures["beside"]] == [
        (others, name) for others in ("none", "100 idle", "4 paced", "2 busy") for name in ("soft_shm", "tcp")
    ]
    assert all(row["per_second"] > 0 and row["to_none"] > 0 and row["to_tcp"] > 0 for row in figures["beside"])
    assert "100 KB" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing"], "'nothing' is not one of large, threads, sharing, beside"),
        (["--transports", "pigeon"], "'pigeon' is not one of soft_shm, soft_iw, tcp, unix, auto"),
        (["--threads", "long"], "--threads: invalid numbers value: 'long'"),
        (["--large", "big"], "--large: invalid sizes value: 'big'"),
    ],
)
def test_realuse_names_a_wrong_argument(arguments: list[str], message: str) -> None:
    assert message in run("realuse.py", *arguments, status=2).stderr


def test_client_figures(tmp_path: Path) -> None:
    target, picture = tmp_path / "out.json", tmp_path / "out.svg"
    words = ["--seconds", "0.002", "--rounds", "1"]
    done = run("client.py", *words, "--json", str(target), "--plot", str(picture))
    figures = json.loads(target.read_text())
    rows: dict[tuple[str, str, int | None], Any] = {
        (row["row"], row["contender"], row.get("size")): row for row in figures["results"]
    }
    absent = set(figures["not_installed"])
    assert absent <= {"pylibmc", "emcache", "aiomcache"}
    for name in {"soft_shm", "soft_iw", "tcp", "pymemcache", "pylibmc"} - absent:
        for row in ("get", "get, 1 ms apart", "set", "get_many", "set_many", "in flight"):
            assert rows[row, name, None]["least"] > 0
    for name in {"soft_shm", "soft_iw", "tcp", "emcache", "aiomcache"} - absent:
        assert rows["uvloop", name, None]["median"] > 0 and rows["asyncio", name, None]["median"] > 0
    for size in (1, 16, 64):
        assert rows["get_into a Buffer", "soft_iw", size << 20]["median"] > 0
    assert rows["get, ten arrays of 4 MB", "soft_shm", 40 << 20]["gb_per_second"] > 0
    assert len(figures["bounds"]) >= 12
    assert "1 ms apart" in done.stdout and ("holds" in done.stdout or "does not hold" in done.stdout)
    assert picture.read_text().lstrip().startswith("<?xml")


def test_client_names_a_wrong_argument() -> None:
    assert "'what' is not one of plain, async, large" in run("client.py", "--parts", "what", status=2).stderr
