"""pyverbs is needed by two tools; its absence changes nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = "import sys; sys.modules['pyverbs'] = None; "


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", WITHOUT + script], capture_output=True, text=True, timeout=60)


def test_nothing_else_asks_for_pyverbs() -> None:
    """The daemon's command line, the client and the devices; their transports are in every other test."""
    done = run(
        "import rmemcached.cli, rmemcached.client, rmemcached.verbs, rmemcached.perftest;"
        " rmemcached.verbs.Context('soft_iw0').close(); sys.exit(rmemcached.cli.main(['-V']))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("memcached") or "rmemcached" in done.stdout
    importers = [
        path.name
        for folder in ("rmemcached", "client")
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyx", ".pxi") and "pyverbs" in path.read_text() and "import" in path.read_text()
    ]
    assert sorted(importers) == ["devices.py", "reference.py"]


def test_the_tools_say_what_they_lack() -> None:
    done = run("import rmemcached.devices; sys.exit(rmemcached.devices.main())")
    assert done.returncode == 1
    assert done.stderr.startswith("rmemcached-devices needs pyverbs") and done.stderr.count("\n") == 1
    done = run("import rmemcached.client.reference")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(
        "ModuleNotFoundError: No module named 'pyverbs"
    )
