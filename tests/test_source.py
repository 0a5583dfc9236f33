"""Style and types, checked as tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "cython-lint": ["cython-lint", "rmemcached", "client"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_linter_is_content(name: str) -> None:
    program, *arguments = CHECKS[name]
    module = {"cython-lint": "cython_lint.cython_lint"}.get(program, program)
    # cython-lint starts pycodestyle by name.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_are_of_readable_size() -> None:
    """One subject a file: nothing over 1200 lines."""
    patterns = ("rmemcached/**/*.p*", "client/**/*.p*", "bench/*.py", "tests/**/*.py")
    long = {
        str(path.relative_to(ROOT)): count
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.suffix in {".py", ".pyx", ".pxd", ".pxi"} and (count := len(path.read_text().splitlines())) > 1200
    }
    assert not long
