"""Options of pytest: several pytests share the tests, only the quick part runs, or only the tests that failed before.

tests/durations.tsv has the mean seconds of the cases of a test, and leaves out the shortest tests.
"""

from __future__ import annotations

import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from zlib import crc32

import pytest

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "durations.tsv"
NOTED = ROOT / "build" / "test" / "durations.tsv"
LEAST = 0.2  # seconds of a case: shorter tests are not in the table
SHORT = 0.06  # seconds of a case missing from the table
ALLOWANCE = 0.15  # seconds of all cases of a test in the quick part


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("turns")
    add = group.addoption
    add("--beside", metavar="FOLDER", help="take files in turns with all pytests with this folder, new for each run")
    add("--quick", action="store_true", help=f"of each test the cases that take {ALLOWANCE} s together, at most")
    add("--failures", metavar="FILE", type=Path, help="note failed tests there; if FILE exists, run its tests alone")
    add("--note-durations", action="store_true", help=f"note how long tests take, in {NOTED.relative_to(ROOT)}")


def test_of(node: str) -> str:
    """The test of a case."""
    return node.partition("[")[0]


def read(path: Path) -> dict[str, float]:
    """The mean seconds of a case of each test."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {test: float(seconds) for test, _, seconds in (line.partition("\t") for line in lines)}


def known() -> dict[str, float]:
    """The durations noted on this machine, and the table's for tests without."""
    return read(TABLE) | read(NOTED)


def quick(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """The cases of the quick part: drawn at random, and the same each time."""
    durations = known()
    spent: defaultdict[str, float] = defaultdict(float)
    chosen = set()
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        test = test_of(item.nodeid)
        seconds = durations.get(test, SHORT)
        if spent[test] + seconds <= ALLOWANCE:
            spent[test] += seconds
            chosen.add(item)
    return chosen


def files(items: Sequence[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each file, the longest first."""
    durations = known()
    found = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    return sorted(found, key=lambda tests: -sum(durations.get(test_of(item.nodeid), SHORT) for item in tests))


def in_turns(items: Sequence[pytest.Item], folder: Path) -> Iterator[pytest.Item]:
    """The tests of files not taken yet. A taken file has an empty file of its name in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for tests in files(items):
        taken = folder / str(tests[0].path.relative_to(ROOT)).replace("/", ",")
        try:
            taken.touch(exist_ok=False)
        except FileExistsError:
            continue
        yield from tests


class Quick:
    """Leaves out all but the quick part."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        chosen = quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


class Turns:
    """Runs the tests of the files taken by this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None
        items = in_turns(session.items, self.folder)
        # Each test is run with the next test as an argument: pytest then keeps the fixtures that both share.
        item = next(items, None)
        while item is not None:
            following = next(items, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True


class Failures:
    """Notes the failed tests of this run in a file, a line for each. If the file exists, only its tests run."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.wanted = file.read_text().splitlines() if file.exists() else None
        self.failed: dict[str, None] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self.wanted is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self.wanted])
            items[:] = [item for item in items if item.nodeid in self.wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = None

    def pytest_sessionfinish(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{node}\n" for node in self.failed))


class Durations:
    """Notes how long the tests of this run take."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        cases: defaultdict[str, list[float]] = defaultdict(list)
        for node, seconds in self.seconds.items():
            cases[test_of(node)].append(seconds)
        means = {test: sum(found) / len(found) for test, found in cases.items()}
        NOTED.parent.mkdir(parents=True, exist_ok=True)
        with open(NOTED, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            kept = {test: mean for test, mean in (read(NOTED) | means).items() if mean >= LEAST}
            os.ftruncate(file.fileno(), 0)
            file.writelines(f"{test}\t{mean:.2f}\n" for test, mean in sorted(kept.items()))


def register(config: pytest.Config) -> None:
    """Registers the plugins for the given options. tests/conftest.py calls this function."""
    if config.option.quick:
        config.pluginmanager.register(Quick())
    if config.option.beside:
        config.pluginmanager.register(Turns(Path(config.option.beside).resolve()))
    again = config.option.failures and config.option.failures.exists()
    if config.option.failures:
        config.pluginmanager.register(Failures(config.option.failures))
    if config.option.note_durations and not again:
        config.pluginmanager.register(Durations())
