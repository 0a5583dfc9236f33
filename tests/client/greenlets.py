"""A program of gevent or eventlet. Run as: greenlets.py LIBRARY HOW TRANSPORT HOST PORT PID.

HOW: "module" (socket_module=), "before" or "after" (patched before or after the client is imported), "plain" (neither).
PID: of the server, which stands still for a while.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import warnings
from pathlib import Path

warnings.simplefilter("ignore", DeprecationWarning)
library, how, transport, host, port, pid = sys.argv[1:]


def patch() -> None:
    if library == "gevent":
        importlib.import_module("gevent.monkey").patch_all()
    else:
        importlib.import_module("eventlet").monkey_patch()


if how == "before":
    patch()
from rmemcached.client import Client, MemcacheError  # noqa: E402

if how == "after":
    patch()
module = None
if how == "module":
    module = importlib.import_module({"gevent": "gevent.socket", "eventlet": "eventlet.green.socket"}[library])
green = importlib.import_module(library)
LARGE = bytes(range(256)) * 4096


def stop_server() -> None:
    """Stops the server. Returns when all its threads stand still."""
    os.kill(int(pid), signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    while any((one / "stat").read_text().rpartition(")")[2].split()[0] != "T" for one in threads.iterdir()):
        time.sleep(0.001)


def run(*functions: object) -> list[object]:
    """Runs the work in greenlets, at the same time."""
    if library == "gevent":
        started = [green.spawn(function) for function in functions]
        green.joinall(started, raise_error=True)
        return [one.value for one in started]
    return [one.wait() for one in [green.spawn(function) for function in functions]]


def work(client: Client, number: int) -> int:
    for count in range(20):
        text = b"%d-%d" % (number, count)
        assert client.set(f"key-{number}", text) is True
        assert client.get(f"key-{number}") == text
        assert client.set(f"large-{number}", text + LARGE) is True
        assert client.get(f"large-{number}") == text + LARGE
        names = {f"many-{number}-{i}": text + bytes(i * 100) for i in range(50)}
        assert client.set_many(names) == []
        assert client.get_many(names) == names
        green.sleep(0)
    return number


def test_many_greenlets(client: Client) -> None:
    assert run(*(lambda number=number: work(client, number) for number in range(5))) == [*range(5)]


def test_others_run_meanwhile(client: Client) -> None:
    client.set("key", b"value")
    turns = 0
    ended = False

    def count() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            green.sleep(0.005)
            if turns == 20:
                os.kill(int(pid), signal.SIGCONT)

    def get() -> object:
        nonlocal ended
        stop_server()
        try:
            return client.get("key")
        finally:
            ended = True
            os.kill(int(pid), signal.SIGCONT)

    assert run(get, count)[0] == b"value"
    assert turns >= 20, turns


def test_time_out(client: Client) -> None:
    """The client's time-out ends a call, and the library's time-out comes through the client."""
    client.set("key", b"value")
    stop_server()
    try:
        try:
            with Client((host, int(port)), transport=transport, timeout=0.2, socket_module=module) as other:
                other.get("key")
        except TimeoutError:
            pass
        else:
            raise AssertionError("no time-out")
        began = time.monotonic()
        try:
            with green.Timeout(0.2):
                client.get("key")
        except green.Timeout:
            pass
        else:
            raise AssertionError("no time-out")
        assert time.monotonic() - began < 5
    finally:
        os.kill(int(pid), signal.SIGCONT)
    assert client.get("key") == b"value"


def test_a_dead_connection(client: Client) -> None:
    client.set("key", b"value")
    try:
        client.raw_command("shutdown_of_nothing")
    except MemcacheError:
        pass
    else:
        raise AssertionError("no error")
    assert client.get("key") == b"value"


with Client((host, int(port)), transport=transport, timeout=20, default_noreply=False, socket_module=module) as client:
    client.version()
    cooperative = how != "plain" and client.transport == "tcp"
    assert client.transport == ("tcp" if cooperative or transport == "tcp" else transport), client.transport
    test_many_greenlets(client)
    test_a_dead_connection(client)
    if cooperative:
        test_others_run_meanwhile(client)
        test_time_out(client)
    assert client.calls == 0
print("done", client.connections)
