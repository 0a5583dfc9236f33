"""Run by test_lab.py in a guest with the device rxe0."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from daemon_tools import Conversation, eventually
from guest_tools import REFERENCE, SYSTEM_PYTHON, run
from pymemcache.client.base import Client as PymemcacheClient
from servers import Server
from suspended import suspended

from rmemcached import verbs
from rmemcached.client import Client

SYSTEM_PACKAGES = "/usr/lib/python3/dist-packages"
TIMEOUT = 20.0
LAUNCH = (sys.executable, "-P", "-m", "rmemcached.verbs.launch")


def device_counters() -> dict[str, int]:
    """The kernel's counters for rxe0."""
    (link,) = json.loads(run("rdma", "-j", "statistic", "show", "link", "rxe0/1"))
    return {name: value for name, value in link.items() if isinstance(value, int)}


@pytest.fixture
def server(rmemcached_server: Callable[..., Server]) -> Server:
    return rmemcached_server("-m", "256", "-I", "8m", "-t", "2", "-v")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address, transport="verbs", timeout=TIMEOUT, default_noreply=False) as connected:
        yield connected


def test_the_protocol_page_is_enough(server: Server) -> None:
    host, port = server.host, server.port
    printed = run(SYSTEM_PYTHON, REFERENCE, host, str(port))
    assert "speaks as the protocol says" in printed


def test_programs_of_the_device_under_rmemcached_verbs(server: Server) -> None:
    """Beside the software devices the system's device is there, and works, as without the preloaded library."""
    shown = run("ibv_devinfo", "-v", "-d", "rxe0")
    assert "hca_id:\trxe0" in shown and run(*LAUNCH, "ibv_devinfo", "-v", "-d", "rxe0") == shown
    printed = run(*LAUNCH, "-v", SYSTEM_PYTHON, REFERENCE, "--device", "rxe0", server.host, str(server.port))
    assert "speaks as the protocol says" in printed
    origins = dict(re.findall(r"^(\w+): (/.*)$", printed, re.MULTILINE))
    assert set(origins) == {"rxe0", "soft_iw0", "soft_shm0"} and len(set(origins.values())) == 2


def test_everybody_at_once(server: Server, client: Client) -> None:
    """The bundled client, the client in pyverbs, pymemcache over TCP, and the software device work side by side."""
    host, port = server.host, server.port
    reference = subprocess.Popen([SYSTEM_PYTHON, REFERENCE, host, str(port)])
    generator = random.Random(1)
    with (
        contextlib.closing(PymemcacheClient(server.address, timeout=TIMEOUT, default_noreply=False)) as plain,
        Client(server.address, transport="soft_iw", timeout=TIMEOUT, default_noreply=False) as soft,
    ):
        everybody = (client, plain, soft)
        for size in (0, 1, 100, 4000, 4095, 4096, 4097, 8192, 65536, 1000000, 2000000):
            for writer in everybody:
                value = generator.randbytes(size)
                assert writer.set("shared", value)
                assert [reader.get("shared") for reader in everybody] == [value] * 3
    assert reference.wait(60) == 0


def test_payloads_go_by_rdma(server: Server, client: Client) -> None:
    """A large SET is an RDMA READ, a large GET an RDMA WRITE, by the daemon's counters and the device's."""
    talk = Conversation(server)
    before, device = talk.stats("rdma"), device_counters()
    value = random.Random(2).randbytes(1 << 20)
    client.set("large", value)
    assert client.get("large") == value
    # The client gets its value before the daemon hears of the WRITE's completion.
    eventually(lambda: talk.number("rdma_write_bytes", "rdma") >= int(before["rdma_write_bytes"]) + len(value))
    after, moved = talk.stats("rdma"), device_counters()
    assert int(after["rdma_read_bytes"]) - int(before["rdma_read_bytes"]) == len(value)
    assert int(after["rdma_write_bytes"]) - int(before["rdma_write_bytes"]) == len(value)
    assert moved["sent_pkts"] - device["sent_pkts"] >= 2 * len(value) // 4096
    assert int(after["iw_tx_fpdus"]) == int(before["iw_tx_fpdus"])


