"""script/test runs failed tests once more: the failures of this run, not of earlier runs (tests/shared/turns.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHARED = Path(__file__).parent / "shared"
CONFTEST = f"""
import sys

sys.path.insert(0, {str(SHARED)!r})
import turns

pytest_addoption = turns.add_options
pytest_configure = turns.register
"""
TESTS = "def test_one(): assert False\ndef test_two(): assert False\ndef test_right(): pass\n"


def run(folder: Path, *arguments: str) -> str:
    """Runs pytest on the tests of a folder, and returns its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60).stdout.splitlines()[-1]


def test_failures_are_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    assert "2 failed, 1 passed" in run(tmp_path)
    noted = ("--failures", "build/failed")
    failed = tmp_path / "build/failed"
    assert "1 failed" in run(tmp_path, "-k", "two", *noted)
    assert failed.read_text() == "test_it.py::test_two\n"
    assert "1 failed, 2 deselected" in run(tmp_path, *noted)
    failed.unlink()
    assert "2 failed" in run(tmp_path, "--last-failed", *noted)
    assert failed.read_text() == "test_it.py::test_one\ntest_it.py::test_two\n"
