"""rmemcached-bench says how much CPU others use meanwhile."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_runs import BUSY_NOTE, measured, run, unwrapped
from daemon_tools import eventually

from rmemcached.bench import foreign
from rmemcached.bench.processes import adopting

SHORT = "throughput --contenders tcp --keys 100 --seconds 0.3 --depths 16 --rounds 2"
SPIN = "while True: pass"
# A program that starts a spinning process, and ends before its child.
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SPIN!r}])"


@contextlib.contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SPIN]) as process:
        try:
            yield process
        finally:
            process.kill()


def used(process: int) -> float:
    return sum(map(int, foreign.numbers(process)[11:13])) / foreign.TICKS


def test_a_spinning_process_is_noted(tmp_path: Path) -> None:
    with spinning():
        figures, text, _ = measured(tmp_path, *SHORT.split())
    (note,) = [note for note in figures["notes"] if note.startswith(BUSY_NOTE)]
    assert note in unwrapped(text) and note in (tmp_path / "out.html").read_text()
    assert " % of a core in 2 of 2 rounds: " in note
    assert len(figures["other_cpu"]) == 2 and min(figures["other_cpu"]) > foreign.NOTED


def test_it_is_said_on_stderr() -> None:
    with spinning():
        done = run(*SHORT.split())
    assert [line.startswith(BUSY_NOTE) for line in done.stderr.splitlines()] == [True]


def test_what_this_process_has_started_is_its_own() -> None:
    """The time of a child counts as own time, during its life and after its end."""
    before = foreign.own_seconds()
    with spinning() as process:
        eventually(lambda: used(process.pid) > 0.3)
        assert foreign.own_seconds() - before > 0.3
    assert foreign.own_seconds() - before > 0.3


def test_what_is_adopted_is_its_own() -> None:
    """The time of an adopted process, such as strace -D after its parent's end, counts as own time."""
    with adopting() as kill_adopted:
        before = foreign.own_seconds()
        subprocess.run([sys.executable, "-c", PARENT], check=True)
        try:
            eventually(lambda: foreign.own_seconds() - before > 0.5)
        finally:
            kill_adopted()


def test_the_cores_are_busy_with_what_spins() -> None:
    cores = os.sched_getaffinity(0)
    before = foreign.busy_seconds(cores)
    with spinning() as process:
        eventually(lambda: used(process.pid) > 0.5)
        assert foreign.busy_seconds(cores) - before > 0.25, "ticks are a sample"
    assert foreign.busy_seconds(set()) == 0


@pytest.mark.parametrize(
    "rounds, said",
    [
        ([], ""),
        ([0.0, 0.1], ""),
        ([0.0, 0.11], "up to 11 % of a core in 1 of 2 rounds"),
        ([1.5, 0.3, 0.2], "up to 150 % of a core in 3 of 3 rounds"),
    ],
)
def test_the_note_has_the_most_and_how_often(rounds: list[float], said: str) -> None:
    assert said in foreign.note(rounds) and bool(said) == bool(foreign.note(rounds))
    assert not said or foreign.note(rounds).startswith(BUSY_NOTE)
