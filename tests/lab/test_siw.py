"""soft_iw and the Linux kernel's siw as peers, in a machine with siw (script/build-siw, script/vm).

The test needs root on Debian. Elsewhere the test is skipped with the reason; in continuous integration (CI is set) a
skip is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guest_selection import ALL
from guest_tools import PYTEST

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 126  # exit status of script/build-siw and script/vm


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == CANNOT and "CI" not in os.environ:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(1500)
def test_soft_iw_and_siw() -> None:
    module = run(str(ROOT / "script" / "build-siw")).split()[-1]
    machine = (sys.executable, str(ROOT / "script" / "vm"), "-t", "1200", "--driver", "siw", "--module", module)
    # The programs of figures take longer than the other tests together, and have two processors. Without them a single
    # processor is enough, whose emulation is the fastest.
    files = ["siw_guest", "siw_cm", *(["siw_figures"] if ALL else [])]
    options = ("-j", "2" if ALL else "1", "--environment", "RMEMCACHED_TEST_LAB")
    assert " passed" in run(*machine, *options, *PYTEST, *(f"tests/lab/{name}.py" for name in files))
