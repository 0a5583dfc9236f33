"""Objects as values and keys, and the methods as objects, judged by pymemcache, help() and inspect."""

from __future__ import annotations

import array
import ast
import asyncio
import contextlib
import ctypes
import datetime
import decimal
import inspect
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Backend
from pymemcache.client.base import Client as PymemcacheClient
from pymemcache.exceptions import MemcacheError as PymemcacheError

import rmemcached.client
from rmemcached.client import (
    AsyncClient,
    AsyncClusterClient,
    Client,
    ClusterClient,
    Gathered,
    MemcacheIllegalInputError,
    Pipeline,
)


class Named(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p))


# Both clients store these values as the same text.
SCALARS = [
    5,
    -1.5,
    True,
    None,
    decimal.Decimal("1.10"),
    datetime.datetime(2024, 2, 29, 12, 30),
    datetime.date(2024, 2, 29),
    np.int64(10),
    np.uint8(200),
    np.float32(0.5),
    np.bool_(True),
    np.complex128(1 + 2j),
    np.datetime64("2024-02-29"),
    np.timedelta64(5, "s"),
    np.array(7),
    np.str_("text"),
    np.bytes_(b"bytes"),
    ctypes.c_int(5),
    [1, 2],
]
REFUSED = [
    np.array([object(), None], dtype=object),
    np.array([(1, "x")], dtype=[("O", np.int32), ("b", object)]),
    np.array(["2024-02-29"], dtype="datetime64[D]"),
    np.array([5], dtype="timedelta64[s]"),
    (ctypes.py_object * 2)(ctypes.py_object(1), ctypes.py_object(2)),
    (ctypes.c_void_p * 2)(),
    (ctypes.POINTER(ctypes.c_int) * 2)(),
    (ctypes.c_char_p * 2)(b"one", b"two"),
    (ctypes.c_wchar_p * 2)("one", "two"),
    (ctypes.CFUNCTYPE(ctypes.c_int) * 2)(),
    (Named * 2)(),
]
BUFFERS = [
    bytearray(b"1234"),
    memoryview(b"1234"),
    array.array("i", [1, 2, 3]),
    np.arange(10, dtype=np.int16),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array([(1, 2.0)], dtype=[("O", np.int32), ("P", np.float64)]),
    np.array([1 + 2j]),
    np.array([(1 + 2j, 3)], dtype=[("Z", np.complex64), ("X", np.int32)]),
    (ctypes.c_int * 3)(1, 2, 3),
]

SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import rmemcached.client
number = interpreters.create()
outcome = interpreters.run_string(number, '''
try:
    import rmemcached.client
except ImportError as error:
    text = str(error)
    assert "interpreter" in text and "\\\\n" not in text, text
else:
    rmemcached.client.Client("127.0.0.1").check_key("key")
''')
assert outcome is None, outcome
interpreters.destroy(number)
assert rmemcached.client.Client("127.0.0.1").check_key("key") == b"key"
"""


class Text(str):
    pass


class Octets(bytes):
    pass


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_what_is_no_array_is_stored_as_pymemcache_does(client: Client, oracle: Any, key: str, value: object) -> None:
    oracle.set(key + "-oracle", value)
    assert client.set(key, value) is True
    assert client.get(key) == oracle.get(key + "-oracle")


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: str(getattr(value, "dtype", type(value).__name__)))
def test_addresses_are_never_stored(client: Client, key: str, value: object) -> None:
    with pytest.raises(MemcacheIllegalInputError, match=f"a {type(value).__name__} .* serde"):
        client.set(key, value)
    with pytest.raises(MemcacheIllegalInputError):
        client.set_many({key: value})
    assert client.get(key) is None


@pytest.mark.parametrize("value", BUFFERS, ids=lambda value: type(value).__name__)
def test_buffers_are_stored_as_their_bytes(client: Client, key: str, value: Any) -> None:
    assert client.set(key, value) is True
    assert client.get(key) == memoryview(value).tobytes()


@pytest.mark.parametrize("kind", [Text, Octets, np.str_, np.bytes_], ids=lambda kind: kind.__name__)
def test_subclasses_of_bytes_and_str(make_client: Callable[..., Client], key: str, kind: Callable[..., Any]) -> None:
    def of(text: str) -> Any:
        return kind(text.encode() if issubclass(kind, bytes) else text)  # type: ignore[arg-type]

    client = make_client(key_prefix=of("p:"))
    name = of(key)
    assert client.set(name, of("value")) is True
    assert client.get(name) == b"value"
    assert client.get_many([name]) == {name: b"value"}
    assert [type(found) for found in client.get_many([name])] == [kind]
    _, cas = client.gets(name)
    assert client.cas(name, b"5", Octets(cas)) is True
    assert client.incr(name, 1) == 6
    assert client.set_many({name: b"many"}) == []
    assert client.delete(name) is True
    assert client.raw_command(of("mn"), of("\r\n")) == b"MN"
    assert client.stats(of("settings"))


@pytest.mark.parametrize("kind", [Text, Octets, np.bytes_, bytearray, Gathered], ids=lambda kind: kind.__name__)
def test_an_event_loops_first_call_stores_any_kind(backend: Backend, key: str, kind: Callable[..., Any]) -> None:
    """The first call of an event loop stores any kind of value, also in calls that wait for room."""
    kinds: dict[Any, Any] = {Text: "value", Gathered: [b"val", b"ue"]}
    value = kind(kinds.get(kind, b"value"))

    async def body() -> None:
        async with AsyncClient(backend.server.address, transport=backend.transport, timeout=20) as client:
            assert await client.set(key, value, noreply=False) is True
            assert await client.get(key) == b"value"
            keys = [f"{key}{number}" for number in range(3000)]
            assert all(await asyncio.gather(*(client.set(one, value, noreply=False) for one in keys)))

    asyncio.run(body())


EXPIRES = [0, 5, 2**31 - 1, 2**31, 2**32, 2**32 + 5, 2**62, 2**63 - 1, 2**63, 2**64]
EXPIRES += [-1, -(2**31), -(2**31) - 1, -(2**40), -(2**63), -(2**63) - 1]


def outcome(call: Callable[[], object]) -> object:
    """The result of a call, or the name of its error, common to both clients."""
    try:
        return call()
    except PymemcacheError as error:
        return type(error).__name__


@pytest.mark.parametrize("expire", EXPIRES)
def test_expire_is_what_pymemcache_and_the_server_make_of_it(
    client: Client, oracle: Any, key: str, expire: int
) -> None:
    def of(one: Any, name: str, command: str) -> tuple[object, object]:
        one.set(name, b"before", expire=0)
        if command == "set":
            called = outcome(lambda: one.set(name, b"after", expire))
        elif command == "set_many":
            called = outcome(lambda: one.set_many({name: b"after"}, expire))
        else:
            called = outcome(lambda: one.touch(name, expire))
        return called, one.get(name)

    for command in ("set", "set_many", "touch"):
        assert of(client, key, command) == of(oracle, key + "-oracle", command), command


@pytest.mark.parametrize("expire", EXPIRES)
def test_the_expire_of_gat_is_what_the_server_makes_of_it(
    client: Client, backend: Backend, oracle: Any, key: str, expire: int
) -> None:
    """pymemcache has no gat: the test sends the classic command, with the number as pymemcache writes numbers."""
    oracle.set(key, b"value", expire=0)
    assert not isinstance(backend.server.address, str)
    with socket.create_connection(backend.server.address, timeout=20) as plain, plain.makefile("rb") as lines:
        plain.sendall(f"gat {expire} {key}\r\n".encode())
        theirs = lines.readline().partition(b" ")[0]
    left = oracle.get(key)
    oracle.set(key, b"value", expire=0)
    mine = outcome(lambda: client.gat(key, expire))
    assert (mine, client.get(key)) == ("MemcacheClientError" if theirs == b"CLIENT_ERROR" else b"value", left)


def flushed(one: Any, delay: int) -> tuple[object, object]:
    """The result of flush_all, and of a get of an item behind flush_all."""
    one.flush_all()
    one.set("key", b"value")
    return outcome(lambda: one.flush_all(delay)), one.get("key")


@pytest.mark.parametrize("delay", [2**31, 2**32 + 1000, 2**63, -(2**31) - 1])
def test_the_delay_of_flush_all_is_what_pymemcache_and_the_server_make_of_it(
    rmemcached_server: Callable[..., Any], memcached_server: Callable[..., Any], delay: int
) -> None:
    for start in (rmemcached_server, memcached_server):
        server = start("-t", "1")
        ours = Client(server.address, default_noreply=False)
        theirs = PymemcacheClient(server.address, default_noreply=False)
        with contextlib.closing(ours), contextlib.closing(theirs):
            assert flushed(ours, delay) == flushed(theirs, delay)


# Calls with a number: all arguments that become digits on the wire. The first word of the error names the argument.
NUMBERS: dict[str, Callable[[Any, str, Any], Any]] = {
    "expire set": lambda c, key, n: c.set(key, b"5", n),
    "expire set_many": lambda c, key, n: c.set_many({key: b"5"}, n),
    "expire add": lambda c, key, n: c.add(key, b"5", expire=n),
    "expire replace": lambda c, key, n: c.replace(key, b"5", expire=n),
    "expire append": lambda c, key, n: c.append(key, b"5", expire=n),
    "expire prepend": lambda c, key, n: c.prepend(key, b"5", expire=n),
    "expire cas": lambda c, key, n: c.cas(key, b"5", 7, expire=n),
    "expire touch": lambda c, key, n: c.touch(key, n),
    "expire gat": lambda c, key, n: c.gat(key, n),
    "expire gats": lambda c, key, n: c.gats(key, n),
    "expire gat_many": lambda c, key, n: c.gat_many([key], n),
    "flags set": lambda c, key, n: c.set(key, b"5", flags=n),
    "flags set_many": lambda c, key, n: c.set_many({key: b"5"}, flags=n),
    "cas cas": lambda c, key, n: c.cas(key, b"5", n),
    "value incr": lambda c, key, n: c.incr(key, n),
    "value decr": lambda c, key, n: c.decr(key, n),
    "delay flush_all": lambda c, key, n: c.flush_all(n),
    "expire meta_set": lambda c, key, n: c.meta_set(key, b"5", expire=n),
    "flags meta_set": lambda c, key, n: c.meta_set(key, b"5", flags=n),
    "cas meta_set": lambda c, key, n: c.meta_set(key, b"5", cas=n),
    "cas meta_set new": lambda c, key, n: c.meta_set(key, b"5", new_cas=n),
    "touch meta_get": lambda c, key, n: c.meta_get(key, touch=n),
    "vivify meta_get": lambda c, key, n: c.meta_get(key, vivify=n),
    "recache meta_get": lambda c, key, n: c.meta_get(key, recache=n),
    "expire meta_delete": lambda c, key, n: c.meta_delete(key, invalidate=True, expire=n),
    "cas meta_delete": lambda c, key, n: c.meta_delete(key, cas=n),
    "delta meta_arithmetic": lambda c, key, n: c.meta_arithmetic(key, n),
    "initial meta_arithmetic": lambda c, key, n: c.meta_arithmetic(key, 1, initial=n),
    "vivify meta_arithmetic": lambda c, key, n: c.meta_arithmetic(key, 1, initial=5, vivify=n),
    "touch meta_arithmetic": lambda c, key, n: c.meta_arithmetic(key, 1, touch=n),
}
CALLERS = ["client", "async", "pipeline", "cluster", "async cluster"]


@contextlib.contextmanager
def caller(kind: str, address: Any) -> Iterator[Any]:
    """A Client, or an object with its methods: asynchronous methods return the results of their coroutines."""
    options: dict[str, Any] = {"default_noreply": False, "timeout": 20}
    if kind == "client":
        with Client(address, **options) as client:
            yield client
    elif kind == "cluster":
        with ClusterClient([address], **options) as cluster:
            yield cluster
    elif kind == "pipeline":
        with Client(address, **options) as client, client.pipeline() as pipeline:
            yield pipeline
    else:
        with asyncio.Runner() as runner:
            made: Any = AsyncClient(address, **options) if kind == "async" else AsyncClusterClient([address], **options)

            class Awaited:
                def __getattr__(self, name: str) -> Any:
                    async def call(*arguments: Any, **named: Any) -> Any:
                        return await getattr(made, name)(*arguments, **named)

                    getattr(made, name)
                    return lambda *arguments, **named: runner.run(call(*arguments, **named))

            yield Awaited()
            runner.run(made.close())


@pytest.mark.parametrize("kind", CALLERS)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_an_integer_and_no_bool(shared_rmemcached: Any, key: str, kind: str, name: str) -> None:
    """The client refuses anything but a number, and names the argument. NumPy's integers are numbers."""
    call = NUMBERS[name]
    with caller(kind, shared_rmemcached.address) as one:
        if not hasattr(one, name.split()[1]):
            return
        for wrong in (True, False, 5.0, np.True_, np.array([5, 6]), [5], *(("5",) if "cas" not in name else ("x",))):
            with pytest.raises(MemcacheIllegalInputError, match=f"^{name.split()[0]} must .*, got bad value: "):
                call(one, key, wrong)
        call(one, key, 5)
        call(one, key, np.int64(5))
        call(one, key, np.uint8(5))


