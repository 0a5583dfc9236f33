"""soft_iw and the Linux kernel's siw as peers, in a machine with siw (script/build-siw, script/vm).

Needs root on Debian. Elsewhere the test is skipped with the reason; in continuous integration (CI is set) a skip is a
failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 126  # exit status of script/build-siw and script/vm


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == CANNOT and "CI" not in os.environ:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(900)
def test_soft_iw_and_siw() -> None:
    module = run(str(ROOT / "script" / "build-siw")).split()[-1]
    machine = (sys.executable, str(ROOT / "script" / "vm"), "-t", "600", "--driver", "siw", "--module", module)
    pytest_run = (sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    paths = (
        "-o",
        "pythonpath=tests/verbs tests/lab tests/system",
        "tests/lab/siw_guest.py",
        "tests/lab/siw_cm.py",
        "tests/lab/siw_figures.py",
    )
    assert " passed" in run(*machine, *pytest_run, *paths)
