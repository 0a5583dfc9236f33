"""The debug build's own checks find their faults. Any other build has no checks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live import left_behind
from servers import Server, free_port

from rmemcached.store._testing import Store
from rmemcached.sys.debug import debug_build, live_objects

FOREIGN_THREAD = """
import socket, threading
from rmemcached.perftest.ends import End
ours, theirs = socket.socketpair()
end = End("soft_shm0", control=ours.fileno(), size=64)
end.add()
end.prepare_test("send", 64, total=1)
theirs.close()
print(end.run("serve"), flush=True)
threading.Thread(target=lambda: print(end.run("serve"))).start()
"""

# A process with a daemon, and with a store besides the daemon's that nobody frees.
LEAKING_DAEMON = """
import sys
from rmemcached.cli import main
from rmemcached.store._testing import Store
store = Store()
sys.exit(main(sys.argv[1:]))
"""


def test_live_objects_are_counted() -> None:
    before = live_objects()
    store = Store()
    found = left_behind(before, 0)
    store.close()
    assert found == ("1 stores" if debug_build else "")
    assert left_behind(before, 0) == ""


def test_another_thread_than_the_owner_is_found() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FOREIGN_THREAD], capture_output=True, text=True, check=False)
    if debug_build:
        assert (done.returncode, done.stdout) == (-signal.SIGABRT, "-1\n")
        assert "ends.pyx:" in done.stderr and "not called by the thread that owns" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (0, "-1\n-1\n", "")


def test_daemon_that_leaves_something_behind_is_found(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", LEAKING_DAEMON, "-p", str(free_port()), "-U", "0", "-l", "127.0.0.1"]
    user = ["-u", "root"] if os.geteuid() == 0 else []
    server = Server([*command, *user], int(command[5]))
    assert server.stop() == (os.EX_SOFTWARE if debug_build else 0)
    assert server.ended_well() != debug_build
    assert server.stderr() == ("left behind: 1 stores\n" if debug_build else "")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_daemon_that_leaves_nothing_behind(how: int, rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server()
    server.stop(how)
    assert server.ended_well()
