"""rmemcached-bench's subcommands whose contenders are given: rows of figures with bounds."""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from bench_runs import measured, names, notes, refused, run, unwrapped
from daemon_tools import eventually

from rmemcached.bench import arguments, bounds, command, document, estimate, locks, page, table
from rmemcached.bench.document import Record
from rmemcached.bench.measure import Round
from rmemcached.bench.sheet import Sheet

# A program whose thread locks a mutex once. With the argument 1 main holds the mutex until the thread sleeps in the
# kernel. At the end main calls FUTEX_WAKE, which wakes nobody: the end of the trace.
LOCKER = """
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile pid_t thread;
static void *work(void *unused) {
    thread = syscall(SYS_gettid);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}
int main(int count, char **words) {
    int wait = count > 1 && atoi(words[1]), end = 0;
    char path[64], state = 0;
    pthread_t id;
    if (wait)
        pthread_mutex_lock(&mutex);
    pthread_create(&id, NULL, work, NULL);
    while (wait && state != 'S') {
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            if (fscanf(file, "%*d %*s %c", &state) != 1)
                state = 0;
            fclose(file);
        }
    }
    if (wait)
        pthread_mutex_unlock(&mutex);
    pthread_join(id, NULL);
    syscall(SYS_futex, &end, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    return 0;
}
"""


def medians(figures: document.Document) -> dict[tuple[str, str], float]:
    return {
        (row["case"].partition(": ")[2], row["contender"]): row["median"]
        for row in figures["results"]
        if row["figure"] == "value"
    }


def test_direct(tmp_path: Path) -> None:
    # The index takes more than 12 B for each of so few items: the bound is missed, and the status is 1.
    words = "direct --seconds 0.05 --items 30000 --rounds 1"
    figures, text, _ = measured(tmp_path, *words.split(), status=1)
    found = medians(figures)
    assert 0 < found["get 100 B, Python", "direct"] < found["get 100 B, Python", "asked"] * 10
    assert found["get 100 B, C, 8 processes, each core", "direct"] > 0.1
    assert found["daemon's CPU of a hit", "direct"] < 0.2 * found["daemon's CPU of a hit", "asked"]
    assert 12 < found["memory of the index for an item", "direct"] < 26
    assert found["items not in the index", "direct"] < 5
    assert "<= 12  MISSED" in text and notes(figures) == []


def test_fabrics(tmp_path: Path) -> None:
    words = "fabrics --rounds 1 --iterations 50 --idle 5"
    figures, _, _ = measured(tmp_path, *words.split(), status=None)
    found = medians(figures)
    assert len([key for key in found if not key[1].startswith("floor")]) == 12
    assert min(found.values()) > 0
    bounded = [row for row in figures["results"] if "bound" in row]
    assert len(bounded) == 12 and all(row["verdict"] != estimate.UNMEASURED for row in bounded)


def test_realuse(tmp_path: Path) -> None:
    words = (
        "realuse --rounds 1 --seconds 0.01 --cores together --depth 3 --large 1m --threads 1,2 --sizes 4k,100k"
        " --busy 1 --transports soft_shm,tcp,unix --sharers 1,3"
    )
    figures, text, _ = measured(tmp_path, *words.split())
    groups = [case["group"] for case in figures["cases"]]
    assert [groups.count(name) for name in dict.fromkeys(groups)] == [5, 8, 4, 4]
    assert min(medians(figures).values()) > 0
    for row in figures["results"]:
        if row["case"].startswith("large") and not row["contender"].startswith("floor"):
            assert row["to_floor"] > 0
        if row["figure"] == "to_own":
            assert (row["median"] == 1) == row["contender"].endswith("own")
    assert all(words in unwrapped(text) for words in ("100 KB", "beside 100 idle"))


def test_clients(tmp_path: Path) -> None:
    figures, text, _ = measured(tmp_path, "clients", "--seconds", "0.002", "--rounds", "1", status=None)
    found = medians(figures)
    installed = set(names(figures))
    assert {"soft_shm", "soft_iw", "tcp", "pymemcache"} <= installed
    for name in installed & {"soft_shm", "soft_iw", "tcp", "pymemcache", "pylibmc"}:
        for row in ("get", "get, 1 ms apart", "set", "get_many", "set_many", "in flight"):
            assert found[row, name] > 0
    for name in installed & {"soft_shm", "soft_iw", "tcp", "emcache", "aiomcache"}:
        assert found["uvloop", name] > 0 and found["asyncio", name] > 0
    for size in (1, 16, 64):
        assert found[f"get_into a Buffer, {size} MB, soft_iw", "soft_iw"] > 0
    assert found["get, ten arrays of 4 MB, soft_shm", "soft_shm"] > 0
    assert len([row for row in figures["results"] if "bound" in row]) >= 12
    absent = {"pylibmc", "emcache", "aiomcache"} - installed
    assert [note.partition(": ")[2] for note in notes(figures)] == ([", ".join(sorted(absent))] if absent else [])
    assert "1 ms apart" in unwrapped(text)


