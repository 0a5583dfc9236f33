"""A client that stands still for longer than its time-out still takes an answer received meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polling
import pytest
from daemon_tools import Conversation
from servers import Server
from suspended import resume, suspend
from transport import RDMA_TRANSPORTS

STILL = Path(__file__).with_name("stand_still.c")
CHILD = """
import ctypes, sys
from rmemcached.client import Client
library, host, port, transport, says, told = sys.argv[1:]
still = ctypes.CDLL(library)
for line in sys.stdin:
    with Client((host, int(port)), transport=transport, timeout=1.0, spin=0, default_noreply=False) as client:
        client.set("still", b"value")
        for _ in range(4):
            client.get("still")
        print("connected", flush=True)
        sys.stdin.readline()
        still.stand_still_at(int(line), int(says), int(told))
        try:
            found = client.get("still")
        except TimeoutError:
            found = "timed out"
        still.stand_still_at(0, -1, -1)
    print(found, flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("still") / "still.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", built, STILL, "-ldl"], check=True)
    return built


class Child:
    """A client that stands still at a given place. The daemon is stopped before the client asks."""

    def __init__(self, library: Path, server: Server, transport: str) -> None:
        self.server = server
        self.says, says = os.pipe()
        told, self.told = os.pipe()
        words = [library, server.host, server.port, transport, says, told]
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(says, told),
            env={**os.environ, "LD_PRELOAD": str(library)},
        )
        os.close(says)
        os.close(told)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: object) -> None:
        assert self.process.stdin is not None
        print(text, file=self.process.stdin, flush=True)

    def get(self, control: Conversation, n: int) -> str:
        """The result of a get with a stop at its nth look at the clock; "" if there were fewer looks."""
        self.tell(n)
        assert self.line() == "connected"
        suspend(self.server.pid)
        try:
            self.tell("go on")
            assert self.process.stdout is not None
            ready, _ = polling.select([self.says, self.process.stdout], (), 20.0)
            stands = self.says in ready
        finally:
            resume(self.server.pid)
        if stands:
            os.read(self.says, 1)
            # The only worker serves the child in the turn of the first `stats` at the latest, so with the answer to the
            # second `stats` the child's answer has come.
            control.stats()
            control.stats()
            os.write(self.told, b".")
        found = self.line()
        return found if stands else ""

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self.says)
        os.close(self.told)


def stand_still_everywhere(child: Child) -> list[str]:
    """The results of gets, each with its stop a look later than the get before."""
    found: list[str] = []
    with Conversation(child.server) as control:
        while not found or found[-1]:
            found.append(child.get(control, len(found) + 1))
    return found[:-1]


@pytest.mark.device("completions of a stopped process")
@pytest.mark.without_direct("the client asks nobody")
@pytest.mark.parametrize("transport", ["tcp", *RDMA_TRANSPORTS])
def test_an_answer_that_came_meanwhile(library: Path, rmemcached_server: Callable[..., Server], transport: str) -> None:
    with closing(Child(library, rmemcached_server("-t", "1"), transport)) as child:
        found = stand_still_everywhere(child)
    assert found and set(found) == {str(b"value")}, found


def test_a_read_that_was_answered_meanwhile(
    library: Path, rmemcached_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMEMCACHED_DIRECT", "soft_iw")
    server = rmemcached_server("-t", "1", "-o", "rdma_direct_remote")
    with closing(Child(library, server, "soft_iw")) as child:
        found = stand_still_everywhere(child)
    assert found and set(found) == {str(b"value")}, found
