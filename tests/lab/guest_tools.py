"""What the tests that run in a guest share."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = str(ROOT / "tests" / "client" / "reference.py")
SYSTEM_PYTHON = "/usr/bin/python3"  # the one that has pyverbs
DEVICE = "rxe0"


def run(*command: str, **environment: str) -> str:
    """Runs a command, which has to succeed. Returns what it printed."""
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
    """What the kernel says is made of the device: queue pairs, completion queues, registrations, contexts, ..."""
    found = [entry for entry in json.loads(run("rdma", "-j", "resource", "show")) if entry["ifname"] == DEVICE]
    return {name: count for name, count in found[0].items() if name not in ("ifindex", "ifname")}
