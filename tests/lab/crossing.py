"""Run by test_lab.py in two guests on a wire: a daemon in the first, its clients in the second.

crossing.py serve      prints its errors and ends with the guest
crossing.py use        ends with status 0 if all went well
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from pymemcache.client.base import Client as PymemcacheClient

from rmemcached.client import Client, MemcacheError

THERE = "10.7.0.2"
THERE_TOO = "10.7.0.4"  # of the same machine, reachable while packets of THERE are dropped
PORT = 11311
CM_PORT = 11312
TIMEOUT = 30.0
NOBODY_ANSWERS = "transport retry counter exceeded"


def counters() -> dict[str, int]:
    """The kernel's counters for rxe0 of this machine."""
    printed = subprocess.run(
        ["rdma", "-j", "statistic", "show", "link", "rxe0/1"], stdout=subprocess.PIPE, check=True
    ).stdout
    return {name: value for name, value in json.loads(printed)[0].items() if isinstance(value, int)}


def stats(plain: PymemcacheClient, *words: str) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in plain.stats(*words).items() if str(value).isdigit()}


def client_by(transport: str) -> Client:
    return Client(
        (THERE, PORT),
        transport=transport,
        rdma_cm_port=CM_PORT,
        timeout=TIMEOUT,
        connect_timeout=10,
        default_noreply=False,
    )


def connected() -> Client:
    """A client of the daemon on the peer machine, which may still be booting."""
    deadline = time.monotonic() + 120
    while True:
        client = client_by("verbs")
        try:
            client.version()
            return client
        except OSError:
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def tc(command: str) -> None:
    subprocess.run(["tc", *command.split()], check=True)


@contextlib.contextmanager
def cut(*, here: bool, there: bool) -> Iterator[None]:
    """Drops all packets between this host and THERE, in the given directions. No device notices anything."""
    tc("qdisc add dev eth1 root handle 1: prio bands 4")
    tc("qdisc add dev eth1 parent 1:4 netem loss 100%")
    tc("qdisc add dev eth1 ingress")
    if here:
        tc(f"filter add dev eth1 parent ffff: protocol ip u32 match ip src {THERE} action drop")
    if there:
        tc(f"filter add dev eth1 parent 1: protocol ip u32 match ip dst {THERE} flowid 1:4")
    yield
    tc("qdisc del dev eth1 root")
    tc("qdisc del dev eth1 ingress")


def nobody_answers(client: Client) -> None:
    """The client notices missing acknowledgements long before its own time-out."""
    begin = time.monotonic()
    try:
        client.get("crossing")
    except MemcacheError as error:
        assert NOBODY_ANSWERS in str(error), error
        print(f"{client.transport}: {error}: after {time.monotonic() - begin:.1f} s")
    else:
        raise AssertionError("there was an answer")


def nothing_left(plain: PymemcacheClient) -> None:
    """Waits until the daemon has freed everything of unreachable clients. No event announces the end."""
    begin = time.monotonic()
    while True:
        found = stats(plain, "rdma")
        kept = [found[f"rdma_{name}"] for name in ("queue_pairs", "registrations", "streams")]
        # The count has this connection, and all listening sockets but the first, as in memcached: 2 in all.
        kept.append(stats(plain)["curr_connections"] - 2)
        if not any(kept):
            break
        assert time.monotonic() < begin + TIMEOUT, kept
        time.sleep(0.05)
    print(f"the daemon after {time.monotonic() - begin:.1f} s")


def vanish(plain: PymemcacheClient) -> None:
    """Each end loses the other's host, which disappears without a word."""
    value = bytes(100000)
    with client_by("verbs") as client:
        assert client.set("crossing", value)
        # The request arrives, the answer is not acknowledged.
        with cut(here=True, there=False):
            nobody_answers(client)
            nothing_left(plain)
        assert client.get("crossing") == value
    with client_by("rdma_cm") as asking, client_by("rdma_cm") as silent:
        assert asking.get("crossing") == silent.get("crossing") == value
        assert stats(plain, "rdma")["rdma_cm_queue_pairs"] == 2
        with cut(here=True, there=True):
            nobody_answers(asking)
            # By the daemon's clock both clients have been silent for so long that the daemon looks for them.
            assert plain.raw_command(b"debugtime 40") == b"OK"
            nothing_left(plain)
            nobody_answers(silent)
        assert asking.get("crossing") == silent.get("crossing") == value


def use() -> None:
    source = random.Random(1)
    with connected() as client, contextlib.closing(PymemcacheClient((THERE_TOO, PORT), timeout=TIMEOUT)) as plain:
        for size in (0, 1, 100, 4095, 4096, 4097, 8184, 8185, 65536, 1000000):
            value = source.randbytes(size)
            assert client.set("crossing", value)
            assert client.get("crossing") == plain.get("crossing") == value, size
            value = source.randbytes(size)
            assert plain.set("crossing", value, noreply=False)
            assert client.get("crossing") == value, size
        before, packets = stats(plain, "rdma"), counters()
        value = source.randbytes(1 << 20)
        value = value[: (1 << 20) - 200]
        assert client.set("large", value)
        after, moved = stats(plain, "rdma"), counters()
        assert after["rdma_read_bytes"] - before["rdma_read_bytes"] == len(value)
        # This host has answered the READ, by packets of at most 4096 bytes each.
        assert moved["sent_pkts"] - packets["sent_pkts"] >= len(value) // 4096
        many = {f"many{number}": source.randbytes(source.choice((10, 5000, 20000))) for number in range(60)}
        assert client.set_many(many) == []
        assert client.get_many(list(many)) == plain.get_many(list(many)) == many
        # Lost packets are sent again: no request and no value is lost.
        tc("qdisc add dev eth1 root netem loss 2%")
        for number in range(20):
            value = source.randbytes(20000)
            assert client.set("lossy", value), number
            assert client.get("lossy") == value, number
        tc("qdisc del dev eth1 root")
        client.close()
        vanish(plain)
    print("both ways, with losses, and to its end")


def serve() -> None:
    subprocess.run(["ip", "address", "add", f"{THERE_TOO}/24", "dev", "eth1"], check=True)
    command = [sys.executable, "-P", "-m", "rmemcached", "-u", "root", "-l", f"{THERE},{THERE_TOO}", "-p", str(PORT)]
    command += ["-U", "0", "-m", "256", "-v", "-o", f"rdma_cm_port={CM_PORT},debug_commands"]
    sys.exit(subprocess.call(command))


if __name__ == "__main__":
    {"serve": serve, "use": use}[sys.argv[1]]()