def test_reads_ask_nobody(rmemcached_server: Callable[..., Server]) -> None:
    """The device answers READs, also for a stopped daemon: a single READ for each get of a value read before."""
    server = rmemcached_server("-m", "256", "-t", "2", "-o", "rdma_direct_remote")
    values = {f"key-{length}": random.Random(length).randbytes(length) for length in (1, 100, 3000, 60_000)}
    gets = 50
    with Client(server.address, transport="verbs", timeout=TIMEOUT, default_noreply=False) as client:
        for key, value in values.items():
            client.set(key, value)
            assert [client.get(key) for _ in range(3)] == [value] * 3
        with suspended(server.pid):
            for key, value in values.items():
                assert client.get(key) == value
            assert client.get_many(values) == values
        before = device_counters()["sent_pkts"]
        for _ in range(gets):
            assert client.get("key-100") == values["key-100"]
        # Each get is a READ, and this device sends both its request and its answer. Others READ the daemon's clock.
        assert device_counters()["sent_pkts"] - before < gets * 3
        assert client.get("nothing") is None
        assert int(client.stats()[b"direct_hits"]) >= gets + 2 * len(values)


def test_link_goes_down(server: Server, client: Client) -> None:
    talk = Conversation(server)
    client.set("key", b"x" * 100000)
    run("ip", "link", "set", "eth0", "down")
    try:
        # The error is "no active port" if the client has seen the end before sending, and tries to connect anew.
        with pytest.raises(Exception, match=r"its port is down|no active port"):
            client.get("key")
        assert talk.ask(b"mn\r\n") == b"MN\r\n"
        eventually(lambda: talk.stats("rdma")["rdma_queue_pairs"] == "0")
    finally:
        run("ip", "link", "set", "eth0", "up")
        run("ip", "route", "replace", "default", "via", "10.0.2.2")
    eventually(lambda: "rxe0" in talk.stats("rdma")["rdma_device"])
    assert client.get("key") == b"x" * 100000


def test_devices_are_listed() -> None:
    """The command shows both providers' devices: state, port, GIDs, limits, and the chosen device with the reason."""
    # A pyverbs named by PYTHONPATH goes before the system's.
    packages = os.pathsep.join(filter(None, [os.getenv("PYTHONPATH"), SYSTEM_PACKAGES]))
    with verbs.Context("rxe0") as context:
        limits, port = context.query_device(), context.query_port()

        def table() -> list[bytes]:
            return [context.query_gid(1, index) for index in range(port["gid_tbl_len"])]

        def listed() -> str | None:
            # IPv6 addresses, and so GIDs, come a moment after the link is up.
            gids = table()
            found = run(sys.executable, "-P", "-m", "rmemcached.devices", PYTHONPATH=packages)
            return found if gids == table() else None

        printed = eventually(listed, TIMEOUT)
        gids = table()
    assert "rxe0: system, InfiniBand or RoCE" in printed
    assert f"queue pairs {limits['max_qp']}, work requests {limits['max_qp_wr']}," in printed
    assert f"scatter entries {limits['max_sge']}" in printed
    assert f"port 1: active, Ethernet, LID 0, MTU {128 << port['active_mtu']} of 4096" in printed
    assert printed.count("(RoCE v2)") >= sum(any(gid) for gid in gids)
    for name in verbs.devices():
        assert f"{name}: soft\n" in printed
    assert "the first device with an active port" in printed
    assert "verbs: rxe0, port 1, GID 1 (10.0.2.15, RoCE v2)" in printed
    # Without pyverbs the command prints the same, but for the largest MTU.
    code = "import sys; sys.modules['pyverbs'] = None; import rmemcached.devices; rmemcached.devices.main([])"
    assert run(sys.executable, "-P", "-c", code).endswith(printed.replace(" of 4096\n", "\n"))
