"""Tools of the tests in a guest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = str(ROOT / "tests" / "client" / "reference.py")
# The command of pytest in a guest. The plugins without a use are off, because their imports take time.
PYTEST = (
    *(sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"),
    *("-p", "guest_selection", "-o", "pythonpath=tests/verbs tests/system tests/lab"),
)
SYSTEM_PYTHON = "/usr/bin/python3"  # the interpreter with pyverbs
DEVICE = "rxe0"
DEVICE_FILES = Path("/dev/infiniband")


@pytest.fixture(autouse=True)
def device_for_everybody() -> Iterator[None]:
    """Access for everybody, as by udev's rules, before and after each test of a module with this fixture."""
    for file in DEVICE_FILES.iterdir():
        file.chmod(0o666)
    yield
    for file in DEVICE_FILES.iterdir():
        file.chmod(0o666)


def run(*command: str, **environment: str) -> str:
    """Runs a command, which has to succeed. Returns its output."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def resources() -> dict[str, int]:
    """The kernel's list of the device's objects: queue pairs, completion queues, registrations, contexts, ..."""
    found = [entry for entry in json.loads(run("rdma", "-j", "resource", "show")) if entry["ifname"] == DEVICE]
    return {name: count for name, count in found[0].items() if name not in ("ifindex", "ifname")}