def test_bounds(tmp_path: Path) -> None:
    words = "bounds --rounds 1 --turns 1 --seconds 0.01 --items 20000"
    figures, text, _ = measured(tmp_path, *words.split(), status=None)
    groups = [case["group"] for case in figures["cases"]]
    assert [groups.count(name) for name in dict.fromkeys(groups)] == [6, 2, 12, 6, 6, 4, 1, 2, 4]
    bounded = [row for row in figures["results"] if "bound" in row]
    # The 43 bounds are of TCP. Where the floor is the bound, there is a bound for a UNIX socket, too: 6.
    assert len(bounded) == 43 + 6 and all(row["verdict"] != estimate.UNMEASURED for row in bounded)
    assert [case["figures"][0]["name"] for case in figures["cases"] if case["group"] == "two workers"] == [
        "per_second",
        "p99_us",
        "per_second",
        "p99_us",
    ]
    floors = {case["name"] for case in figures["cases"] if case["floors"]}
    assert len(floors) == 20 and all(row["to_floor"] for row in bounded if row["case"] in floors)
    assert notes(figures) == []
    path = tmp_path / "out.json"
    shown = run("show", str(path), "--markdown", "--plot", str(tmp_path / "again.svg")).stdout
    assert (tmp_path / "again.svg").read_text() == (tmp_path / "out.svg").read_text()
    assert shown.startswith(f"`{' '.join(figures['command'])}`: 20")
    assert {line.count("|") for line in shown.splitlines() if "get of 100 keys of 4 KB" in line} == {11}
    assert run("show", str(path)).stdout.strip() == text.strip()
    assert "No such file" in run("show", "/nowhere.json", status=1).stderr


@pytest.mark.parametrize(
    "words, message, status",
    [
        ("realuse nothing", "'nothing' is not one of large, threads, sharing, beside", 2),
        ("realuse --transports pigeon", "'pigeon' is not one of soft_shm, soft_iw, tcp, unix, auto", 2),
        ("realuse --threads long", "--threads: 'long' is not a whole number", 2),
        ("clients --parts what", "'what' is not one of plain, async, large", 2),
        ("direct --transports tcp", "'tcp' is not one of soft_iw, verbs", 2),
        ("bounds --cores any,together", "--cores: one of any, together, apart", 2),
        ("bounds --cores nowhere", "'nowhere' is not one of any, together, apart", 2),
        ("direct --items 1", "--items 1: it is at least 1000", 1),
        ("fabrics --idle 0", "--idle 0: it is at least 1", 1),
    ],
)
def test_a_wrong_argument_is_named(words: str, message: str, status: int) -> None:
    found, said = refused(words)
    assert found == status and message in said.splitlines()[-1]


def test_bounds_of_another_placement_are_other_cases() -> None:
    names = {}
    for cores in arguments.CORES:
        record = Record("bounds", [], "memcached")
        for _, rows in bounds.PLACES:
            for row in rows:
                record.case(bounds.case_of(row, 0.01, cores), [])
        names[cores] = {case["name"] for case in record.document["cases"]}
        assert all(case["name"].startswith(f"{case['group']}: ") for case in record.document["cases"])
        heading = table.text(record.finished(), 200).splitlines()[0]
        assert heading.endswith(f" cores, {arguments.CORES[cores]}")
        assert arguments.CORES[cores] in page.html(record.document)
    assert not names["apart"] & names["together"] and not names["any"] & (names["apart"] | names["together"])


def test_values_of_bounds_fit_into_the_items_of_their_servers() -> None:
    """Only servers for larger values have another -I than the usual."""
    assert {row for _, rows in bounds.PLACES[:2] for row in rows} == set(bounds.ROWS)
    for flags, rows in bounds.PLACES:
        assert {row.size < 1 << 20 for row in rows} == {"-I" not in flags}


def ended(trace: Path) -> bool:
    """Whether strace has written everything. strace is a process of its own, and may write after the end of its
    program."""
    return trace.exists() and b"FUTEX_WAKE_PRIVATE" in trace.read_bytes()


def test_lock_waits_are_seen(tmp_path: Path) -> None:
    """A wait for a locked mutex is counted, and the lock of a free mutex is not."""
    program = tmp_path / "waits.c"
    program.write_text(LOCKER)
    subprocess.run(["cc", "-O1", "-pthread", "-o", tmp_path / "waits", program], check=True)
    for contended in (0, 1):
        trace = tmp_path / f"trace{contended}"
        done = subprocess.run([*locks.STRACE, trace, tmp_path / "waits", str(contended)], timeout=60)
        assert done.returncode == 0
        eventually(partial(ended, trace))
        assert locks.waits(trace) == contended


