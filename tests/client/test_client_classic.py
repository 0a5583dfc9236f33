"""Servers and proxies without meta commands pass the same test bodies as the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from classic_relay import EXPERIMENTAL, META, ClassicRelay
from conftest import Backend
from servers import Server
from test_client_errors import answering
from test_client_objects import test_buffers_are_stored_as_their_bytes  # noqa: F401
from test_client_oracle import (  # noqa: F401
    SCENARIOS,
    compare,
    other_commands,
    test_same_with_default_noreply,
    test_same_with_prefix_and_unicode_keys,
    test_same_with_serde,
    test_same_with_serializer_functions,
)
from test_client_pipeline import (  # noqa: F401
    test_behind_commands_without_an_answer,
    test_each_command_has_the_result_of_the_clients_method,
    test_gets_and_cas,
    test_many_commands,
)
from test_client_threads import (  # noqa: F401
    test_a_threads_commands_stay_in_their_order,
    test_one_client_in_many_threads,
)
from test_client_values import (  # noqa: F401
    test_errors_in_a_batch_leave_the_connection_in_step,
    test_every_size_there_and_back,
    test_many_large_values,
    test_many_small_values,
    test_store_commands_with_large_values,
    test_too_large_for_the_server_leaves_the_connection_usable,
)

from rmemcached.client import (
    AsyncClient,
    Client,
    MemcacheClientError,
    MemcacheServerError,
    MemcacheUnknownCommandError,
)

PROXY = (*META, b"version")


@pytest.fixture(params=["old", "proxy"])
def relay(request: pytest.FixtureRequest, shared_memcached: Server) -> Iterator[ClassicRelay]:
    with ClassicRelay(shared_memcached, closes=PROXY if request.param == "proxy" else ()) as relay:
        yield relay


@pytest.fixture
def backend(relay: ClassicRelay) -> Backend:
    return Backend("tcp", relay)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_same_as_pymemcache(scenario: Any, relay: ClassicRelay, client: Any, oracle: Any, key: str) -> None:
    # At a proxy that ends the connection the errors of other_commands differ: pymemcache's have no reason.
    if not (relay.closes and scenario is other_commands):
        compare(scenario, client, oracle, key)


def test_it_is_asked_once(relay: ClassicRelay, key: str) -> None:
    """The client asks for meta commands once for each connection, or once for each Client if the question ends the
    connection."""
    with Client(relay.address, transport="tcp", timeout=20, default_noreply=False) as client:
        for _ in range(3):
            assert client.set(key, b"value") is True
            assert client.get(key) == b"value"
            client.close()
        assert relay.asked == [b"mn"] * (1 if relay.closes else 3)
        # After the end of the connection the client looks once whether the server speaks TLS.
        assert relay.connections == (6 if relay.closes else 3)


def test_a_proxy_that_knows_version_is_asked_for_it(make_relay: Callable[..., ClassicRelay], key: str) -> None:
    """With newer versions of twemproxy, which answer `version`, errors of commands without an answer count for no other
    command."""
    relay = make_relay(closes=META, loud=True)
    with Client(relay.address, transport="tcp", timeout=20) as client:
        for _ in range(2):
            client.set(key, b"value")
            client.set("no" + key, bytes(9 << 20))
            assert client.get(key) == b"value"
            client.close()
    assert (relay.asked, relay.connections) == ([b"mn"], 3)


@pytest.mark.parametrize("version", EXPERIMENTAL)
def test_meta_commands_of_another_kind(make_relay: Callable[..., ClassicRelay], key: str, version: str) -> None:
    """A value sent by the meta commands of memcached 1.5.19 to 1.6.9 would become a command: none is sent."""
    relay = make_relay(version=version)
    with Client(relay.address, transport="tcp", timeout=20) as client:
        for quiet in (True, False):
            assert client.set("no" + key, b"value", noreply=False) is True
            assert client.set(key, f"delete no{key}", noreply=quiet) is True
            assert client.get("no" + key) == b"value"
            assert client.get(key) == f"delete no{key}".encode()
            assert client.touch(key, 0, noreply=False) is True
        assert client.set_many({key: b"1", "no" + key: b"2"}, noreply=False) == []
        assert client.get_many([key, "no" + key]) == {key: b"1", "no" + key: b"2"}
        assert client.incr(key, 1) == 2
        _, cas = client.gets(key)
        assert client.cas(key, b"3", cas) is True
    assert set(relay.asked) == {b"mn"}


def test_an_error_that_may_be_another_commands_ends_the_connection(
    make_relay: Callable[..., ClassicRelay], key: str
) -> None:
    """An error that may be of an earlier command without an answer ends the connection: no later answer counts for a
    wrong command."""
    relay = make_relay(closes=PROXY, loud=True)
    with Client(relay.address, transport="tcp", timeout=20) as client:
        names = [f"{key}-{number}" for number in range(4)]
        client.set_many({name: name for name in names}, noreply=False)
        client.set(key, bytes(9 << 20), noreply=True)
        with pytest.raises(MemcacheServerError, match="too large"):
            client.get(names[0])
        assert [client.get(name) for name in names] == [name.encode() for name in names]
        client.set(key, bytes(9 << 20), noreply=True)
        with client.pipeline() as pipeline:
            for name in names:
                pipeline.get(name)
        assert not any(isinstance(result, bytes) for result in pipeline.results)
        assert client.get_many(names) == {name: name.encode() for name in names}


def test_a_server_that_answers_error_to_everything() -> None:
    """Each call raises, or needs no answer; none hangs, and none takes another's answer."""
    with answering({b"": b"ERROR\r\n"}) as address, Client(address, transport="tcp", timeout=20) as client:
        for _ in range(2):
            client.set("key", b"value", noreply=True)
            for call in (lambda: client.get("key"), lambda: client.set("key", b"value", noreply=False)):
                with pytest.raises(MemcacheUnknownCommandError):
                    call()


