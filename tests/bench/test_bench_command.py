"""rmemcached-bench with real daemons: each subcommand runs, compares the values read, and writes whole files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bench_runs import check_page, measured, names, notes, refused, run, unwrapped
from polling import readable
from program import run_program
from servers import Server

from rmemcached.bench import _floor, command, contenders, document, floor, latency, page, table
from rmemcached.client import Client


def test_latency(tmp_path: Path) -> None:
    wanted = "soft_shm,soft_iw,tcp,unix,auto,tcp+pymemcache,memcached,memcached+pymemcache"
    quick = ("--seconds", "0", "--rounds", "2", "--least", "4")
    figures, text, outline = measured(tmp_path, "latency", *quick, "--sizes", "8,300k", "--contenders", wanted)
    assert names(figures) == wanted.split(",") and figures["reference"] == "memcached"
    assert names(figures, True) == ["floor: lines", "floor: tcp", "floor: unix"]
    assert [case["parameters"]["size"] for case in figures["cases"]] == [8, 300 << 10] * 2
    assert len(figures["samples"]) == 4 * 11 * 2
    for row in figures["results"]:
        if row["figure"] == "p50_us":
            assert 0 < row["p50"] <= row["p90"] <= row["p99"] <= row["p99_9"] <= row["max"]
            assert (row["ratio"] is None) == (row["contender"] in ("memcached", *names(figures, True)))
            floored = row["contender"] not in ("auto", *names(figures, True))
            assert (row["to_floor"] is not None) == floored
    assert "300 KB" in unwrapped(text) and "p99.9" in text
    # The page has a plot against the size for each operation, and a plot of percentiles for each case.
    assert outline.tags.count("svg") == 2 + 4


def test_each_round_has_processes_of_its_own(tmp_path: Path) -> None:
    """Each round starts processes of its own, and none is left."""
    program, log = tmp_path / "memcached", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho $$ $PPID >> {log}\nexec {contenders.memcached_path()} "$@"\n')
    program.chmod(0o755)
    words = "latency --seconds 0 --least 2 --rounds 3 --sizes 100 --operations get,set --contenders"
    run(*words.split(), f"memcached={program}")
    started = [line.split() for line in log.read_text().splitlines()]
    assert len({server for server, _ in started}) == 3 and len({parent for _, parent in started}) == 3
    assert not [number for line in started for number in line if Path(f"/proc/{number}").exists()]


def test_nothing_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    program, pipe = tmp_path / "memcached", tmp_path / "pipe"
    os.mkfifo(pipe)
    program.write_text(f'#!/bin/sh\necho $$ $PPID > {pipe}\nexec {contenders.memcached_path()} "$@"\n')
    program.chmod(0o755)
    words = [*["latency", "--seconds", "9", "--rounds", "1", "--sizes", "100", "--contenders"], f"memcached={program}"]
    with subprocess.Popen([sys.executable, "-P", "-m", "rmemcached.bench", *words], stderr=subprocess.PIPE) as process:
        watched = [os.pidfd_open(int(number)) for number in pipe.read_text().split()]
        process.kill()
        assert len(watched) == 2 and all(readable(descriptor, 60) for descriptor in watched)
        for descriptor in watched:
            os.close(descriptor)
        assert process.communicate()[1] == b"", "who asked has gone: there is nobody to complain to"


def test_a_round_that_is_killed_is_named(tmp_path: Path) -> None:
    (tmp_path / "hdrh").mkdir()
    (tmp_path / "hdrh/__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached.bench", "latency", "--contenders", "tcp"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "round 1 ended with status -9; its output is above" in done.stderr


def test_latency_on_stdout() -> None:
    words = "latency --seconds 0 --rounds 1 --least 3 --sizes 100 --operations get --contenders tcp,memcached"
    done = run(
        *words.split(), "--cores", "together,any", "--pause", "10", "--reference", "tcp", "--seed", "11", "--json", "-"
    )
    figures = json.loads(done.stdout)
    assert [case["parameters"]["cores"] for case in figures["cases"]] == ["together", "any"]
    assert {case["parameters"]["pause_us"] for case in figures["cases"]} == {10}
    assert figures["reference"] == "tcp" and figures["seed"] == 11
    assert {row["noise"] for row in figures["results"]} == {None}
    assert "left" not in done.stderr, "no progress bar where nobody looks"


def test_cpu(tmp_path: Path) -> None:
    quick = "--seconds 0.03 --rounds 1 --connections 5 --operations get,set,mixed --contenders tcp,unix,memcached"
    figures, text, _ = measured(tmp_path, "cpu", *quick.split())
    assert names(figures) == ["tcp", "unix", "memcached"] and names(figures, True) == ["floor: tcp", "floor: unix"]
    asked = [known["client"] for known in figures["contenders"] if not known["floor"]]
    assert asked == [f"the load generator over {transport}" for transport in ("tcp", "unix", "tcp")], "no Client"
    assert [(case["parameters"]["operation"], case["parameters"]["depth"]) for case in figures["cases"]] == [
        (operation, depth) for operation in ("get", "set", "mixed") for depth in (1, 16)
    ]
    for row in figures["results"]:
        assert row["median"] > 0
        mixed = row["case"].startswith("9 gets")
        assert (row["to_floor"] is None) == (mixed or row["contender"].startswith("floor"))
    assert "pipelined by 16" in unwrapped(text)


def test_cpu_for_a_key_of_a_multiget(tmp_path: Path) -> None:
    quick = "--seconds 0.03 --rounds 1 --connections 5,8 --operations get --depths 1 --contenders tcp"
    figures, text, _ = measured(tmp_path, "cpu", *quick.split(), "--multiget", "1,100")
    cpu = [row["median"] for row in figures["results"] if row["figure"] == "cpu_us" and row["contender"] == "tcp"]
    assert len(cpu) == 4 and 0 < cpu[2] < cpu[0] and 0 < cpu[3] < cpu[1]
    assert all(row["to_floor"] > 0 for row in figures["results"] if row["contender"] == "tcp")
    assert "get of 100 keys of 100 B" in unwrapped(text)
    assert "--multiget needs --operations get" in run("cpu", "--multiget", "2", status=1).stderr


def test_memory(tmp_path: Path) -> None:
    quick = "--items 50000 --connections 300 --rounds 1"
    figures, text, _ = measured(tmp_path, "memory", *quick.split())
    found = {(row["contender"], row["figure"]): row["median"] for row in figures["results"]}
    for name in ("tcp", "memcached"):
        assert 185 < found[name, "item_counted_bytes"] < 200
        assert found[name, "resident_bytes"] > 1 << 20 and found[name, "ready_ms"] > 0
        assert found[name, "connection_bytes"] > 100 and found[name, "item_resident_bytes"] > 100
    assert "an idle connection" in unwrapped(text)
    assert found["floor: bytes", "item_counted_bytes"] == 180
    assert 0 < found["floor: Python", "resident_bytes"] < found["tcp", "resident_bytes"]


def test_paced(tmp_path: Path) -> None:
    quick = "--seconds 0.01 --rounds 1 --think 0,500 --operations get,set --clients 1,2 --busy 1 --exponential"
    figures, _, outline = measured(tmp_path, "paced", *quick.split(), "--contenders", "soft_shm,tcp,memcached")
    assert len(figures["cases"]) == 8 and figures["cases"][0]["parameters"]["exponential"]
    assert all(row["median"] > 0 for row in figures["results"])
    # Two clients have no floor over shared memory: with two polling servers they would need four cores.
    floored = {(row["contender"], "2 clients" in row["case"]) for row in figures["results"] if row["to_floor"]}
    assert floored == {("tcp", False), ("memcached", False), ("tcp", True), ("memcached", True), ("soft_shm", False)}
    # The page has a plot of p50 against the think time for each operation and number of clients, and a plot of
    # percentiles for each case.
    assert outline.tags.count("svg") == 4 + 8


def test_throughput(tmp_path: Path) -> None:
    quick = "--seconds 0.02 --rounds 2 --keys 10,200 --depths 1,7 --operations get,mixed"
    figures, text, _ = measured(tmp_path, "throughput", *quick.split(), "--contenders", "soft_shm,tcp,memcached")
    assert len(figures["cases"]) == 8 and "7 under way" in unwrapped(text)
    assert all(row["median"] >= 0 for row in figures["results"])
    assert all(row["median"] > 0 for row in figures["results"] if row["figure"] == "per_second")
    floored = [row for row in figures["results"] if row["to_floor"]]
    assert {row["contender"] for row in floored} == {"soft_shm", "tcp", "memcached"}
    assert not [row for row in floored if row["case"].startswith("9 gets")]


def test_connections(tmp_path: Path) -> None:
    quick = "--seconds 0.05 --rounds 2 --connections 2,20 --contenders soft_shm,tcp,memcached"
    figures, _, _ = measured(tmp_path, "connections", *quick.split())
    assert [case["parameters"]["connections"] for case in figures["cases"]] == [2, 20]
    memory = [sample["values"]["memory_bytes"] for sample in figures["samples"] if sample["contender"] == "soft_shm"]
    assert len(memory) == 4 and min(memory) > 0, "each round has a server that has not seen the connections before"
    assert all(row["median"] > 0 for row in figures["results"] if row["figure"] != "memory_bytes")
    floored = {row["contender"] for row in figures["results"] if row["to_floor"] and row["figure"] == "per_second"}
    assert floored == {"tcp", "memcached"}


def test_survives(tmp_path: Path) -> None:
    quick = "--items 50000 --seconds 0.03 --processes 2 --rounds 1 --parts restart,sets,tls,handshakes"
    figures, text, _ = measured(tmp_path, "survives", *quick.split())
    groups = [case["group"] for case in figures["cases"]]
    assert list(dict.fromkeys(groups)) == ["restart", "sets", "tls", "handshakes"]
    found = {(row["case"], row["contender"]): row["median"] for row in figures["results"]}
    # In so short a run the CPU time of handshakes may be lost in that of the bystander's gets.
    assert min(value for (case, _), value in found.items() if "a full handshake" not in case) > 0
    assert not [note for note in notes(figures) if "as short as" not in note]
    start = "restart: 50000 items of 200 B: start"
    assert found[start, "memcached"] > 0 and found[f"{start} with an empty file", "tcp"] > 0
    assert ("restart: 50000 items of 200 B: taken over, by restored_us", "tcp") in found
    beside = "sets: set of 100 B, pipelined by 16, 50 connections: CPU"
    for name in ("tcp", "memcached"):
        ratio = found[f"{beside}, -e", name] / found[beside, name]
        assert found[f"{beside}, -e beside without", name] == pytest.approx(ratio)
        assert found["tls: get of 1 MB, TLS beside without, server's CPU", name] > 1
    floored = {row["case"] for row in figures["results"] if row["to_floor"]}
    assert floored == {"handshakes: full handshakes, 2 processes"} and names(figures, True) == ["floor: handshakes"]
    assert "in the storm" in unwrapped(text)


def test_survives_leaves_out_servers_without_an_option(tmp_path: Path) -> None:
    program = tmp_path / "memcached"
    program.write_text(f'#!/bin/sh\n[ "$*" = -h ] || exec {contenders.memcached_path()} "$@"\n')
    program.chmod(0o755)
    words = f"survives --parts idle --connections 20 --rounds 1 --contenders tcp,memcached,memcached={program} --json -"
    figures = json.loads(run(*words.split()).stdout)
    assert names(figures) == ["tcp", "memcached"]
    assert all(row["median"] > 4096 for row in figures["results"])
    assert notes(figures) == [f"idle is without memcached={program}: its help has no --enable-ssl"]
    done = run_program(["env", f"PATH={tmp_path}", sys.executable, "-P", "-m", "rmemcached.bench", *words.split()], 60)
    assert done.returncode == 1 and "nothing was measured: openssl is not in PATH" in done.stderr


def test_survives_flash(tmp_path: Path) -> None:
    words = "survives --parts flash --seconds 0.2 --rounds 1 --contenders tcp,memcached"
    figures, _, _ = measured(tmp_path, *words.split())
    found = {(row["case"], row["contender"]): row["median"] for row in figures["results"]}
    assert names(figures) == ["tcp", "memcached"] and min(found.values()) > 0
    for name in names(figures):
        for size in ("1 KB", "64 KB", "500 KB"):
            ratio = (
                found[f"flash: hit of {size}, page cache: p50", name]
                / found[f"flash: hit of {size}, memory: p50", name]
            )
            assert found[f"flash: hit of {size}, page cache beside memory", name] == pytest.approx(ratio)
    # The file system of TMPDIR may be in memory, and a slow machine may have compacted nothing.
    expected = ("flash is without the device", "flash: tcp has compacted", "flash: memcached has compacted")
    assert all(note.startswith(expected) for note in notes(figures))


HITRATIO = "hitratio --megabytes 4 --largest 2000"


def test_hitratio(tmp_path: Path) -> None:
    words = f"{HITRATIO} --keys 20000 --requests 60000 --points 20"
    figures, _, outline = measured(tmp_path, *words.split())
    assert names(figures) == ["lru", "s3fifo", "lru+direct", "s3fifo+direct", "memcached"]
    asked = {known["name"]: known["client"] for known in figures["contenders"]}
    assert asked["lru"] == asked["memcached"] == "a plain socket over tcp"
    assert asked["lru+direct"] == "rmemcached.client over soft_shm, which reads the items"
    found = {(row["contender"], row["figure"]): row["median"] for row in figures["results"]}
    for name in names(figures):
        assert 1 < found[name, "misses_percent"] < 80 and found[name, "evictions"] > 0
        # A client that asks nobody costs the daemon less than a tick of its CPU clock, so 0 is possible.
        assert 0 <= found[name, "hit_cpu_us"] < 100
    assert min(found[name, "hit_cpu_us"] for name in ("lru", "s3fifo", "memcached")) > 0
    assert "rdma_direct" in " ".join(cell for cell in outline.cells if "-m rmemcached" in cell)


def test_a_missed_limit_is_a_status() -> None:
    words = f"{HITRATIO} --keys 2000 --requests 1000 --points -100 --contenders lru,memcached"
    assert "lru: " in run(*words.split(), status=1).stderr


def test_a_server_that_runs_already(memcached_server: Any, tmp_path: Path) -> None:
    server: Server = memcached_server()
    where = f"127.0.0.1:{server.port}"
    for words in (
        "latency --seconds 0 --least 2 --rounds 1 --sizes 100",
        "paced --seconds 0.001 --rounds 1 --think 0",
        "connections --seconds 0.01 --rounds 1 --connections 2",
        "throughput --seconds 0.01 --rounds 1 --keys 10 --depths 2",
    ):
        figures, _, _ = measured(tmp_path, *words.split(), "--contenders", f"tcp,{where}")
        assert figures["contenders"][1]["server"].startswith("memcached 1.")
        assert figures["contenders"][1]["command"] == []
    assert server.alive()


def test_a_program_by_its_path(tmp_path: Path) -> None:
    program = contenders.memcached_path()
    assert program is not None
    words = f"latency --seconds 0 --least 2 --rounds 1 --sizes 100 --contenders tcp,memcached={program}"
    figures, _, _ = measured(tmp_path, *words.split())
    assert figures["reference"] == f"memcached={program}" and figures["contenders"][1]["command"][0] == program


@pytest.mark.parametrize(
    "words, message, status",
    [
        ("latency --sizes 8,big", "--sizes: 'big' is not a number of bytes, such as 100, 64k or 1m", 2),
        ("latency --sizes 1k,1024", "--sizes: '1k,1024' names 1024 twice", 2),
        ("latency --operations get,get", "'get,get' names get twice", 2),
        ("connections --connections 1,x", "--connections: 'x' is not a whole number", 2),
        ("realuse large,threads", "'large,threads' is not one of large, threads, sharing, beside", 2),
        ("hitratio --largest 5000000", "--largest is 1000000 at most, unless --flags=-I", 1),
        ("latency --sizes 9m --contenders tcp", "set: object too large for cache", 1),
        ("compare /nowhere /nowhere --least nan", "--least nan: it is at least 0", 1),
        ("latency --contenders pigeon", "'pigeon' is no contender: soft_shm, soft_iw", 2),
        ("latency --contenders tcp,tcp", "names tcp twice", 2),
        ("latency --contenders memcached=/nowhere", "there is no program /nowhere", 2),
        ("latency --contenders soft_shm+pymemcache", "pymemcache speaks over tcp and unix only", 2),
        ("latency --contenders tcp+other", "the client behind + is pymemcache", 2),
        ("latency --operations push", "'push' is not one of get, set", 2),
        ("latency --cores many", "'many' is not one of any, together, apart", 2),
        ("latency --contenders tcp --reference memcached", "it is not among the contenders tcp", 1),
        ("latency --contenders 127.0.0.1:1", "127.0.0.1:1: no connection: Connection refused", 1),
        ("cpu --contenders soft_shm", "cpu soft_shm: it measures tcp, unix and memcached only", 1),
        ("cpu --contenders 127.0.0.1:1", "it measures servers that it starts itself", 1),
        ("cpu --sizes 1m", "what is pipelined has 4 MB at most", 1),
        ("cpu --rate -1", "--rate -1: it is at least 0", 1),
        ("latency --sizes 100,0", "--sizes 0: it is at least 1", 1),
        ("latency --seconds nan", "--seconds nan: it is at least 0", 1),
        ("cpu --seconds 0", "--seconds 0.0: it is at least 0.001", 1),
        ("paced --think 100,-1", "--think -1: it is at least 0", 1),
        ("connections --connections 0", "--connections 0: it is at least 1", 1),
        ("memory --items -5", "--items -5: it is at least 0", 1),
        ("hitratio --megabytes 0", "--megabytes 0: it is at least 1", 1),
        ("latency --contenders 127.0.0.1:99999", "'127.0.0.1:99999': the port must be from 1 to 65535, not '99999'", 2),
        ("cpu --contenders memcached=/bin/true", "ended with status 0: it has written nothing", 1),
        ("memory --contenders auto", "memory auto: it measures tcp, unix", 1),
        ("throughput --contenders tcp+pymemcache", "it measures our own client only", 1),
        ("survives --contenders unix", "survives unix: it measures tcp and memcached only", 1),
        ("survives --parts fire", "'fire' is not one of restart, sets, tls", 2),
        ("survives --processes 0", "--processes 0: it is at least 1", 1),
        ("hitratio --contenders tcp", "'tcp' is no contender: lru, s3fifo", 2),
        ("throughput --sizes 1m", "all items together have 128 MB at most", 1),
        ("latency --json /nowhere/a.json", "/nowhere/a.json: there is no folder /nowhere", 1),
        ("latency --html /tmp", "/tmp: it cannot be written", 1),
        ("cpu --connections 100000000", "--connections: a process may have ", 1),
        ("connections --connections 100000000", "--connections: a process may have ", 1),
        ("memory --connections 100000000", "--connections: a process may have ", 1),
        ("fabrics --idle 100000000", "--idle 100000000: a process may have ", 1),
        ("latency --json a.svg --plot ./a.svg", "--json, --html and --plot name a file twice", 1),
        ("latency --plot a.png", "--plot a.png: it draws .svg only", 1),
        ("all /proc/nothing", "/proc/nothing: No such file or directory", 1),
        ("paced --rounds 0", "--rounds 0: it is at least 1", 1),
        ("paced --turns 0", "--turns 0: it is at least 1", 1),
        ("selection --expected /nowhere.json", "/nowhere.json: No such file or directory; --record makes it", 1),
        ("selection --cases nothing", "invalid choice: 'nothing'", 2),
        ("selection --record --runs 1", "--record takes at least 2 --runs, of all cases", 1),
        ("compare /nowhere.json /nowhere.json", "/nowhere.json: No such file or directory", 1),
    ],
)
def test_a_wrong_argument_is_named(words: str, message: str, status: int) -> None:
    found, said = refused(words)
    assert found == status and message in said.splitlines()[-1]


def test_a_missing_dependency_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "hdrh.py").write_text("raise ImportError\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached.bench", "latency", "--contenders", "tcp"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert said[-1] == "rmemcached-bench: hdrhistogram is not installed: pip install hdrhistogram"


def test_all_writes_a_folder(tmp_path: Path) -> None:
    program = contenders.memcached_path()
    # With so few connections the limits of memory may be missed: the status is not checked.
    words = ("--quick", "--only", "hitratio,memory", "--memcached", str(program))
    done = run("all", str(tmp_path / "new"), *words, status=None)
    figures = [document.read(str(tmp_path / "new" / f"{name}.json")) for name in ("hitratio", "memory")]
    path = tmp_path / "new" / "report.html"
    assert path.read_text() == page.html(*figures)
    for each in figures:
        check_page(path, each)
        assert f"memcached={program}" in names(each)
        assert table.text(each, 80) in done.stdout


def test_quick_options_are_options() -> None:
    for name in command.SHOWN:
        assert command.make_parser().parse_args([name, *command.QUICK[name].split()])


def test_descriptors_are_as_many_as_the_system_allows() -> None:
    """The benchmark raises a shell's soft limit of descriptors, also for the echo server."""
    words = "cpu --connections 150 --rounds 1 --seconds 0.01 --depths 1 --operations get --contenders tcp"
    limited = ["bash", "-c", 'ulimit -Sn 90; exec "$@"', "limited", sys.executable, "-P", "-m", "rmemcached.bench"]
    done = run_program([*limited, *words.split()], 100)
    assert done.returncode == 0 and "floor: tcp" in done.stdout, done.stderr


