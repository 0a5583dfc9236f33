"""The public names of the Python packages, beside those of the release before.

public_names.txt has a line for each: modules, functions and methods with their parameters, attributes, bases of errors.
After each release `python -P tests/client/test_public_names.py >tests/client/public_names.txt` writes the lines of the
installed package.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

MODULES = [
    "rmemcached",
    "rmemcached.client",
    "rmemcached.client.exceptions",
    "rmemcached.client.observed",
    "rmemcached.client.serde",
    "rmemcached.verbs",
]
RECORD = Path(__file__).with_name("public_names.txt")


def parameters(thing: Any) -> str:
    """The parameters as a caller may write them. Annotations have a test of their own."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [one.replace(annotation=one.empty) for one in found.parameters.values()]
    # The text of a default object has the object's address, which differs in each process.
    return re.sub(r" at 0x\w+", "", str(found.replace(parameters=bare, return_annotation=found.empty)))


def names(holder: Any) -> Iterator[str]:
    for name in sorted(getattr(holder, "__all__", None) or dir(holder)):
        if not name.startswith("_"):
            yield name


def lines() -> Iterator[str]:
    """Returns a line for each public name of the installed package."""
    for module in MODULES:
        yield module
        for name in names(loaded := import_module(module)):
            thing = getattr(loaded, name)
            own = getattr(thing, "__module__", "").startswith("rmemcached")
            if inspect.ismodule(thing) or not (own or isinstance(thing, (int, str, tuple))):
                continue
            yield f"{module}.{name}{parameters(thing)}"
            if not isinstance(thing, type):
                continue
            if issubclass(thing, Exception):
                yield f"{module}.{name} is {', '.join(sorted({base.__name__ for base in thing.__mro__[1:]}))}"
            foreign = [base for base in thing.__mro__ if base.__module__ in ("builtins", "enum")]
            inherited = {each for base in foreign for each in dir(base)}
            for each in names(thing):
                if each not in inherited:
                    yield f"{module}.{name}.{each}{parameters(getattr(thing, each))}"
    for point in metadata.distribution("rmemcached").entry_points:
        yield f"{point.group}: {point.name} = {point.value}"


def test_names_of_the_release_before() -> None:
    """Each public name of the release before is there, with the same parameters. New names are no fault."""
    before = RECORD.read_text().splitlines()
    assert len(before) > 500
    present = set(lines())
    assert [line for line in before if line not in present] == []


if __name__ == "__main__":
    print(*lines(), sep="\n", file=sys.stdout)
