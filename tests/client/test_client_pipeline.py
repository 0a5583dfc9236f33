"""Several commands in a single round trip."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from concurrency import KNOWN, first_calls
from scripted import serving
from servers import Server, free_port

from rmemcached.client import (
    Client,
    MemcacheClientError,
    MemcacheIllegalInputError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
)

LARGE = bytes(range(256)) * 256
TOO_LARGE = bytes(9 << 20)


class Pickle:
    """A serde that cannot load values without a pickle."""

    def serialize(self, key: Any, value: Any) -> tuple[bytes, int]:
        return pickle.dumps(value), 1

    def deserialize(self, key: Any, value: bytes, flags: int) -> Any:
        return pickle.loads(value)


def test_each_command_has_the_result_of_the_clients_method(make_client: Callable[..., Client], key: str) -> None:
    client, other = make_client(key_prefix="one:"), make_client(key_prefix="two:")
    calls = [
        *first_calls(key, LARGE),
        ("set", (key, bytearray(b"buffer")), {}),
        ("incr", (key, 1), {}),
        ("incr", ("no" + key, 1), {}),
        ("get", (key,), {}),
        ("delete", (key,), {}),
        ("delete", (key,), {}),
        ("get", (key,), {}),
    ]
    expected = []
    with client.pipeline() as pipeline:
        for name, arguments, options in calls:
            getattr(pipeline, name)(*arguments, **options)
            try:
                expected.append(getattr(other, name)(*arguments, **options))
            except MemcacheClientError as error:
                expected.append(type(error))
        assert len(pipeline) == len(calls)
    found = [type(result) if isinstance(result, Exception) else result for result in pipeline.results]
    assert found == expected
    assert MemcacheClientError in found
    assert len(pipeline) == 0


def test_gets_and_cas(client: Client, key: str) -> None:
    with client.pipeline() as pipeline:
        pipeline.set(key, b"one")
        pipeline.gets(key)
        pipeline.gats(key, 100)
    value, cas = pipeline.results[1]
    assert pipeline.results == [True, (b"one", cas), (b"one", cas)]
    pipeline.cas(key, b"two", cas)
    pipeline.cas(key, b"three", cas)
    assert pipeline.execute() == [True, False]
    assert (value, client.get(key)) == (b"one", b"two")


@pytest.mark.device("receives for many messages")
@pytest.mark.parametrize("size", [100, len(LARGE)], ids=["small", "large"])
def test_many_commands(client: Client, key: str, size: int) -> None:
    """A batch beyond any buffer gets all answers: the server answers while reading."""
    count = 5000 if size == 100 else 200
    with client.pipeline() as pipeline:
        for number in range(count):
            pipeline.set(f"{key}-{number}", b"%d-" % number + bytes(size))
        for number in range(count):
            pipeline.get(f"{key}-{number}")
        for number in range(count):
            pipeline.delete(f"{key}-{number}")
    assert pipeline.results[:count] == [True] * count
    assert pipeline.results[count : 2 * count] == [b"%d-" % number + bytes(size) for number in range(count)]
    assert pipeline.results[2 * count :] == [True] * count


def test_an_error_is_in_its_place(client: Client, key: str) -> None:
    with client.pipeline() as pipeline:
        pipeline.set(key, b"text")
        pipeline.incr(key, 1)
        pipeline.set(key, TOO_LARGE)
        pipeline.set(key, b"more")
        pipeline.get(key)
    results = pipeline.results
    assert (results[0], results[3], results[4]) == (True, True, b"more")
    assert isinstance(results[1], MemcacheClientError)
    assert isinstance(results[2], MemcacheServerError)
    assert client.get(key) == b"more"


def test_wrong_arguments_queue_nothing(client: Client, key: str) -> None:
    pipeline = client.pipeline()
    for call in (
        lambda: pipeline.get("white space"),
        lambda: pipeline.set(key, b"", expire="soon"),  # type: ignore[arg-type]
        lambda: pipeline.touch(key, 1.5),  # type: ignore[arg-type]
        lambda: pipeline.cas(key, b"", "text"),
        lambda: pipeline.incr(key, -1),
    ):
        with pytest.raises((MemcacheIllegalInputError, MemcacheClientError)):
            call()
    with pytest.raises(TypeError):
        pipeline.get(1)  # type: ignore[arg-type]
    assert len(pipeline) == 0
    assert pipeline.execute() == pipeline.results == []


def test_an_exception_in_the_block_sends_nothing(client: Client, key: str) -> None:
    with pytest.raises(KeyError), client.pipeline() as pipeline:
        pipeline.set(key, b"value")
        raise KeyError(key)
    assert (client.get(key), pipeline.results, len(pipeline)) == (None, [], 0)


def test_a_serde_and_its_errors(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=Pickle())
    client.set(key, {"a": [1]})
    make_client().set(key + "-raw", b"no pickle")
    with client.pipeline() as pipeline:
        pipeline.get(key)
        pipeline.get(key + "-raw")
        pipeline.gets(key)
        pipeline.get(key + "-none", "default")
    loaded, failed, (again, _), default = pipeline.results
    assert (loaded, again, default) == ({"a": [1]}, {"a": [1]}, "default")
    assert isinstance(failed, pickle.UnpicklingError)


def test_ignore_exc_makes_misses_of_failed_gets(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(serde=Pickle(), ignore_exc=True)
    make_client().set(key, b"no pickle")
    with client.pipeline() as pipeline:
        pipeline.get(key, "default")
        pipeline.incr(key, 1)
    assert pipeline.results[0] == "default"
    assert isinstance(pipeline.results[1], MemcacheClientError)


def test_no_server() -> None:
    pipeline = Client(("127.0.0.1", free_port())).pipeline()
    pipeline.get("key")
    with pytest.raises(ConnectionRefusedError):
        pipeline.execute()
    assert len(pipeline) == 0


def test_the_connection_ends_half_way() -> None:
    """Received answers count; the missing answers have the reason."""

    def serve(connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                if line in KNOWN:
                    connection.sendall(KNOWN[line])
                elif line.startswith(b"mg first"):
                    connection.sendall(b"VA 5\r\nvalue\r\n")
                else:
                    break

    with serving(serve) as address, Client(address, transport="tcp", timeout=20) as client:
        with client.pipeline() as pipeline:
            pipeline.get("first")
            pipeline.get("second")
            pipeline.set("third", b"value")
        assert pipeline.results[0] == b"value"
        assert isinstance(pipeline.results[1], (MemcacheUnexpectedCloseError, ConnectionError))
        assert pipeline.results[1] is pipeline.results[2]
        assert client.connections == 0
        with pytest.raises((MemcacheUnexpectedCloseError, ConnectionError)):
            client.get("second")


def test_behind_commands_without_an_answer(make_client: Callable[..., Client], key: str) -> None:
    client = make_client(default_noreply=True)
    client.set(key, TOO_LARGE)
    client.set(key, b"value")
    with client.pipeline() as pipeline:
        pipeline.get(key)
        pipeline.delete(key)
    assert pipeline.results == [b"value", True]


def test_pipelines_in_many_threads(shared_rmemcached: Server, key: str) -> None:
    with Client(shared_rmemcached.address, default_noreply=False) as client:

        def work(number: int) -> None:
            for count in range(50):
                with client.pipeline() as pipeline:
                    for i in range(20):
                        pipeline.set(f"{key}-{number}-{i}", b"%d" % count)
                        pipeline.get(f"{key}-{number}-{i}")
                assert pipeline.results == [True, b"%d" % count] * 20
                done[number] += 1

        done = [0] * 4
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == [50] * 4