def test_one_core_is_enough_for_all() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        for name in command.SHOWN:
            options = command.make_parser().parse_args([name, *command.WHOLE[name].split()])
            assert "apart" not in getattr(options, "cores", ())
    finally:
        os.sched_setaffinity(0, before)


def test_compare_has_a_status(tmp_path: Path) -> None:
    """compare exits with a status for a real run, and for the same run with a slower contender."""
    words = "latency --seconds 0.01 --rounds 5 --sizes 100 --operations get --contenders tcp,memcached"
    figures, _, _ = measured(tmp_path, *words.split())
    first, second = tmp_path / "out.json", tmp_path / "slower.json"
    for sample in figures["samples"]:
        if sample["contender"] == "tcp":
            sample["values"] = {"p50_us": sample["values"]["p50_us"] * 1000, "per_second": 1e-3}
    document.write(str(second), figures)
    assert "0 worse, 0 better, 2 the same" in run("compare", str(first), str(first)).stdout
    assert "2 worse" in run("compare", str(first), str(second), status=1).stdout
    back = run("compare", str(second), str(first)).stdout
    assert back.startswith("better: get of 100 B") and "0 worse, 2 better" in back


# ---- the floor -------------------------------------------------------------------------------------------------------


def test_lines_floor(tmp_path: Path) -> None:
    """The floor answers the clients one after the other, each in memory of its own, and sleeps between them."""
    before = os.sched_getaffinity(0)
    with floor.start_lines(str(tmp_path), before, len(before) == 1) as server:
        for value in (b"12345", b"x" * 100_000):
            with contextlib.closing(floor.LinesClient(str(server.address), value)) as client:
                assert client.get("key") == value and client.set("key", value[:3]) and client.get("key") == value[:3]
                assert client.get_many(["a", "b"]) == {"a": value[:3], "b": value[:3]}
                assert client.set_many({"a": b"1", "b": b"23"}) == [] and client.get("key") == b"23"
                copies, seconds = client.lines.batches(7, 0.01)
                assert copies >= 7 and copies % 7 == 0 and seconds >= 0.01
                with pytest.raises(ValueError, match="too long"):
                    client.set("key", value + b"1")
            assert os.sched_getaffinity(0) == before
        used = server.cpu_seconds()
        with server.connect() as plain:
            plain.shutdown(socket.SHUT_WR)
            assert plain.recv(1) == b"", "who hands over nothing is let go"
        assert server.alive() and server.cpu_seconds() - used < 0.05


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_a_client_of_the_echo_server(transport: str, tmp_path: Path) -> None:
    with floor.start_echo(transport, str(tmp_path), {0}) as server:
        with contextlib.closing(floor.EchoClient(server.address, "key", b"value")) as one:
            assert one.get("key") == b"value" and one.set("key", b"value")
        with contextlib.closing(floor.EchoClient(server.address, "key-00", b"value", keys=3)) as many:
            assert many.get_many("abc") == dict.fromkeys("abc", b"value")
            assert many.set_many({}) == []
            with pytest.raises(ValueError, match="more keys"):
                many.get_many("abcd")


