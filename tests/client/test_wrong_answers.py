"""A plain server whose answers do not fit the commands: no value comes back for a wrong key."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scripted import serving

from rmemcached.client import AsyncClient, Client, ClusterClient, MemcacheClientError, MemcacheUnknownError

TIMEOUT = 20.0
KNOWN = {b"mn\r\n": b"MN\r\n", b"version\r\n": b"VERSION 1.6.18\r\n"}
CLASSIC = {**KNOWN, b"mn\r\n": b"ERROR\r\n"}

# An Answer makes the answer to a command from the command's line.
Answer = Callable[[bytes], bytes]
Serve = Callable[..., tuple[str, int]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(answer, known): the address of a server with this answer to each line not in `known`. The server does not
    take values for lines."""
    with contextlib.ExitStack() as stack:

        def serve(answer: Answer | bytes, known: dict[bytes, bytes] = KNOWN) -> tuple[str, int]:
            def talk(one: socket.socket) -> None:
                with one.makefile("rb") as lines:
                    for line in lines:
                        if line.startswith(b"ms "):
                            lines.read(int(line.split()[2]) + 2)
                        one.sendall(known.get(line) or (answer(line) if callable(answer) else answer))

            return stack.enter_context(serving(talk))

        yield serve


def run(address: tuple[str, int], name: str, *arguments: Any) -> Any:
    """The result of an AsyncClient's method."""

    async def body() -> Any:
        async with AsyncClient(address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as client:
            return await asyncio.wait_for(getattr(client, name)(*arguments), TIMEOUT / 2)

    return asyncio.run(body())


def piped(address: tuple[str, int], name: str, *arguments: Any) -> Any:
    """The result of a Pipeline's method."""
    with Client(address, transport="tcp", timeout=TIMEOUT) as client:
        pipeline = client.pipeline()
        getattr(pipeline, name)(*arguments)
        (result,) = pipeline.execute()
        if isinstance(result, Exception):
            raise result
        return result


def called(address: tuple[str, int], name: str, *arguments: Any) -> Any:
    """The result of a Client's method."""
    with Client(address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as client:
        return getattr(client, name)(*arguments)


each_way = pytest.mark.parametrize("how", [called, piped, run], ids=lambda how: how.__name__)


def its_name(line: bytes) -> bytes:
    """Returns an answer to a get whose value is the key."""
    key = line.split()[1]
    return b"VA %d\r\n%b\r\n" % (len(key), key)


@each_way
def test_what_follows_an_answer_is_no_answer(serve: Serve, how: Any) -> None:
    with pytest.raises(MemcacheUnknownError, match="sent more than the answer: b'VA 5"):
        how(serve(lambda line: its_name(line) + b"VA 5\r\nwrong\r\n"), "get", "key")


@each_way
def test_what_follows_a_refusal_belongs_to_it(serve: Serve, how: Any) -> None:
    """Both refusals of a set, of its line and of its value, belong to the set."""
    address = serve(lambda line: b"CLIENT_ERROR unauthenticated\r\n" * (2 if line.startswith(b"ms") else 1))
    for _ in range(2):
        with pytest.raises(MemcacheClientError, match="wants authentication"):
            how(address, "set", "key", b"value")


def test_results_before_a_refusal(serve: Serve) -> None:
    address = serve(lambda line: its_name(line) if line.startswith(b"mg") else b"CLIENT_ERROR no\r\n" * 2)
    with Client(address, transport="tcp", timeout=TIMEOUT) as client:
        with client.pipeline() as pipeline:
            pipeline.get("a")
            pipeline.set("b", b"value")
            pipeline.get("c")
        assert pipeline.results[0] == b"a"
        assert [type(result) for result in pipeline.results[1:]] == [MemcacheClientError, MemcacheUnknownError]
        with pytest.raises(MemcacheClientError, match="no"):
            client.set_many({"b": b"value"}, noreply=False)
        assert client.connections == 0


def test_what_comes_between_answers(serve: Serve) -> None:
    address = serve(lambda line: its_name(line) + b"VA 5\r\nwrong\r\n" + its_name(b"mg b") if b"a" in line else b"")
    for method in (called, run):
        with pytest.raises(MemcacheUnknownError, match="sent more than the answer: b'VA 1"):
            method(address, "get_many", ["a", "b"])
    with Client(address, transport="tcp", timeout=TIMEOUT) as client:
        with client.pipeline() as pipeline:
            pipeline.get("a")
            pipeline.get("b")
        assert [type(result) for result in pipeline.results] == [MemcacheUnknownError] * 2
        assert client.connections == 0


def test_an_answer_that_comes_twice(serve: Serve) -> None:
    address = serve(lambda line: b"NS\r\n" if b" ME" in line else b"HD\r\nHD\r\n")
    with Client(address, transport="tcp", timeout=TIMEOUT, default_noreply=False) as client:
        with pytest.raises(MemcacheUnknownError, match=r"set: .*sent more than the answer: b'HD"):
            client.set("key", b"value")
        assert client.add("key", b"value") is False


def test_one_server_of_several(serve: Serve) -> None:
    """A wrong server among several leaves the others' calls their results."""
    right, wrong = serve(its_name), serve(lambda line: its_name(line) * 2)
    with ClusterClient([right, wrong], transport="tcp", timeout=TIMEOUT, ignore_exc=True) as cluster:
        keys = [f"key-{number}" for number in range(40)]
        for _ in range(2):
            found = cluster.get_many(keys)
            assert 0 < len(found) < len(keys)
            assert found == {key: key.encode() for key in found}


@each_way
@pytest.mark.parametrize("method", ["get", "gets"])
def test_the_value_of_another_key(serve: Serve, how: Any, method: str) -> None:
    address = serve(b"VALUE another 0 5 1\r\nwrong\r\nEND\r\n", CLASSIC)
    with pytest.raises(MemcacheUnknownError, match="VALUE another"):
        how(address, method, "key")


@pytest.mark.parametrize("key", ["anothe", "another1", "b"])
def test_the_values_of_other_keys(serve: Serve, key: str) -> None:
    address = serve(b"VALUE another 0 5\r\nwrong\r\nEND\r\n", CLASSIC)
    with pytest.raises(MemcacheUnknownError):
        called(address, "get_many", ["another", key])
    with pytest.raises(MemcacheUnknownError):
        run(address, "get_many", ["another", key])
    with pytest.raises(MemcacheUnknownError):
        called(address, "get_into", key, bytearray(10))
    assert called(address, "get", "another") == b"wrong"


@each_way
@pytest.mark.parametrize("number", [b"abc", b"-5", b"+5", b"1_0", b"", b"1 2", b"9" * 21, b"9" * 5000], ids=repr)
def test_what_is_no_number(serve: Serve, how: Any, number: bytes) -> None:
    address = serve(b"VA %d\r\n%b\r\n" % (len(number), number))
    with pytest.raises(MemcacheUnknownError):
        how(address, "incr", "key", 1)
    with pytest.raises(MemcacheUnknownError):
        how(serve(number + b"\r\n", CLASSIC), "incr", "key", 1)


@each_way
def test_a_number_that_got_shorter(serve: Serve, how: Any) -> None:
    assert how(serve(b"VA 3\r\n18 \r\n"), "decr", "key", 1) == 18
    assert how(serve(b"18 \r\n", CLASSIC), "decr", "key", 1) == 18
    assert how(serve(b"VA 20\r\n18446744073709551615\r\n"), "incr", "key", 1) == 2**64 - 1


@each_way
@pytest.mark.parametrize("known, answer", [(KNOWN, b"VA 1\r\nx\r\n"), (CLASSIC, b"VALUE key 0 1\r\nx\r\nEND\r\n")])
def test_gets_without_a_cas(serve: Serve, how: Any, known: dict[bytes, bytes], answer: bytes) -> None:
    with pytest.raises(MemcacheUnknownError):
        how(serve(answer, known), "gets", "key")


@each_way
@pytest.mark.parametrize("cas", [b"x", b"-5", b"+5", b"1_0", b"5x", b"9" * 21], ids=repr)
def test_a_cas_that_is_no_number(serve: Serve, how: Any, cas: bytes) -> None:
    with pytest.raises(MemcacheUnknownError):
        how(serve(b"VA 1 c%b\r\nx\r\n" % cas), "gets", "key")
    with pytest.raises(MemcacheUnknownError):
        how(serve(b"VALUE key 0 1 %b\r\nx\r\nEND\r\n" % cas, CLASSIC), "gets", "key")
    with pytest.raises(MemcacheUnknownError):
        how(serve(b"HD c%b\r\n" % cas), "meta_set", "key", b"value")
    assert how(serve(b"VA 1 c18446744073709551615\r\nx\r\n"), "gets", "key") == (b"x", b"18446744073709551615")


def test_refusals_are_one_line(serve: Serve) -> None:
    with pytest.raises(MemcacheUnknownError) as failure:
        called(serve(b"what\t\x00\x1b[1m\xe2\x80\xa8\xff\r\n"), "get", "key")
    assert str(failure.value).isprintable()


@each_way
@pytest.mark.parametrize("answer", [b"VA 1x\r\ny\r\n", b"VALUE key 0 1x\r\ny\r\nEND\r\n"])
def test_a_length_that_is_none(serve: Serve, how: Any, answer: bytes) -> None:
    with pytest.raises(MemcacheUnknownError):
        how(serve(answer, CLASSIC if answer.startswith(b"VALUE") else KNOWN), "get", "key")


@each_way
@pytest.mark.parametrize("method", ["meta_get", "meta_arithmetic"])
def test_flags_that_are_none(serve: Serve, how: Any, method: str) -> None:
    """A reply with malformed flags ends the call."""
    with pytest.raises(MemcacheUnknownError):
        how(serve(b"VA 1 t\r\n1\r\n"), method, "key")
