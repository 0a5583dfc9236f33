"""The tests of the data path over a real libibverbs device: Soft-RoCE, in a machine of its own (script/vm).

They need root on Debian or Ubuntu. Elsewhere they are skipped with the reason; in continuous integration (CI is set)
that is a failure.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 126  # exit status of script/vm
SECONDS = 600  # for boot, tests and shutdown
# Of tests/system: bodies that are not about iWARP's stream.
SYSTEM = {
    "hostile_exchange": "values missing unknown_version tokens keys_are_ignored long_lines second_exchange"
    " after_a_wrong inside_a_stream lifeline quit too_many fuzzed_lines",
    "interop": "by_rdma by_tcp around chained",
}


def run_vm(*arguments: str, **environment: str) -> str:
    """Runs script/vm; returns what the guest printed. Skips the test where there can be no guest."""
    command = [sys.executable, str(ROOT / "script" / "vm"), "-t", str(SECONDS)]
    for name in environment:
        command += ["--environment", name]
    done = subprocess.run(
        [*command, *arguments],
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


def in_guest(*arguments: str) -> None:
    """Runs the tests that `arguments` select over an RDMA device of libibverbs."""
    pytest_command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    printed = run_vm(
        *pytest_command,
        *("-o", "pythonpath=tests/system"),
        *arguments,
        RMEMCACHED_TEST_TRANSPORT="verbs",
        RMEMCACHED_TEST_PACE="10",
    )
    assert " passed" in printed


@pytest.mark.timeout(400)
def test_verbs_and_the_daemon_over_soft_roce() -> None:
    in_guest("tests/verbs", "tests/lab/guest.py")


@pytest.mark.timeout(400)
def test_clients_over_soft_roce() -> None:
    in_guest("tests/client", "-k", "verbs")


@pytest.mark.timeout(400)
def test_system_over_soft_roce() -> None:
    chosen = [f"(test_{file} and ({' or '.join(names.split())}))" for file, names in SYSTEM.items()]
    in_guest(*(f"tests/system/test_{file}.py" for file in SYSTEM), "-k", " or ".join(chosen))


@pytest.mark.timeout(400)
def test_mishaps_of_soft_roce() -> None:
    in_guest("tests/lab/guest_events.py")


@pytest.mark.timeout(660)
def test_rdma_cm_over_soft_roce() -> None:
    in_guest("tests/lab/guest_cm.py")


@pytest.mark.timeout(400)
def test_packets_cross_a_wire() -> None:
    """Two guests on one Ethernet segment: the daemon in one, its clients in the other."""
    crossing = f"{shlex.quote(sys.executable)} -P tests/lab/crossing.py"
    assert "both ways, and with losses" in run_vm("-m", "1024", "--peer", f"{crossing} serve", "-c", f"{crossing} use")


def test_why_there_can_be_no_guest() -> None:
    """One line, and a status of its own."""
    # Loaded before the privileges go: the interpreter may be in root's home.
    script = (
        "import __future__, argparse, fcntl, lzma, pathlib, shlex, shutil, signal, subprocess, tempfile, threading;"
        f"import os; source = open({str(ROOT / 'script' / 'vm')!r}).read(); os.geteuid() or os.setuid(65534);"
        " import sys; sys.argv = ['vm', 'true']; exec(compile(source, 'vm', 'exec'), {'__name__': '__main__'})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == CANNOT
    assert done.stderr == "vm: root is needed: the guest's root file system is this machine's\n"
