"""Run by test_lab.py in two guests on one wire: a daemon in one, its clients in the other.

crossing.py serve      prints its errors and ends with the guest
crossing.py use        ends with status 0 when all went well
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time

from pymemcache.client.base import Client as PymemcacheClient

from rmemcached.client import Client

THERE = "10.7.0.2"
PORT = 11311
TIMEOUT = 30.0


def counters() -> dict[str, int]:
    """What the kernel counts for rxe0 of this machine."""
    printed = subprocess.run(
        ["rdma", "-j", "statistic", "show", "link", "rxe0/1"], stdout=subprocess.PIPE, check=True
    ).stdout
    return {name: value for name, value in json.loads(printed)[0].items() if isinstance(value, int)}


def stats(plain: PymemcacheClient) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in plain.stats("rdma").items() if str(value).isdigit()}


def connected() -> Client:
    """The daemon of the other machine, which may be booting yet."""
    deadline = time.monotonic() + 120
    while True:
        client = Client((THERE, PORT), transport="verbs", timeout=TIMEOUT, connect_timeout=10, default_noreply=False)
        try:
            client.version()
            return client
        except OSError:
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def use() -> None:
    source = random.Random(1)
    with connected() as client, contextlib.closing(PymemcacheClient((THERE, PORT), timeout=TIMEOUT)) as plain:
        for size in (0, 1, 100, 4095, 4096, 4097, 8184, 8185, 65536, 1000000):
            value = source.randbytes(size)
            assert client.set("crossing", value)
            assert client.get("crossing") == plain.get("crossing") == value, size
            value = source.randbytes(size)
            assert plain.set("crossing", value, noreply=False)
            assert client.get("crossing") == value, size
        before, packets = stats(plain), counters()
        value = source.randbytes(1 << 20)
        value = value[: (1 << 20) - 200]
        assert client.set("large", value)
        after, moved = stats(plain), counters()
        assert after["rdma_read_bytes"] - before["rdma_read_bytes"] == len(value)
        # The READ was answered here: a packet of at most 4096 bytes each.
        assert moved["sent_pkts"] - packets["sent_pkts"] >= len(value) // 4096
        many = {f"many{number}": source.randbytes(source.choice((10, 5000, 20000))) for number in range(60)}
        assert client.set_many(many) == []
        assert client.get_many(list(many)) == plain.get_many(list(many)) == many
        # Packets are lost on the way, and nothing is lost.
        subprocess.run(["tc", "qdisc", "add", "dev", "eth1", "root", "netem", "loss", "2%"], check=True)
        for number in range(20):
            value = source.randbytes(20000)
            assert client.set("lossy", value), number
            assert client.get("lossy") == value, number
    print("both ways, and with losses")


def serve() -> None:
    command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-l", THERE, "-p", str(PORT), "-U", "0"]
    sys.exit(subprocess.call([*command, "-m", "256", "-v"]))


if __name__ == "__main__":
    {"serve": serve, "use": use}[sys.argv[1]]()
