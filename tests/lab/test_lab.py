"""The tests of the data path over a real libibverbs device: Soft-RoCE, in a machine of its own (script/vm).

They need root on Debian or Ubuntu. Elsewhere they are skipped with the reason; in continuous integration (CI is set)
that is a failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 126  # exit status of script/vm


def in_guest(*arguments: str, seconds: int, **environment: str) -> str:
    """Runs the tests that `arguments` select in a guest with an RDMA device; returns what pytest printed."""
    command = [sys.executable, str(ROOT / "script" / "vm"), "-t", str(seconds)]
    for name in environment:
        command += ["--environment", name]
    command += [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "pythonpath=tests/system",
        *arguments,
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == CANNOT and "CI" not in os.environ:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.timeout(400)
def test_clients_over_soft_roce() -> None:
    printed = in_guest("tests/client", "-k", "verbs", seconds=380, RMEMCACHED_TEST_TRANSPORT="verbs")
    assert " passed" in printed


@pytest.mark.timeout(400)
def test_the_daemon_on_soft_roce() -> None:
    printed = in_guest("tests/lab/guest.py", seconds=380, RMEMCACHED_TEST_TRANSPORT="verbs")
    assert " passed" in printed
