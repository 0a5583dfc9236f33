"""The kernel's TLS in a guest, whose kernel has the module: -o ssl_kernel_tls."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority
from guest_tools import run
from servers import Server
from tls_peers import client_context, options

from rmemcached.client import Client

STATISTICS = Path("/proc/net/tls_stat")
SIZES = (1, 100, 16383, 16384, 16385, 100_000, 1_000_000)


def sessions() -> dict[str, int]:
    """Of the kernel: how many sessions have come to it so far, by direction."""
    found = dict(line.split() for line in STATISTICS.read_text().splitlines())
    return {name: int(found[name]) for name in ("TlsTxSw", "TlsRxSw")}


@pytest.mark.parametrize("transport", ["tcp", "soft_iw"])
@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_the_kernel_encrypts(
    rmemcached_server: Callable[..., Server], tmp_path: Path, transport: str, version: str
) -> None:
    """Values are right, and the kernel's counter says who has encrypted them."""
    run("modprobe", "tls")
    authority = Authority(tmp_path / "ca")
    server = rmemcached_server("-I", "8m", *options(authority.sign("server"), "ssl_kernel_tls"))
    context = client_context(authority.trusted, version)
    before = sessions()
    with Client(server.address, tls_context=context, transport=transport, timeout=100, default_noreply=False) as client:
        for size in SIZES:
            data = random.Random(size).randbytes(size)
            assert client.set("key", data) and client.get("key") == data
        stats = client.stats()
    after = sessions()
    # The lifeline's session, and with soft_iw the stream's.
    assert after["TlsTxSw"] - before["TlsTxSw"] >= (2 if transport == "soft_iw" else 1)
    assert stats[b"ssl_proto_errors"] == 0
