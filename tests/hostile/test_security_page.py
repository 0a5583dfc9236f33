"""docs/security.md: the named tests, statistics and options exist, and the figures are those of tests and code."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rmemcached.cli import descriptors_needed
from rmemcached.options import EXTENDED, OPTIONS
from rmemcached.settings import Settings
from rmemcached.usage import usage

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "security.md"
HEAD = "| what a peer can spend | limit | option | shown by | test |"
CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A row of the table: a limit."""

    what: str
    limit: str
    option: str
    shown: str
    test: str


UNITS = {"": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
FIGURE = re.compile(r"(?<![\w.])(\d+)(?: (KB|MB|GB)\b)?")
# Texts about memory of the kernel, for which the daemon sets no limit.
KERNEL = {
    "and 2 MB of page tables for each GB",
    "each a mapping (VMA) and up to 4 KB of page table, however small: 64 MB",
}
# Constants with the figures of a row, where neither its tests nor the defaults of its options have them.
CONSTANTS = {
    "new connections in a turn of a worker": ["HANDOVERS_PER_TURN"],
    "memory of a connection with an unfinished command": ["FIRST_BUFFER"],
    "memory of replies that are not read": ["MAX_PENDING_RESPS", "MAX_PENDING_BYTES"],
    "keys of one `get` in a turn": ["KEYS_PER_COMMAND"],
    "bytes of large values in a turn": ["TURN_BYTES", "TURN_LEAST"],
    "a line without end": ["LINE_MAX_LENGTH"],
    "datagrams": ["DATAGRAMS_PER_TURN"],
    "watchers": ["WATCHER_LIMIT"],
    "authentications by SASL (`-S`)": ["SASL_DATA_MAX"],
    "`stats cachedump`, `stats detail dump`": ["CACHEDUMP_MAX"],
    "the same for one queue pair": ["PAIR_REGIONS"],
    "time for an offer": ["SHM_SLICE"],
    "page tables and mappings of small regions": ["PEER_REGIONS"],
    "frames, records and messages in one turn": ["TURN_WORK", "SHARE_MIN", "WORK_FPDU"],
    "offers in one turn": ["TURN_WORK // WORK_OFFER"],
    "frames in one turn": ["TURN_WORK", "WORK_FPDU"],
    "descriptors that it passes": ["SHM_FDS", "CLOSER_MANY", "CLOSER_STUCK // 1000000"],
    "last references to memory": [
        "CLOSER_SMALL",
        "CLOSER_EACH",
        "CLOSER_FEW",
        "CLOSER_MANY",
        "CLOSER_PIECE",
    ],
    "descriptors": ["SPARE_DESCRIPTORS"],
    "memory for what has come of a frame": ["RX_BUFFER", "RX_BUFFER_CRC"],
    "streams of other clients' queue pairs": ["RDMA_TOKEN_LENGTH - 4"],  # the rest is a worker's number
    "memory of completions that wait for their turn": ["KEPT_BYTES", "SEND_DEPTH + 1"],
    "lanes of a queue pair that ends": ["LANES_PER_TURN", "DROPPED_PER_TURN"],
    "memory of a lane": [],
    "lanes that do not read": ["RDMA_LANE_BYTES", "LANE_INPUT_MAX"],
    "replies that wait": ["MAX_PENDING_BYTES"],
    "commands of a queue pair before others have their turn": ["TURN_QUANTA", "TURN_COMPLETIONS"],
    "commands and completions of all queue pairs on a device in a turn": ["TURN_QUANTA_ALL"],
    "octets of values and messages in a turn, on the software devices": ["TURN_WORK", "PROGRESS_BATCH", "TCP_BATCH"],
    "memory of encrypted replies that are not read": ["TLS_RECORD"],
    "records of a session in a turn": ["RECORDS_IN"],
    "renewals of keys, and attempts at renegotiation": ["RENEWALS"],
    "items that READs and WRITEs of a queue pair refer to": ["BULK_DEPTH"],
}
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: operator.lshift,
}


def rows() -> list[Row]:
    found = []
    for table in PAGE.read_text().split(HEAD)[1:]:
        for line in table.strip().splitlines()[1:]:
            if not line.startswith("|"):
                break
            found.append(Row(*(cell.strip() for cell in line.strip().strip("|").split("|"))))
    return found


ROWS = rows()


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def case_name(call: ast.Call) -> str | None:
    """The first argument of a call Case(...), else None."""
    if isinstance(call.func, ast.Name) and call.func.id == "Case" and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value)
    return None


def cases(file: Path) -> set[str]:
    """The names of the table of cases."""
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return {name for call in calls if (name := case_name(call)) is not None}


def test_there_are_limits() -> None:
    assert len(ROWS) >= 10
    assert PAGE.read_text().count(HEAD) >= 2


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_every_limit_has_a_test(row: Row) -> None:
    """Each limit names tests: FILE::FUNCTION, or FILE::FUNCTION[CASE] of a table of cases."""
    assert row.limit
    tests = CODE.findall(row.test)
    assert tests
    for name in tests:
        match = re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)(?:\[([^\]]+)\])?", name)
        assert match, f"{name} is not of the form tests/FILE.py::test_NAME[CASE]"
        file = ROOT / match[1]
        assert match[2] in functions(file), name
        assert match[3] is None or match[3] in cases(file), name


