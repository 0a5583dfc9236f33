"""Clients that count and time their own calls (rmemcached.client.observed), and write spans of them."""

from __future__ import annotations

import asyncio
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Backend
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from servers import free_port

from rmemcached.client import AsyncClient, Client, MemcacheClientError
from rmemcached.client.observed import BLOCKING, COMMANDS, ObservedAsyncClient, ObservedClient

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture
def spans() -> Iterator[Callable[[], tuple[ReadableSpan, ...]]]:
    EXPORTER.clear()
    yield EXPORTER.get_finished_spans


def test_every_command_is_one() -> None:
    others = {"close", "disconnect_all", "quit", "shutdown", "check_key", "buffer", "register", "pipeline", "prefault"}
    others |= {"metadump", "mgdump", "watch"}
    for kind, missing in ((Client, set()), (AsyncClient, BLOCKING)):
        methods = {name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}
        assert methods - others == set(COMMANDS) - missing


def test_calls_errors_and_times(backend: Backend, key: str) -> None:
    options: dict[str, Any] = {"timeout": 20, "default_noreply": False, "transport": backend.transport}
    with ObservedClient(backend.server.address, **options) as client:
        assert client.metrics() == {}
        client.set(key, b"text")
        for _ in range(10):
            assert client.get(key) == b"text"
        with pytest.raises(MemcacheClientError):
            client.incr(key, 1)
        found = client.metrics()
        assert {name: (one.calls, one.errors) for name, one in found.items()} == {
            "set": (1, 0),
            "get": (10, 0),
            "incr": (1, 1),
        }
        for one in found.values():
            assert 0 < one.p50 <= one.p90 <= one.p99 <= one.p999 <= one.longest < 20
            assert 0 < one.mean <= one.longest
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(client.get, [key] * 400))
        assert client.metrics()["get"].calls == 410
        for again in (copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
            assert again.metrics() == {}
            assert again.get(key) == b"text"
            again.close()

    async def body() -> None:
        async with ObservedAsyncClient(backend.server.address, spans=True, **options) as made:
            await asyncio.gather(*(made.get(key) for _ in range(20)))
            with pytest.raises(MemcacheClientError):
                await made.incr(key, 1)
            assert (made.metrics()["get"].calls, made.metrics()["incr"].errors) == (20, 1)

    asyncio.run(body())


def test_spans(backend: Backend, key: str, spans: Callable[[], tuple[ReadableSpan, ...]]) -> None:
    options: dict[str, Any] = {"timeout": 20, "default_noreply": False, "transport": backend.transport}
    with ObservedClient(backend.server.address, spans=True, **options) as client:
        with trace.get_tracer("test").start_as_current_span("outer") as outer:
            client.set(key, b"text")
        with pytest.raises(MemcacheClientError):
            client.incr(key, 1)
    stored, _, failed = spans()
    assert stored.name == "set" and stored.attributes is not None
    assert stored.parent is not None and stored.parent.span_id == outer.get_span_context().span_id
    assert dict(stored.attributes) == {
        "db.system.name": "memcached",
        "db.operation.name": "set",
        "server.address": backend.server.host,
        "server.port": backend.server.port,
    }
    assert failed.status.status_code == StatusCode.ERROR
    assert failed.events[0].name == "exception"


def test_without_a_server() -> None:
    with ObservedClient(("127.0.0.1", free_port()), transport="tcp", ignore_exc=True) as client:
        assert client.get("key") is None
        with pytest.raises(ConnectionRefusedError):
            client.set("key", b"value", noreply=False)
        assert (client.metrics()["get"].errors, client.metrics()["set"].errors) == (0, 1)


def test_without_the_libraries() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from rmemcached.client.observed import ObservedClient
for block in (lambda: ObservedClient("127.0.0.1", spans=True),):
    try:
        block()
    except ImportError as error:
        assert "rmemcached[observe]" in str(error)
    else:
        raise AssertionError
del sys.modules["rmemcached.client.observed"]
for name in list(sys.modules):
    if name.startswith("hdrh"):
        sys.modules[name] = None
sys.modules["hdrh"] = None
try:
    import rmemcached.client.observed
except ImportError as error:
    assert "rmemcached[observe]" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
