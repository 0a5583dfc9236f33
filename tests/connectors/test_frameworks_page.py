"""The code of docs/frameworks.md. script/torch-suite runs the code of PyTorch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers import Server

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
BLOCKS = re.findall(r"^## ([^\n]*)\n.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = [(title, code) for title, code in BLOCKS if title != "PyTorch"]


def test_each_framework_has_an_example() -> None:
    assert len(BLOCKS) == len(re.findall(r"^## ", PAGE, re.MULTILINE)) - 1 == len(EXAMPLES) + 1


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title.rpartition(" ")[2] for title, _ in EXAMPLES])
def test_an_example(module_rmemcached: Server, title: str, code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code.replace("11211", str(module_rmemcached.port))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), title