@pytest.mark.parametrize("kind", CALLERS)
def test_noreply_is_true_or_false(shared_rmemcached: Any, key: str, kind: str) -> None:
    """noreply refuses numbers, possibly meant for expire."""
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "set": lambda c, noreply: c.set(key, b"5", 0, noreply),
        "set_many": lambda c, noreply: c.set_many({key: b"5"}, 0, noreply),
        "cas": lambda c, noreply: c.cas(key, b"5", 7, 0, noreply),
        "incr": lambda c, noreply: c.incr(key, 1, noreply),
        "touch": lambda c, noreply: c.touch(key, 0, noreply),
        "delete": lambda c, noreply: c.delete(key, noreply),
        "delete_many": lambda c, noreply: c.delete_many([key], noreply),
        "flush_all": lambda c, noreply: c.flush_all(1000, noreply),
    }
    if kind == "pipeline":
        return  # a command in a pipeline has a result, so there is no noreply
    with caller(kind, shared_rmemcached.address) as one:
        for call in calls.values():
            for wrong in (60, "no", 0.5):
                with pytest.raises(TypeError, match=f"^noreply must be True or False, not {wrong!r}$"):
                    call(one, wrong)
            for right in (True, False, 1, 0, np.False_, None):
                call(one, right)


def test_get_or_set_looks_at_numbers_before_it_computes(shared_rmemcached: Any, key: str) -> None:
    computed: list[str] = []
    for kind in ("client", "async"):
        with caller(kind, shared_rmemcached.address) as one:
            for name in ("expire", "lease", "refresh"):
                with pytest.raises(ValueError, match=f"^{name} is whole seconds.*, not True$"):
                    one.get_or_set(key, lambda: computed.append(key), **{name: True})
    assert not computed


