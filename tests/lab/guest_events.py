"""A change or failure of an RDMA device in use. Run by test_lab.py in a guest with the device rxe0."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from daemon_tools import Conversation, child, descriptors, eventually, rdma_at_rest
from guest_tools import DEVICE, resources, run
from servers import Server

from rmemcached.client import Client, MemcacheError

CLIENTS = 4
BIG = random.Random(5).randbytes(2_000_000)
WITHIN = 20.0


def in_use() -> tuple[int, int]:
    """The numbers of queue pairs and completion queues; the kernel has some for itself."""
    found = resources()
    return found["qp"], found["cq"]


def has_device(control: Conversation) -> bool:
    return DEVICE in control.stats("rdma")["rdma_device"]


def verbs_client(server: Server) -> Client:
    return Client(server.address, transport="verbs", timeout=WITHIN, default_noreply=False)


class Traffic:
    """Clients that set and get a large value for ever, each in a thread of its own; `ends` has their last errors."""

    def __init__(self, server: Server) -> None:
        self.ends: list[Exception] = []
        self.rounds = [0] * CLIENTS
        self.threads = [threading.Thread(target=self.go, args=(server, index)) for index in range(CLIENTS)]
        for thread in self.threads:
            thread.start()
        eventually(lambda: min(self.rounds) > 0 or self.ends, WITHIN)
        assert not self.ends

    def go(self, server: Server, index: int) -> None:
        try:
            with verbs_client(server) as client:
                while True:
                    client.set(f"traffic{index}", BIG)
                    assert client.get(f"traffic{index}") == BIG
                    self.rounds[index] += 1
        except Exception as error:
            self.ends.append(error)

    def wait(self) -> list[str]:
        for thread in self.threads:
            thread.join(WITHIN)
        assert len(self.ends) == CLIENTS
        assert all(isinstance(error, (MemcacheError, OSError)) for error in self.ends), self.ends
        return [str(error) for error in self.ends]


@contextmanager
def link_down() -> Iterator[None]:
    run("ip", "link", "set", "eth0", "down")
    try:
        yield
    finally:
        run("ip", "link", "set", "eth0", "up")
        run("ip", "route", "replace", "default", "via", "10.0.2.2")


@contextmanager
def device_removed() -> Iterator[None]:
    # The removal waits until nobody has the device open.
    run("rdma", "link", "delete", DEVICE)
    try:
        yield
    finally:
        run("rdma", "link", "add", DEVICE, "type", "rxe", "netdev", "eth0")


@pytest.mark.parametrize(
    ("mishap", "why"),
    [(link_down, "device rxe0: its port is down"), (device_removed, "device rxe0 was removed")],
    ids=["link down", "device removed"],
)
def test_mishap(
    rmemcached_server: Callable[..., Server], mishap: Callable[[], AbstractContextManager[None]], why: str
) -> None:
    """After a mishap under load the daemon serves everybody else, clients get errors, and all is then as before."""
    server = rmemcached_server("-m", "256", "-I", "8m", "-t", "2")
    with Conversation(server, WITHIN) as control, Client(server.address, transport="soft_iw", timeout=WITHIN) as soft:
        soft.set("key", BIG, noreply=False)
        assert has_device(control)
        lost, before = control.number("rdma_devices_lost", "rdma"), control.stats("rdma")
        opened, made = descriptors(server.pid), in_use()
        traffic = Traffic(server)
        with mishap():
            said = traffic.wait()
            # The kernel may first report the event, or the failure of a posted request.
            assert any(why in text or "local QP operation error" in text for text in said), said
            assert control.ask(b"mn\r\n") == b"MN\r\n"
            assert soft.get("key") == BIG
            eventually(lambda: not has_device(control), WITHIN)
            assert control.number("rdma_devices_lost", "rdma") == lost + 1
            assert control.number("rdma_queue_pairs", "rdma") == 1
            assert control.number("rdma_registrations", "rdma") == 2
            after = control.stats("rdma")
            assert int(after["rdma_read_bytes"]) >= int(before["rdma_read_bytes"]) + CLIENTS * len(BIG)
            with pytest.raises(Exception, match="no queue pair here"), verbs_client(server) as client:
                client.get("key")
            with Client(server.address, timeout=WITHIN) as client:
                assert client.get("key") == BIG
                assert client.transport == "soft_shm"
        eventually(lambda: has_device(control), WITHIN)
        with verbs_client(server) as client:
            assert client.get("key") == BIG
            client.set("other", BIG)
            assert client.get("other") == BIG
        soft.close()
        eventually(lambda: rdma_at_rest(control), WITHIN)
        eventually(lambda: descriptors(server.pid) <= opened, WITHIN)
        eventually(lambda: in_use() == made, WITHIN)
        assert resources()["mr"] == control.number("rdma_arena_registrations", "rdma") // 2
        assert why in server.stderr()
    server.stop()
    eventually(lambda: resources()["mr"] == 0, WITHIN)


def test_killed_clients(rmemcached_server: Callable[..., Server]) -> None:
    server = rmemcached_server("-m", "256", "-I", "8m", "-t", "2")
    with Conversation(server, WITHIN) as control, child("victims.py", server.host, server.port) as nursery:
        # Once the daemon answers, each worker has its completion queue: so the queue counts in `made`.
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        made = in_use()
        assert nursery.stdin is not None and nursery.stdout is not None
        victims = []
        for seed in range(4):
            print("storm", seed, file=nursery.stdin, flush=True)
            victims.append(int(nursery.stdout.readline()))
        eventually(lambda: control.number("rdma_reads", "rdma") > 20, WITHIN)
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: rdma_at_rest(control), WITHIN)
        assert control.ask(b"mn\r\n") == b"MN\r\n"
        eventually(lambda: in_use() == made, WITHIN)
        # All remaining registrations are of item memory.
        assert resources()["mr"] == control.number("rdma_arena_registrations", "rdma") // 2
