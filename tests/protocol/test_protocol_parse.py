"""Tokens, numbers and base64, against Python's."""

from __future__ import annotations

import base64
import random

import pytest

from rmemcached.protocol._testing import decimal, decode64, encode64, number, tokens


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", []),
        (b"   ", []),
        (b"a", [b"a"]),
        (b" a  b ", [b"a", b"b"]),
        (b"a\tb\0c d", [b"a\tb\0c", b"d"]),
        (b" ".join([b"x"] * 40), [b"x"] * 23),
    ],
)
def test_tokens(line: bytes, expected: list[bytes]) -> None:
    assert tokens(line) == expected


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("u32", b"0", 0),
        ("u32", b"4294967295", 4294967295),
        ("u32", b"4294967296", None),
        ("u32", b"99999999999", None),
        ("u32", b"00000000007", 7),
        ("u32", b"000000000007", None),
        ("u32", b"-1", None),
        ("u32", b"1 ", None),
        ("u32", b"/", None),
        ("u32", b":", None),
        ("i32", b"-2147483648", -2147483648),
        ("i32", b"-2147483649", None),
        ("i32", b"2147483647", 2147483647),
        ("i32", b"2147483648", None),
        ("i32", b"--1", None),
        ("i32", b"+1", None),
        ("u64", b"18446744073709551615", 2**64 - 1),
        ("u64", b"18446744073709551616", None),
        ("u64", b"9999999999999999999999", None),
        ("u64", b"x", None),
        ("hex", b"0", 0),
        ("hex", b"ffffFFFFffffFFFF", 2**64 - 1),
        ("hex", b"10000000000000000", None),
        ("hex", b"", None),
        ("hex", b"g", None),
        ("hex", b"`", None),
        ("hex", b"@", None),
        ("hex", b"0x1", None),
        ("flags", b"4294967296", 0),
        ("flags", b"18446744073709551615", 4294967295),
        ("flags", b"18446744073709551616", None),
        ("flags", b"-1", None),
        ("flags", b"+7", 7),
        ("flags", b"7\t", 7),
        ("flags", b"7x", None),
        ("flags", b"", None),
        ("exptime", b"-1", -1),
        ("exptime", b"4294967297", 1),
        ("exptime", b"9223372036854775808", None),
        ("exptime", b"5\r", 5),
        ("exptime", b"5.0", None),
        ("exptime", b"-", None),
    ],
)
def test_numbers(kind: str, text: bytes, value: int | None) -> None:
    assert number(kind, text) == value


def test_decimal() -> None:
    for value in [0, 9, 10, 99, 100, 2**32 - 1, 2**32, 2**63, 2**64 - 1, *(10**n for n in range(20))]:
        assert decimal(value) == b"%d" % value
        assert decimal(value & 0xFFFFFFFF, wide=False) == b"%d" % (value & 0xFFFFFFFF)


def test_base64() -> None:
    rng = random.Random(3)
    for length in range(200):
        data = rng.randbytes(length)
        text = base64.b64encode(data)
        assert encode64(data) == text
        assert decode64(text) == data


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (b"Zm9", b""),
        (b"Zm9v!", b"foo"),
        (b"Z m9v", b"foo"),
        (b"Zg==Zg==", b"f"),
        (b"Z===", b""),
        (b"====", b""),
        (b"\xff\0", b""),
    ],
)
def test_base64_of_others(text: bytes, data: bytes) -> None:
    assert decode64(text) == data