def test_every_statistic_exists() -> None:
    printed = {
        name
        for file in (*(ROOT / "rmemcached").rglob("*stats*.pyx"), ROOT / "rmemcached/rdma/transport.pyx")
        for name in re.findall(r'b"(\w+)"', file.read_text())
    }
    named = {word for row in ROWS for word in CODE.findall(row.shown)}
    assert named <= printed | {"stats rdma", "stats conns"}


def test_every_option_exists() -> None:
    """Each option on the page exists, with a line in -h."""
    words = [code.split() for code in CODE.findall(PAGE.read_text()) if code.startswith("-")]
    letters = {word[0][1:] for word in words} - {"o"}
    names = {word[1].partition("=")[0] for word in words if word[0] == "-o"}
    assert len(letters) > 10 and len(names) > 10
    assert letters <= OPTIONS.keys() and names <= EXTENDED.keys()
    assert not [letter for letter in letters if not re.search(rf"^-{letter}\b", usage(), re.MULTILINE)]
    assert not [name for name in names if not re.search(rf"(?<!\w){name}\b", usage())]


def evaluated(node: ast.AST, named: Callable[[str], int | None]) -> int | None:
    """The value of a constant expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if isinstance(node, ast.Name):
        return named(node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = evaluated(node.left, named), evaluated(node.right, named)
        return None if left is None or right is None else OPERATORS[type(node.op)](left, right)
    return None


@functools.cache
def in_code(text: str) -> int:
    """The value of an expression with constants of the code."""
    if text.isidentifier():
        sources = (path.read_text() for path in (ROOT / "rmemcached").rglob("*.p[xy][dx]"))
        line = re.compile(rf"^    {text} = ([^#\n]+?) *(?:#.*)?$", re.MULTILINE)
        meanings = {match for source in sources for match in line.findall(source)}
        assert len(meanings) == 1, f"{text}: {meanings}"
        (text,) = meanings
    value = evaluated(ast.parse(text, mode="eval").body, in_code)
    assert value is not None, text
    return value


def figures_of_test(name: str) -> set[int]:
    """The numbers in a test, or in its case, including numbers in strings and values of constant expressions."""
    match = re.fullmatch(r"(.+)::(\w+)(?:\[(.+)\])?", name)
    assert match
    found = set()
    names = {unit: size for unit, size in UNITS.items() if unit}
    for statement in ast.parse((ROOT / match[1]).read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            value = evaluated(statement.value, names.get)
            if value is not None:
                names[statement.targets[0].id] = value
        wanted = match[3] is None and isinstance(statement, ast.FunctionDef) and statement.name == match[2]
        roots: list[ast.AST] = [statement] if wanted else []
        if match[3] is not None:
            roots += [
                node for node in ast.walk(statement) if isinstance(node, ast.Call) and case_name(node) == match[3]
            ]
        for node in (node for root in roots for node in ast.walk(root)):
            value = evaluated(node, names.get)
            if value is not None:
                found.add(value)
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                found |= {int(number) for number in re.findall(r"\d+", str(node.value))}
    return found


def defaults(row: Row) -> set[int]:
    """The numbers in brackets in -h behind the options of a row."""
    found: set[int] = set()
    for code in CODE.findall(row.option):
        start = rf"[^\n]*\b{code[3:]}=" if code.startswith("-o ") else re.escape(code)
        for entry in re.findall(rf"^ *{start}[^\n]*(?:\n {{20,}}[^\n]*)*", usage(), re.MULTILINE):
            found |= {
                int(number) for usual in re.findall(r"\[([^\]]*)\]", entry) for number in re.findall(r"\d+", usual)
            }
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_figures_are_those_of_tests_and_code(row: Row) -> None:
    limit = row.limit
    for text in KERNEL:
        limit = limit.replace(text, "")
    stated = {(int(number), unit): int(number) * UNITS[unit] for number, unit in FIGURE.findall(CODE.sub("", limit))}
    named = {text: in_code(text) for text in CONSTANTS.get(row.what, [])}
    assert set(named.values()) <= set(stated.values()), f"{named} is not what the page says"
    known = {value for name in CODE.findall(row.test) for value in figures_of_test(name)} | set(named.values())
    usual = defaults(row)
    unknown = [
        f"{number} {unit}" for (number, unit), value in stated.items() if value not in known and number not in usual
    ]
    assert not unknown, f"neither in {row.test} nor a default of {row.option} nor in CONSTANTS"


def test_constants_are_of_rows() -> None:
    assert CONSTANTS.keys() <= {row.what for row in ROWS}
    assert all(text in PAGE.read_text() for text in KERNEL)


def test_the_descriptors_that_the_daemon_wants() -> None:
    assert f"it wants {descriptors_needed(Settings())}." in PAGE.read_text()