# ---- the names -------------------------------------------------------------------------------------------------------


# The names in pickles of 0.1.0, by their modules in rmemcached.client.
PICKLED = {
    "_async": "AsyncClient",
    "_client": "Client FunctionSerde",
    "_rendezvous": "RendezvousHash",
    "async_cluster": "AsyncClusterClient",
    "cluster": "ClusterClient",
    "discovery": "configured_servers dns_servers",
    "exceptions": "MemcacheClientError MemcacheError MemcacheIllegalInputError MemcacheServerError"
    " MemcacheUnexpectedCloseError MemcacheUnknownCommandError MemcacheUnknownError TooManyConnections"
    " TransportRefused TransportUnavailable",
    "hashing": "KetamaHash RendezvousHash",
    "meta": "MetaItem MetaNumber MetaResult",
    "observed": "Metrics ObservedAsyncClient ObservedClient Observer",
    "serde": "CompressedSerde LegacyWrappingSerde NumpySerde Pickle5Serde PickleSerde ZstdSerde",
    "sockets": "KeepaliveOpts",
}
LOAD = """
import pickle, sys
found = [pickle.loads(f"crmemcached.client.{sys.argv[1]}\\n{name}\\n.".encode()) for name in sys.argv[2:]]
import rmemcached.client
assert getattr(rmemcached.client, sys.argv[1]) is sys.modules[f"rmemcached.client.{sys.argv[1]}"]
print(*(one.__name__ for one in found if getattr(rmemcached.client, one.__name__, one) is one))
"""


