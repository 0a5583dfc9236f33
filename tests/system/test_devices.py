"""The rest works without pyverbs, which two tools need, without libibverbs, and without a device."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_tools import Conversation
from servers import Server

from rmemcached import verbs
from rmemcached.option_values import UsageError
from rmemcached.options import parse
from rmemcached.server._testing import TRANSPORT_NAMES

ROOT = Path(__file__).resolve().parents[2]
# The beginning of a program: the program then finds no installed pyverbs.
WITHOUT = "import sys; " + ("sys.modules['pyverbs'] = None; " if importlib.util.find_spec("pyverbs") else "")

DEVICES = (sys.executable, "-P", "-m", "rmemcached.devices")


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", WITHOUT + script], capture_output=True, text=True, timeout=60)


def test_nothing_else_asks_for_pyverbs() -> None:
    """The daemon's command line, the client and the devices work without pyverbs, named in two files only."""
    done = run(
        "import rmemcached.cli, rmemcached.client, rmemcached.verbs, rmemcached.perftest;"
        " rmemcached.verbs.Context('soft_iw0').close(); sys.exit(rmemcached.cli.main(['-V']))"
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"memcached [\d.]+ \(rmemcached [\d.]+\)\n", done.stdout), done.stdout
    importers = [
        str(path.relative_to(ROOT))
        for folder in ("rmemcached", "client")
        for path in (ROOT / folder).rglob("*.py*")
        if path.suffix in (".py", ".pyx", ".pxd") and re.search(r"^\s*(from|import) pyverbs\b", path.read_text(), re.M)
    ]
    assert sorted(importers) == ["rmemcached/devices.py"]


def test_the_tools_say_what_they_lack() -> None:
    done = run("import rmemcached.devices; sys.exit(rmemcached.devices.main([]))")
    assert done.returncode == 0
    assert done.stderr.startswith("rmemcached-devices: listed without pyverbs") and done.stderr.count("\n") == 1
    done = run(f"import runpy; runpy.run_path('{ROOT / 'tests' / 'client' / 'reference.py'}')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: reference.py: pyverbs is missing")


