"""The tests of the data path over a real libibverbs device: Soft-RoCE, in a machine of its own (script/vm).

They need root on Debian or Ubuntu. Elsewhere they are skipped with the reason; in continuous integration (CI is set) a
skip is a failure.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_selection import CHOSEN, LEFT_OUT, has_selected
from guest_tools import PYTEST

ROOT = Path(__file__).resolve().parents[2]
CANNOT = 126  # exit status of script/vm
SECONDS = 1800  # for boot, tests and shutdown; an idle machine takes a third, and script/test runs other tests beside
# The tests of each guest. guest_selection.py selects from folders with the host's tests.
PATHS = [f"tests/system/{name}.py" for name in (*LEFT_OUT, *CHOSEN)]
SYSTEM = {path for path in PATHS if has_selected(ROOT / path)}
OF_THREADS = {"tests/system/test_load.py", "tests/system/test_moving.py"}
VERBS_OF_THREADS = [f"tests/verbs/{name}.py" for name in ("test_events", "test_objects", "test_progress_thread")]
GUESTS = {
    # First the tests that count all objects of the device: nothing else may use the device then.
    "devices and clients": [
        *("tests/lab/guest_events.py", "tests/lab/guest_cm.py", "tests/lab/guest.py", "tests/client"),
    ],
    "verbs and daemon": [
        *("tests/perftest", *sorted(SYSTEM - OF_THREADS), "tests/verbs"),
        *(f"--ignore={path}" for path in VERBS_OF_THREADS),
        *("tests/lab/guest_memlock.py", "tests/lab/guest_doctor.py", "tests/lab/guest_ktls.py"),
    ],
    "threads": [*sorted(OF_THREADS), *VERBS_OF_THREADS],
}
# The guest with tests of threads has two processors. The other guests have equal work, and run side by side with a
# processor each: this emulation is the fastest, because no instruction has to be atomic.
PROCESSORS = {"threads": 2}


def command(*arguments: str, **environment: str) -> list[str]:
    """The command line of script/vm."""
    passed_on = [word for name in ("RMEMCACHED_TEST_LAB", *environment) for word in ("--environment", name)]
    return [sys.executable, str(ROOT / "script" / "vm"), "-t", str(SECONDS), *passed_on, *arguments]


def check(status: int, printed: str) -> None:
    """Skips the test where there can be no guest."""
    if status == CANNOT and "CI" not in os.environ:
        pytest.skip(printed.strip())
    assert status == 0, printed


class Guest:
    """A guest whose tests run over an RDMA device of libibverbs, beside other tests of the session."""

    def __init__(self, name: str) -> None:
        environment = {"RMEMCACHED_TEST_TRANSPORT": "verbs", "RMEMCACHED_TEST_PACE": "10"}
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  (closed by end)
        self.process = subprocess.Popen(
            command("-j", str(PROCESSORS.get(name, 1)), *PYTEST, *GUESTS[name], **environment),
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def result(self) -> tuple[int, str]:
        """Waits for the end. Returns the exit status and the output."""
        status = self.process.wait()
        self.output.seek(0)
        return status, self.output.read().decode(errors="replace")

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.output.close()


@pytest.fixture(scope="module")
def guests(request: pytest.FixtureRequest) -> Iterator[dict[str, Guest]]:
    """The guests with a single processor for the session's tests; a test of the remaining guest starts its own."""
    params = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    wanted = {spec.params["name"] for spec in params if spec is not None}
    started = {name: Guest(name) for name in GUESTS if name in wanted and name not in PROCESSORS}
    yield started
    for guest in started.values():
        guest.end()


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("name", GUESTS)
def test_over_soft_roce(guests: dict[str, Guest], name: str) -> None:
    """The bodies of the host's tests pass for the verbs layer, the clients and the daemon."""
    if name not in guests:
        guests[name] = Guest(name)
    status, printed = guests[name].result()
    check(status, printed)
    assert " passed" in printed


@pytest.mark.timeout(SECONDS + 60)
def test_packets_cross_a_wire() -> None:
    """Two guests share an Ethernet segment: the daemon in the first, its clients in the second."""
    crossing = f"{shlex.quote(sys.executable)} -P tests/lab/crossing.py"
    done = subprocess.run(
        command("-m", "1024", "-j", "1", "--peer", f"{crossing} serve", "-c", f"{crossing} use"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    check(done.returncode, done.stdout)
    assert "both ways, with losses, and to its end" in done.stdout


def test_why_there_can_be_no_guest() -> None:
    """A single line, and a status of its own, report that there can be no guest."""
    # The program loads its modules before the privileges go: the interpreter may be in root's home.
    script = (
        "import __future__, argparse, fcntl, lzma, pathlib, shlex, shutil, signal, subprocess, tempfile, threading;"
        f"import os; source = open({str(ROOT / 'script' / 'vm')!r}).read(); os.geteuid() or os.setuid(65534);"
        " import sys; sys.argv = ['vm', 'true']; exec(compile(source, 'vm', 'exec'), {'__name__': '__main__'})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == CANNOT
    assert done.stderr == "vm: root is needed: the guest's root file system is this machine's\n"
