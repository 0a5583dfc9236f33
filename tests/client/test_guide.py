"""The code of docs/client.md."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Server

GUIDE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
TASKS = re.findall(r"^## (\d+)\. (.*?)\n.*?```python\n(.*?)```", GUIDE, re.MULTILINE | re.DOTALL)


def test_each_task_has_code() -> None:
    headings = re.findall(r"^## (\d+)\. ", GUIDE, re.MULTILINE)
    assert [number for number, _, _ in TASKS] == headings == [f"{number + 1}" for number in range(len(TASKS))]


@pytest.mark.parametrize(("number", "title", "code"), TASKS, ids=lambda word: word if word.isdigit() else "")
def test_a_task(rmemcached_server: Callable[..., Server], number: str, title: str, code: str) -> None:
    server = rmemcached_server("-I", "4m", "-o", "no_lru_maintainer")
    code = code.replace("11211", str(server.port))
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), title
    for printed, expected in zip(done.stdout.splitlines(), re.findall(r"print\(\w+\)  # (.*)", code), strict=False):
        if "as many" not in expected:
            assert printed == expected


def test_the_reference_is_that_of_the_docstrings() -> None:
    command = [sys.executable, "script/api-reference", "--check"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
