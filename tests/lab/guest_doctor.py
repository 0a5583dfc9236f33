"""rmemcached-doctor beside a device of the kernel, and the daemon under contrib/systemd's unit. Run by test_lab.py in
a guest, where systemd may start any service."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_tools import eventually
from guest_tools import DEVICE_FILES, ROOT, device_for_everybody, run  # noqa: F401
from servers import Server

ServerFactory = Callable[..., Server]

UNIT = "rmemcached.service"
WITHIN = 90.0
KB = 1 << 10
# The modules are loaded while still root: others may not be able to read their folder.
NOBODY = """
import dataclasses, encodings.idna, json, os, resource, sys
import rmemcached.client.transport._rdma
from rmemcached.tools.doctor import Examination
if int(sys.argv[2]):
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[2]), int(sys.argv[2])))
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
examination = Examination(sys.argv[1], 20, None)
examination.look()
print(json.dumps(dataclasses.asdict(examination.try_one("verbs"))))
"""


def verbs_for_nobody(server: Server, memory: int = 0) -> dict[str, Any]:
    place = server.place
    found: dict[str, Any] = json.loads(run(sys.executable, "-P", "-c", NOBODY, place, str(memory)))
    return found


def test_what_keeps_a_user_from_the_device(rmemcached_server: ServerFactory) -> None:
    """The doctor tells of too little locked memory and of missing permissions, until both are mended."""
    server = rmemcached_server("-m", "64")
    short = verbs_for_nobody(server, 64 * KB)
    assert short["state"] == "fails" and "ulimit -l is 64 KB" in short["why"] and "LimitMEMLOCK" in short["change"]
    uverbs = DEVICE_FILES / "uverbs0"
    uverbs.chmod(0o600)
    closed = verbs_for_nobody(server)
    assert closed["state"] == "fails" and f"read and write access to {uverbs}" in closed["change"], closed
    uverbs.chmod(0o666)
    assert verbs_for_nobody(server, 64 << 20)["state"] == "works"


@pytest.fixture
def in_systemd() -> Iterator[list[str]]:
    """The words before a command beside a systemd that runs the unit, with this interpreter as the program."""
    # This must be a guest: on the root file system of a real machine a started systemd empties /tmp, and starts the
    # services.
    mounts = Path("/proc/mounts").read_text().splitlines()
    assert Path("/run/vm/boot").exists() and any(line.startswith("overlay / overlay ") for line in mounts), "no guest"
    folder = Path("/run/systemd/system")
    (folder / f"{UNIT}.d").mkdir(parents=True)
    shutil.copy(ROOT / "contrib" / "systemd" / UNIT, folder)
    shutil.copy(ROOT / "contrib" / "systemd" / "rmemcached.default", "/etc/default/rmemcached")
    program = f"{sys.executable} -P -m rmemcached $OPTIONS -v"
    changes = ["[Unit]", "DefaultDependencies=no", "[Service]", "ProtectHome=no", "ExecStart=", f"ExecStart={program}"]
    changes += [f"Environment=PYTHONPATH={ROOT}", "StandardError=file:/run/daemon.log"]
    if ROOT.is_relative_to("/tmp"):
        # With a /tmp of its own, the unit would not find the daemon's modules, which are under /tmp.
        changes.append("PrivateTmp=no")
    (folder / f"{UNIT}.d" / "here.conf").write_text("\n".join(changes) + "\n")
    run(*shlex.split("useradd --system --user-group --no-create-home --shell /usr/sbin/nologin rmemcached"))
    for above in Path(sys.executable).resolve().parents:
        above.chmod(0o755)
    script = (
        "mkdir -p /sys/fs/cgroup; mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup;"
        f" exec env -i container=guest PATH=$PATH /lib/systemd/systemd --system --unit={UNIT}"
    )
    outer = subprocess.Popen(
        ["unshare", *["--mount", "--pid", "--fork", "--mount-proc", "--cgroup", "--kill-child", "sh", "-c"], script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
    eventually(lambda: children.read_text().split(), WITHIN)
    yield ["nsenter", "-t", children.read_text().split()[0], "--mount", "--pid"]
    outer.kill()
    outer.wait()


def test_the_unit(in_systemd: list[str]) -> None:
    """With the device, shared memory and all restrictions of the unit, the daemon serves, and reports so."""

    def shown(name: str) -> str:
        done = subprocess.run([*in_systemd, "systemctl", "show", "-P", name, UNIT], capture_output=True, text=True)
        return done.stdout.strip()

    eventually(lambda: shown("ActiveState") in ("active", "failed"), WITHIN)
    log = Path("/run/daemon.log")
    assert shown("ActiveState") == "active" and "RDMA: device rxe0" in log.read_text(), log.read_text()
    pid = shown("MainPID")
    document = json.loads(
        run(sys.executable, "-P", "-m", "rmemcached.tools.doctor", "--json", "--timeout", "20", "127.0.0.1")
    )
    assert document["taken"] == "verbs" and document["status"] == 0
    assert {one["transport"]: one["state"] for one in document["transports"]} == dict.fromkeys(
        ("verbs", "soft_shm", "soft_iw", "tcp"), "works"
    )
    run(*in_systemd, "systemctl", "reload", UNIT)
    assert (shown("MainPID"), shown("NRestarts")) == (pid, "0")
    run(*in_systemd, "systemctl", "stop", UNIT)
    assert shown("Result") == "success" and not os.path.exists("/run/rmemcached")
