"""The cases of pytest-benchmark run."""

from __future__ import annotations

import sys

from program import run_program


def test_pytest_benchmark_cases() -> None:
    words = ["-m", "pytest", "-q", "--benchmark-disable", "-p", "no:cacheprovider", "bench"]
    done = run_program([sys.executable, "-P", *words], 170)
    assert done.returncode == 0, done.stdout
    assert "60 passed" in done.stdout