def test_a_pyverbs_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the libibverbs of another release, the tool prints the loader's words, and advises no installation."""
    package = tmp_path / "pyverbs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / f"device{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.getenv("PYTHONPATH")])))
    done = subprocess.run([*DEVICES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "listed without pyverbs, which cannot be loaded" in done.stderr and done.stderr.count("\n") == 1
    assert "file too short" in done.stderr and "install" not in done.stderr
    assert "\nsoft_iw0: soft\n" in done.stdout


def test_devices_and_the_choice_without_pyverbs() -> None:
    """The command lists the software devices and the reason for each choice; -h says what the command does."""
    done = run("import rmemcached.devices; sys.exit(rmemcached.devices.main([]))")
    lines = done.stdout.splitlines()
    for name in verbs.devices():
        assert f"{name}: soft" in lines and f"{name.removesuffix('0')}: {name}: there is always one" in lines
    system = verbs.devices("system")
    for name in system:
        assert any(line.startswith(f"{name}: system, ") for line in lines)
        assert any(line.startswith("  port 1: ") and ", MTU " in line for line in lines)
    assert any(
        line.startswith(f"verbs: {system[0]}, port " if system else "verbs: none: there is no") for line in lines
    )
    serves = "The daemon serves on " + (f"{system[0]}, " if system else "") + "soft_iw0 and soft_shm0."
    assert lines[-2].startswith(serves) and "A client takes the first that both ends have: verbs, soft_shm" in lines[-1]
    told = subprocess.run([*DEVICES, "-h"], capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "") and told.stdout.startswith("usage: rmemcached-devices")


# ---- libibverbs ------------------------------------------------------------------------------------------------------

LIBRARY = "libibverbs.so.1"
ALONE = ": the software devices serve alone"
# The program of a client that connects twice.
CLIENT = """
import logging, os, sys
from rmemcached.client import Client, MemcacheError
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
with Client(sys.argv[1], timeout=20, default_noreply=False) as client:
    for _ in range(2):
        for size in (0, 10, 100_000):
            value = os.urandom(size)
            assert client.set("key", value) and client.get("key") == value
        client.close()
try:
    Client(sys.argv[1], transport="verbs", timeout=20).version()
except MemcacheError as error:
    print(error)
"""


NO_DEVICE = [] if verbs.devices("system") else ["no device"]


@pytest.fixture(params=["none", "another", *NO_DEVICE])
def why_not(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The reason why processes started meanwhile have no device: the loader finds this file in the library's place."""
    if request.param == "no device":
        return "there is no RDMA device"
    place = tmp_path / LIBRARY
    if request.param == "another":
        (libc,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line}
        shutil.copy(Path(libc).with_name("libm.so.6"), place)
    else:
        # The loader cannot load an empty file, and looks no further.
        place.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(filter(None, [str(tmp_path), os.getenv("LD_LIBRARY_PATH")])))
    return f"{LIBRARY} lacks functions that are needed" if request.param == "another" else f"{LIBRARY} is not installed"


@pytest.mark.parametrize("verbose", [False, True], ids=["", "-v"])
def test_without_a_device_of_the_system(rmemcached_server: Callable[..., Server], why_not: str, verbose: bool) -> None:
    """Daemon and client work on the software devices and report so once, the daemon with -v."""
    server = rmemcached_server(*(["-v"] if verbose else []))
    with Conversation(server) as talk:
        assert talk.stats("rdma")["rdma_device"] == "soft_iw0,soft_shm0"
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLIENT, server.place],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    logged, refused = done.stdout.splitlines()
    assert "transport soft_shm (both ends have it; verbs is not available: no queue pair here: " in logged
    assert why_not in logged and why_not in refused
    lines = [line for line in server.stderr().splitlines() if ALONE in line]
    assert lines == ([f"RDMA: {why_not}{ALONE}"] if verbose else [])


def test_an_option_without_a_device_is_told(rmemcached_server: Callable[..., Server], why_not: str) -> None:
    """A line, also without -v, tells that the option has no effect without a device."""
    for option in ("rdma_gid_index=99", "rdma_port=3"):
        server = rmemcached_server("-o", option)
        with Conversation(server) as talk:
            assert talk.stats("rdma")["rdma_device"] == "soft_iw0,soft_shm0"
        lines = [line for line in server.stderr().splitlines() if ALONE in line]
        assert lines == [f"RDMA: {why_not}{ALONE}; {option.partition('=')[0]} has no effect"]


@pytest.mark.parametrize("option", ["rdma_gid_index=99", "rdma_gid_index=0", "rdma_port=1", "rdma_device=mlx5_0"])
def test_an_option_of_a_device_where_there_can_be_none(option: str) -> None:
    name = option.partition("=")[0]
    for others in (["-s", "/tmp/none"], ["-o", "no_rdma"], ["-o", "rdma_device=none"]):
        if others[-1].startswith(name):
            continue
        reason = "needs a device: it does not go" if others[-1] == "rdma_device=none" else "needs TCP and RDMA"
        with pytest.raises(UsageError, match=f"^{name} {reason}"):
            parse(["-o", option, *others])


def test_a_device_that_is_asked_for_must_be_there(why_not: str) -> None:
    user = ["-u", "root"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached", *user, "-p", "0", "-o", "rdma_device=mlx5_0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("RDMA: ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("; -o rdma_device=none runs on the software devices alone\n")


def test_a_transport_has_the_name_of_its_number() -> None:
    """Daemon and client find a transport by its number, and the exchange names the transport."""
    page = (ROOT / "docs" / "rdma-protocol.md").read_text()
    assert all(row == wire and f"`{wire}`: " in page for row, wire in TRANSPORT_NAMES), TRANSPORT_NAMES
    assert len(dict(TRANSPORT_NAMES)) == len(TRANSPORT_NAMES)
