"""Celery applications whose results are in rmemcached: tasks run by a real worker, of threads."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.contrib.testing.worker import start_worker
from concurrency import in_child
from frameworks import A_YEAR, LARGE
from servers import Server, free_port

from rmemcached.client import MemcacheError, MemcacheServerError
from rmemcached.connectors.celery import RMemcachedBackend, servers_of

ServerFactory = Callable[..., Server]


def application(url: str, **settings: Any) -> Celery:
    app = Celery("application", broker="memory://", backend=url)
    app.conf.update(broker_transport_options={"polling_interval": 0.01}, worker_hijack_root_logger=False, **settings)
    return app


@pytest.fixture(scope="module")
def app(module_rmemcached: Server) -> Iterator[Celery]:
    """An application with a worker."""
    made = application(f"rmemcached+shm://127.0.0.1:{module_rmemcached.port}?key_prefix=celery:", result_expires=A_YEAR)

    @made.task(name="add")  # type: ignore[untyped-decorator, unused-ignore]
    def add(one: Any, other: Any) -> Any:
        return one + other

    @made.task(name="total")  # type: ignore[untyped-decorator, unused-ignore]
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    # The worker changes the root logger's level, so the fixture restores the level.
    level = logging.getLogger().level
    with start_worker(made, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=30):
        yield made
    logging.getLogger().setLevel(level)


def test_results(app: Celery) -> None:
    add = app.tasks["add"]
    found = add.delay(2, 3)
    assert found.get(timeout=30, interval=0.01) == 5
    large = "x" * 3_000_000
    assert add.delay(large, "").get(timeout=30, interval=0.01) == large
    with pytest.raises(TypeError):
        add.delay(1, None).get(timeout=30, interval=0.01)
    backend = app.backend
    assert isinstance(backend, RMemcachedBackend) and backend.client.transport == "soft_shm"
    assert A_YEAR - 60 <= backend.client.ttl(backend.get_key_for_task(found.id)) <= A_YEAR + 1
    found.forget()
    assert backend.get(backend.get_key_for_task(found.id)) is None


def test_groups_and_chords(app: Celery) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    found = group(add.s(number, number) for number in range(10)).apply_async()
    assert found.get(timeout=30, interval=0.01) == [2 * number for number in range(10)]
    body = chord((add.s(number, number) for number in range(10)), total.s())()
    assert body.get(timeout=30, interval=0.01) == 90


def test_a_forked_child_and_a_pickled_backend(app: Celery) -> None:
    app.backend.set("parent", b"1")
    in_child(lambda: app.backend.get("parent") == b"1" and app.backend.incr("parent") == 2)
    assert app.backend.get("parent") == b"2" and app.backend.delete("parent")
    _, arguments = app.backend.__reduce__()
    assert pickle.loads(pickle.dumps(arguments[2]))["url"] == app.backend.url


def test_a_server_that_is_down_raises() -> None:
    app = application(f"rmemcached://127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionRefusedError) as caught:
        app.backend.set("key", b"1")
    assert app.backend.exception_safe_to_retry(caught.value)
    quiet = application(app.backend.url, cache_backend_options={"ignore_exc": True})
    for call in (lambda: quiet.backend.set("key", b"1"), lambda: quiet.backend.incr("key")):
        with pytest.raises(MemcacheError):
            call()


def test_what_cannot_be_stored_raises(rmemcached_server: ServerFactory) -> None:
    app = application(f"rmemcached://127.0.0.1:{rmemcached_server('-t', '1').port}")
    with pytest.raises(MemcacheServerError, match="too large") as caught:
        app.backend.set("key", LARGE)
    assert not app.backend.exception_safe_to_retry(caught.value)
    with pytest.raises(MemcacheError, match="the counter key has gone"):
        app.backend.incr("key")
    app.backend.client.close()


def test_urls() -> None:
    assert servers_of("rmemcached://a:1;b:2/") == ["memcached://a:1", "memcached://b:2/"]
    assert servers_of("rmemcached+rdma://a") == servers_of("rdma://a") == ["rdma://a"]
    with pytest.raises(ValueError, match="names no server"):
        servers_of("rmemcached://")
    backend = application("rmemcached://me:secret@127.0.0.1:1;127.0.0.1:2").backend
    assert len(backend.client.clients) == 2
    assert "secret" not in backend.as_uri(include_password=False) and "secret" in backend.as_uri()
    # A worker shows this text at its start, so the text must name the same servers as the setting.
    assert servers_of(backend.as_uri(include_password=False))[1] == "memcached://127.0.0.1:2"
    shown = application("rmemcached+shm://127.0.0.1:1").backend.as_uri(include_password=False)
    assert shown == "rmemcached+shm://127.0.0.1:1"