def test_auto(relay: ClassicRelay, key: str) -> None:
    with Client(relay.address, timeout=20, default_noreply=False) as client:
        assert client.set(key, b"value") is True
        assert client.get(key) == b"value"
        assert client.transport == "tcp"


def test_errors_of_sets_without_an_answer_are_no_answers(relay: ClassicRelay, key: str) -> None:
    """An error of a set without an answer counts for no later command: the client sends `version` behind the set.
    Servers without `version` are served as by pymemcache."""
    with Client(relay.address, transport="tcp", timeout=20) as client:
        client.set(key, b"value")
        assert client.get(key) == b"value"
        if not relay.closes:
            client.set(key, bytes(9 << 20))
            client.set(key, b"other")
            assert client.get(key) == b"other"


def test_each_kind_of_get(relay: ClassicRelay, key: str) -> None:
    with Client(relay.address, transport="tcp", timeout=20, default_noreply=False) as client:
        client.set(key, b"one", flags=5)
        value, cas = client.gets(key)
        assert (value, client.gats(key, 100)) == (b"one", (b"one", cas))
        assert client.gat(key, 100) == b"one"
        assert client.gets_many([key, "no" + key]) == {key: (b"one", cas)}
        assert client.get_into(key, memory := bytearray(5)) == 3
        assert memory == b"one\0\0"
        assert client.get_many_into([(key, memory), ("no" + key, memory)]) == [3, None]
        assert bytes(client.get(key, copy=False)) == b"one"
        assert client.cas(key, b"two", cas) is True
        assert client.cas(key, b"two", cas) is False
        assert client.touch(key, 0) is True
        assert client.touch("no" + key, 0) is False
        client.set(key, b"10")
        assert (client.decr(key, 1), client.incr(key, 5), client.incr("no" + key, 1)) == (9, 14, None)
        with pytest.raises(MemcacheClientError):
            client.incr(key, 1) if client.append(key, b"x") else None


def test_async_client(relay: ClassicRelay, key: str) -> None:
    async def body() -> None:
        async with AsyncClient(relay.address, transport="tcp", timeout=20, default_noreply=False) as client:
            values = {f"{key}-{number}": b"%d" % number + bytes(number * 100) for number in range(200)}
            assert await client.set_many(values) == []
            assert await client.get_many([*values, "no" + key]) == values
            await client.set(key, b"5")
            assert await asyncio.gather(*(client.incr(key, 1) for _ in range(5))) == [6, 7, 8, 9, 10]
            value, cas = await client.gets(key)
            assert value == b"10"
            assert await client.cas(key, b"11", cas) is True
            assert await client.touch("no" + key, 5) is False
            assert await client.delete(key) is True

    asyncio.run(body())


def test_a_command_that_the_server_does_not_know(relay: ClassicRelay) -> None:
    with Client(relay.address, transport="tcp", timeout=20) as client, pytest.raises(MemcacheUnknownCommandError):
        client.raw_command("nonsense")