@pytest.mark.parametrize("module", PICKLED)
def test_pickles_of_earlier_versions_are_loaded(module: str) -> None:
    """A process that has imported nothing of the package loads old pickles, and gets the objects of today's package."""
    command = [sys.executable, "-c", LOAD, module, *PICKLED[module].split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{PICKLED[module]}\n", "")


# ---- the methods -----------------------------------------------------------------------------------------------------


NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD
Signature = list[tuple[str, Any, bool]]


def declared(module: str, name: str) -> dict[str, Signature]:
    """The methods of a class in a .pyi: their parameters but self, with their kinds, and whether they have defaults."""
    folder = Path(rmemcached.client.__file__).parent
    tree = ast.parse((folder / "api" / f"{module}.pyi").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods: dict[str, Signature] = {}
    for node in found.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
            continue
        arguments = node.args
        assert not arguments.posonlyargs, node.name
        without = len(arguments.args) - len(arguments.defaults)
        listed: Signature = [(one.arg, NAMED, index >= without) for index, one in enumerate(arguments.args)][1:]
        if arguments.vararg is not None:
            listed.append((arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL, False))
        listed += [
            (one.arg, inspect.Parameter.KEYWORD_ONLY, value is not None)
            for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ]
        if arguments.kwarg is not None:
            listed.append((arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD, False))
        # The last of several overloads has all parameters.
        methods[node.name] = listed
    return methods


@pytest.mark.parametrize(
    ("module", "kind"),
    [("_client", Client), ("_pipeline", Pipeline), ("_async", AsyncClient)],
    ids=lambda one: str(one),
)
def test_signatures_are_those_of_the_type_hints(module: str, kind: type) -> None:
    methods = declared(module, kind.__name__)
    public = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    assert public == set(methods)
    for name, expected in methods.items():
        _, *parameters = inspect.signature(getattr(kind, name)).parameters.values()
        found = [(one.name, one.kind, one.default is not inspect.Parameter.empty) for one in parameters]
        assert found == expected, name
        assert inspect.getdoc(getattr(kind, name)), name


def test_the_signature_of_the_class(client: Client) -> None:
    parameters = inspect.signature(Client).parameters
    tree = ast.parse((Path(rmemcached.client.__file__).parent / "api" / "_client.pyi").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Client")
    first = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    assert list(parameters) == [one.arg for one in (*first.args.args[1:], *first.args.kwonlyargs)]
    for name in parameters:
        assert f"{name}" in (Client.__doc__ or ""), name
    assert "(server, serde=None" not in (Client.__doc__ or "")


def test_help(client: Client) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from rmemcached.client import Client; help(Client)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "class Client(" in done.stdout
    assert "get(self, /, key, default=None, *, copy=True)" in done.stdout
    assert "set(self, /, key, value, expire=0, noreply=None, flags=None)" in done.stdout


def test_subinterpreters() -> None:
    """A subinterpreter works, or is refused in one line. The main interpreter goes on."""
    subprocess.run([sys.executable, "-c", textwrap.dedent(SUBINTERPRETER)], check=True, timeout=60)