def test_lock_waits_say_that_strace_is_absent(monkeypatch: Any) -> None:
    monkeypatch.setitem(os.environ, "PATH", "")
    record = Record("bounds", [], "memcached")
    locks.measure({}, "lock waits", "any", 0.1, record, record.steps(1))
    assert record.document["notes"] == [locks.ABSENT] and record.document["cases"] == []


def sheet_of(values: dict[str, list[float]], bound: str) -> document.Document:
    """A document with a value of each contender in each round."""
    whole = Record("direct", [], "")
    for number, found in enumerate(zip(*values.values(), strict=True), 1):
        record = Record("direct", [], "", round=Round(number))
        sheet = Sheet(record)
        for name, value in zip(values, found, strict=True):
            record.contender({"name": name, "server": "", "client": "", "command": [], "floor": False})
            sheet.add("a get", name, value, "us", group="gets", bound=bound if name == "ours" else "")
        sheet.finish()
        whole.add(record.measured())
    return whole.finished()


FEW = {"ours": [1.0, 2.0, 10.0], "theirs": [2.0, 4.0, 20.0]}
# The ratios are 0.5 to 0.9: the interval has all of them, and the quartiles are 0.6 and 0.8.
MANY = {"ours": [5.0, 9.0, 8.0, 6.0, 7.0], "theirs": [10.0] * 5}


@pytest.mark.parametrize(
    "values, bound, verdict",
    [
        # The quartiles of FEW are 1.5 and 6; all its ratios are 0.5.
        (FEW, "<= 6", estimate.HELD),
        (FEW, "<= 2", estimate.UNDECIDED),
        (FEW, "<= 1.5", estimate.UNDECIDED),
        (FEW, "<= 1.4", estimate.MISSED),
        (FEW, ">= 1.5", estimate.HELD),
        (FEW, ">= 2.5", estimate.UNDECIDED),
        (FEW, ">= 6.1", estimate.MISSED),
        (FEW, "<= 0.5 of theirs", estimate.HELD),
        (FEW, "<= 0.4 of theirs", estimate.MISSED),
        (FEW, "<= 6 and <= 0.5 of theirs", estimate.HELD),
        (FEW, "<= 2 and <= 0.5 of theirs", estimate.UNDECIDED),
        (FEW, "<= 2 and <= 0.4 of theirs", estimate.MISSED),
        (FEW, "<= 1 of nobody's", estimate.UNMEASURED),
        (MANY, "<= 0.9 of theirs", estimate.HELD),
        (MANY, "<= 0.85 of theirs", estimate.UNDECIDED),
        (MANY, "<= 0.55 of theirs", estimate.UNDECIDED),
        (MANY, "<= 0.45 of theirs", estimate.MISSED),
        (MANY, "<= 8", estimate.HELD),
        (MANY, "<= 5.5", estimate.MISSED),
    ],
)
def test_a_bound_is_held_or_missed_or_undecided(values: dict[str, list[float]], bound: str, verdict: str) -> None:
    """A bound is compared with the interval of the paired ratios or, without interval, the quartiles of rounds."""
    found = sheet_of(values, bound)
    (row,) = [row for row in found["results"] if row["contender"] == "ours"]
    assert row["verdict"] == verdict
    assert row["holds"] is {estimate.HELD: True, estimate.MISSED: False}.get(verdict)
    for word, shown in ((estimate.MISSED, "  MISSED"), (estimate.UNDECIDED, "  undecided")):
        assert len(table.bounds(found, word)) == (verdict == word)
        assert (
            (shown in table.text(found, 200)) == (verdict == word) == (f"{bound}{shown}" in unescape(page.html(found)))
        )
    assert command.missed_limits(Namespace(subcommand="direct"), found) == (verdict == estimate.MISSED)


def test_what_is_undecided_is_named_with_its_interval(capsys: Any) -> None:
    assert not command.missed_limits(Namespace(subcommand="direct"), sheet_of(MANY, "<= 0.6 of theirs"))
    line = "gets: a get: ours: undecided: <= 0.6 of theirs: 0.700 (0.500 .. 0.900)\n"
    assert capsys.readouterr().err == line


def test_reads_over_verbs_say_that_perftest_is_absent(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(os.environ, "PATH", "")
    record = Record("direct", [], "asked")
    from rmemcached.bench import direct

    assert not direct.beside_perftest(record)
    whole = Record("direct", [], "asked")
    for _ in range(2):
        whole.add(record.measured())
    assert whole.document["notes"] == record.document["notes"]
    assert "ib_read_lat is not in PATH (apt-get install perftest)" in capsys.readouterr().err
    assert len(record.document["notes"]) == 1