def test_a_copy_without_the_gil() -> None:
    source, target = b"12345", bytearray(8)
    assert _floor.copy(source, target, 0) > 0 and target == b"12345\0\0\0"
    with pytest.raises(ValueError, match="too short"):
        _floor.copy(source, bytearray(4), 0)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_echo_server(transport: str, tmp_path: Path) -> None:
    """The server answers as many replies as whole requests, however the requests are cut."""
    with floor.start_echo(transport, str(tmp_path), {0}) as server:
        with floor.echo_connection(server, 10, b"abc", together=4) as plain:
            plain.sendall(bytes(25))
            received = b""
            while len(received) < 6:
                received += plain.recv(100)
            plain.sendall(bytes(5))
            assert received + plain.recv(100) == b"abcabcabc"
            assert len(_floor.ask(plain.fileno(), 10, b"abc", 0, 5)) == 5
            with pytest.raises(ValueError, match="wrong reply"):
                _floor.ask(plain.fileno(), 10, b"abd", 0, 1)
        with floor.echo_connection(server, 1 << 20, b"abc") as plain:
            assert len(_floor.ask(plain.fileno(), 1 << 20, b"abc", 0, 3, pause=0.001)) == 3
        assert server.alive()


def test_echo_server_outlives_its_clients(tmp_path: Path) -> None:
    with floor.start_echo("tcp", str(tmp_path), {0}) as server:
        for opening in (b"", b"\0" * 12, b"\1\0\0\0" + b"\xff" * 8, b"\1\0"):
            with server.connect() as plain:
                plain.sendall(opening)
                plain.shutdown(socket.SHUT_WR)
                assert plain.recv(1) == b""
        with floor.echo_connection(server, 1, b"x", together=1) as plain:
            plain.sendall(bytes(3))
            plain.settimeout(5)
            # The client sends more at once than was agreed: the server ends the connection, perhaps after an echo.
            assert plain.recv(1) in (b"", b"x")
        with floor.echo_connection(server, 1, b"x") as plain:
            assert _floor.ask(plain.fileno(), 1, b"x", 0, 1)


def test_call_that_copies() -> None:
    copier = _floor.Copier(5)
    assert copier.set("key", b"12345") and copier.get("key") == b"12345"
    assert copier.set("key", b"") and copier.get("key") == b""
    with pytest.raises(ValueError, match="too long"):
        copier.set("key", b"123456")


def test_a_wrong_value_ends_it(memcached_server: Any) -> None:
    """A value changed meanwhile by another client ends the benchmark."""
    server: Server = memcached_server()
    over = threading.Event()

    def disturb() -> None:
        with Client(server.address, default_noreply=False) as other:
            while not over.is_set():
                other.set("key", b"another")

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        with (
            Client(server.address, default_noreply=False) as client,
            pytest.raises(ValueError, match="get of 5 bytes: a wrong value came back"),
        ):
            latency.sample(client, "get", "key", [b"right"], 60, 1)
    finally:
        over.set()
        disturbing.join()
