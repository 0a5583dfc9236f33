"""Objects as values and keys, and the methods as objects: what pymemcache, help() and inspect have to say to them."""

from __future__ import annotations

import array
import ast
import ctypes
import datetime
import decimal
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmemcached.client
from rmemcached.client import AsyncClient, Client, MemcacheIllegalInputError, Pipeline

# As pymemcache writes them.
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
]
BUFFERS = [
    bytearray(b"1234"),
    memoryview(b"1234"),
    array.array("i", [1, 2, 3]),
    np.arange(10, dtype=np.int16),
    np.arange(12).reshape(3, 4)[:, ::2],
    np.array([(1, 2.0)], dtype=[("O", np.int32), ("P", np.float64)]),
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


@pytest.mark.parametrize("expire", [2**31 - 1, 2**31, 2**32, 2**32 + 5, 2**62, 2**63, -1, -(2**31) - 1, -(2**63)])
def test_expire_is_what_pymemcache_and_the_server_make_of_it(
    client: Client, oracle: Any, key: str, expire: int
) -> None:
    def outcome(call: Callable[[], object]) -> object:
        try:
            return call()
        except Exception as error:
            return isinstance(error, rmemcached.client.MemcacheClientError) or type(error).__name__

    def of(one: Any, name: str, command: str) -> object:
        one.set(name, b"value", expire=0)
        called = outcome(lambda: one.set(name, b"value", expire) if command == "set" else one.touch(name, expire))
        return "error" if called in (True, "MemcacheClientError") and one.get(name) is None else (called, one.get(name))

    for command in ("set", "touch"):
        mine, theirs = of(client, key, command), of(oracle, key + "-oracle", command)
        assert str(mine).replace("MemcacheClientError", "True") == str(theirs).replace("'MemcacheClientError'", "True")


def test_expire_must_be_an_integer(client: Client, key: str) -> None:
    for wrong in ("5", 5.0, None, np.int64(5)):
        with pytest.raises(MemcacheIllegalInputError, match="expire must be integer"):
            client.set(key, b"value", expire=wrong)  # type: ignore[arg-type]


# ---- the methods -----------------------------------------------------------------------------------------------------


def declared(module: str, name: str) -> dict[str, list[tuple[str, bool]]]:
    """The methods of a class in a .pyi: the names of their parameters, and whether these have defaults."""
    folder = Path(rmemcached.client.__file__).parent
    tree = ast.parse((folder / f"{module}.pyi").read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    methods: dict[str, list[tuple[str, bool]]] = {}
    for node in found.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
            continue
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args]
        without = len(plain) - len(arguments.defaults)
        listed = [(one.arg, index >= without) for index, one in enumerate(plain)]
        if arguments.vararg is not None:
            listed.append((arguments.vararg.arg, False))
        listed += [
            (one.arg, value is not None) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ]
        # The last of several overloads has them all.
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
        parameters = inspect.signature(getattr(kind, name)).parameters.values()
        found = [(one.name, one.default is not inspect.Parameter.empty) for one in parameters]
        assert found == expected, name
        assert inspect.getdoc(getattr(kind, name)), name


def test_the_signature_of_the_class(client: Client) -> None:
    parameters = inspect.signature(Client).parameters
    tree = ast.parse((Path(rmemcached.client.__file__).parent / "_client.pyi").read_text())
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
    """Refused in one line, or it works; the main interpreter goes on."""
    subprocess.run([sys.executable, "-c", textwrap.dedent(SUBINTERPRETER)], check=True, timeout=60)
