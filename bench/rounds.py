"""Rounds in processes of their own, with servers and clients of their own.

The place of a process's memory makes the process faster or slower for its whole life: the same build differs by
5 to 30 % from start to start. Repeated measurements in the same processes repeat this difference, and feign certainty.
So each round is a new process, which starts all servers and helpers anew, and a round is the unit of all statistics.

The process (one_round.py) gets its orders on stdin, as JSON, and writes lines of JSON to the descriptor in the orders:
["step", finished part of the round, next step], and at the end ["done", its document], or ["wrong", one line].
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence

from rmemcached.bench import foreign
from rmemcached.bench.document import Document, Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.measure import Progress, Round
from rmemcached.bench.processes import adopting, uninterrupted


def draw_seed() -> int:
    """A random seed."""
    return int.from_bytes(os.urandom(4), "little")


def ended(process: subprocess.Popen[str]) -> int:
    """Waits for a round's process, which ends its servers first, even after a second Ctrl-C."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return process.wait()


def run_round(words: Sequence[str], now: Round, heard: Callable[[float, str], None]) -> Document:
    """Returns the document of a round of the command line `words`. Raises BenchError, ChildProcessError."""
    reader, writer = os.pipe()
    orders = {"words": list(words), "round": now.number, "turns": now.turns, "seed": now.seed}
    orders |= {"to": writer, "parent": os.getpid()}
    command = [sys.executable, "-P", "-m", "rmemcached.bench.one_round"]
    found: Document | None = None
    wrong = ""
    with open(reader) as lines, adopting() as kill_adopted:
        with uninterrupted():
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[writer], text=True)
        try:
            os.close(writer)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
                json.dump(orders, pipe)
            for line in lines:
                if not line.endswith("\n"):
                    break  # somebody has killed the process
                what, *rest = json.loads(line)
                if what == "step":
                    heard(*rest)
                elif what == "wrong":
                    wrong = rest[0]
                else:
                    found = rest[0]
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
        finally:
            # The pipe is closed first: the round's process ends when nobody reads its lines.
            lines.close()
            status = ended(process)
            kill_adopted()  # in case the round was killed
    if wrong:
        raise BenchError(wrong)
    if found is None:
        raise ChildProcessError(f"round {now.number} ended with status {status}; its output is above")
    return found


def measure(words: Sequence[str], rounds: int, turns: int, record: Record, alone: bool = True) -> None:
    """Measures all rounds of a subcommand, and adds them to the record. Raises BenchError, ChildProcessError.

    alone: the benchmark starts all its processes itself, so any other CPU use is a disturbance, reported by a note.
    """
    bar = Progress()
    others: list[float] = []
    try:
        for number in range(1, rounds + 1):
            now = Round(number, turns, record.document["seed"])

            def heard(part: float, what: str, number: int = number) -> None:
                bar.show((number - 1 + part) / rounds, what)

            with foreign.watched() as used:
                found = run_round(words, now, heard)
            record.add(found)
            others.append(used())
    finally:
        bar.end()
    if alone:
        record.document["other_cpu"] = [round(cores, 2) for cores in others]
        if text := foreign.note(others):
            record.announce(text)
