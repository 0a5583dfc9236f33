"""docs/security.md: every limit that it states names a test that exists, and every statistic that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "security.md"
HEAD = "| what a peer can spend | limit | option | shown by | test |"
CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A limit."""

    what: str
    limit: str
    option: str
    shown: str
    test: str


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


def cases(file: Path) -> set[str]:
    """The names of the table of cases: the first argument of each Case(...)."""
    return {
        str(node.args[0].value)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Case"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }


def test_there_are_limits() -> None:
    assert len(ROWS) >= 10
    assert PAGE.read_text().count(HEAD) >= 2


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_every_limit_has_a_test(row: Row) -> None:
    """FILE::FUNCTION, or FILE::FUNCTION[CASE] where the function runs a table of cases."""
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
        for file in (ROOT / "rmemcached").rglob("*stats*.pyx")
        for name in re.findall(r'b"(\w+)"', file.read_text())
    }
    named = {word for row in ROWS for word in CODE.findall(row.shown)}
    assert named <= printed | {"stats rdma", "stats conns"}
