"""Checks of a Client's arguments, except for its server."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

SERDE_METHODS = ("serialize", "deserialize")


class Credentials(NamedTuple):
    """A name and a password, for -Y or for SASL."""

    name: bytes
    secret: bytes
    sasl: bool


def is_integer(value: Any) -> bool:
    """Whether the value is an integer, also of NumPy's. A bool is no integer."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def as_port(port: Any) -> int:
    """A port: an integer, or its decimal digits. Raises ValueError with the allowed range."""
    digits = isinstance(port, str) and port.isascii() and port.isdigit() and len(port) <= 5
    if digits or is_integer(port):
        number = int(port)
        if 1 <= number <= 65535:
            return number
    raise ValueError("from 1 to 65535")


def looks_like_port(serde: Any) -> bool:
    """Whether the second argument of a Client is its port: Client(host, port)."""
    return isinstance(serde, str) or is_integer(serde)


def is_number(value: Any, least: float, above: bool = False) -> bool:
    """Whether the value is a finite number from `least` up, or above `least`. Texts and bools are no numbers."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        return False
    return bool(least < value < math.inf or (value == least and not above))


def check_serde(serde: Any, serializer: Any = None, deserializer: Any = None) -> None:
    """Raises TypeError for a bad serde, serializer or deserializer. None: there is none."""
    if serde is not None and not all(callable(getattr(serde, name, None)) for name in SERDE_METHODS):
        raise TypeError(
            f"serde must have the methods serialize and deserialize, not be {serde!r}; a port is an integer behind the"
            " host: Client(host, port)"
        )
    for name, function in (("serializer", serializer), ("deserializer", deserializer)):
        if function is not None and not callable(function):
            raise TypeError(f"{name} must be a function, not {function!r}")


def check_choices(**choices: Any) -> None:
    """Raises TypeError for a choice that is neither true nor false, such as the text "false"."""
    for name, value in choices.items():
        if isinstance(value, (str, bytes)) or not any(value is one or value == one for one in (True, False, None)):
            raise TypeError(f"{name} must be True or False, not {value!r}")


def check_encoding(encoding: Any) -> None:
    """Raises TypeError, or ValueError for an encoding unknown to Python."""
    if not isinstance(encoding, str):
        raise TypeError(f"encoding must be the name of one, such as 'utf-8', not {encoding!r}")
    try:
        "".encode(encoding)
    except LookupError as error:
        raise ValueError(f"encoding: {error}") from None
