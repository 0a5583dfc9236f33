"""How the arguments of the daemon's options are read: words -> values. A wrong word is a UsageError."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from rmemcached.settings import DIRECT_READERS, EXT_BUCKETS, EXT_IO, MEGABYTE, RESTARTS, VIEWS

INT_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
VIEWS_LEAST = 4  # a connection may have a quarter: a single view
VIEWS_MOST = 30000  # all on the same item still leave room for further references
EXT_UNITS = {"m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


class UsageError(Exception):
    """A command line that cannot be run: `args[0]` is the line to print, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def atoi(text: str, message: str, status: int = 1) -> int:
    """The number at the beginning of `text`; UsageError(message) without a number, or above an int's range."""
    found = re.match(r"\s*([+-]?\d+)", text, re.ASCII)
    if found is None or abs(value := int(found[1])) > INT_MAX:
        raise UsageError(message, status)
    return value


def atof(text: str, message: str) -> float:
    found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise UsageError(message)
    return float(found[0])


def integer(message: str) -> Callable[[str], int]:
    """A parser of atoi numbers. Without a number, the error has the message and the argument."""
    return lambda text: atoi(text, f"{message}: {text}")


def between(low: int, high: int, message: str) -> Callable[[str], int]:
    """A parser of atoi numbers in [low, high]."""

    def parse(text: str) -> int:
        value = atoi(text, message)
        if not low <= value <= high:
            raise UsageError(message)
        return value

    return parse


def above(limit: float, high: float, message: str) -> Callable[[str], float]:
    """A parser of numbers in (limit, high]."""

    def parse(text: str) -> float:
        value = atof(text, message)
        if not limit < value <= high:
            raise UsageError(message)
        return value

    return parse


def unsigned(message: str, unit: int = 1, high: int | None = None) -> Callable[[str], int]:
    """A parser of numbers of 32 bits (memcached's safe_strtoul), in units of `unit` bytes."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*\+?\d+\s*", text, re.ASCII) or int(text) > UINT32_MAX:
            raise UsageError(message)
        value = int(text) * unit
        if high is not None and value > high:
            raise UsageError(message)
        return value

    return parse


def in_range(name: str, low: int, high: int) -> Callable[[str], int]:
    """As `between`, with messages more precise than memcached's."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
            raise UsageError(f"{name} must be a number without a unit, not {text!r}")
        value = int(text)
        if not low <= value <= high:
            raise UsageError(f"{name} must be between {low} and {high}, not {value}")
        return value

    return parse


def direct_readers(text: str) -> str:
    if text not in DIRECT_READERS:
        raise UsageError(f"rdma_direct must be own, all or off, not {text!r}")
    return text


def view_limit(text: str) -> tuple[int, int]:
    """The bytes and the number of `megabytes` or `megabytes:number`."""
    found = re.fullmatch(r"(\d{1,8})(?::(\d{1,8}))?", text, re.ASCII)
    if found is None:
        raise UsageError(f"rdma_view_limit must be megabytes, or megabytes:number of items, not {text!r}")
    number = VIEWS if found[2] is None else int(found[2])
    if not VIEWS_LEAST <= number <= VIEWS_MOST:
        raise UsageError(f"rdma_view_limit must be for {VIEWS_LEAST} to {VIEWS_MOST} items, not {number}")
    return int(found[1]) * MEGABYTE, number


def choice(name: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of numbers in [low, high], with memcached's messages."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", text, re.ASCII):
            raise UsageError(f"could not parse argument to {name}")
        if not low <= int(text) <= high:
            raise UsageError(f"Invalid {name}. Use help to see valid options.")
        return int(text)

    return parse


def kilobytes(name: str) -> Callable[[str], int]:
    """A parser of sizes in kilobytes, at least one; the result is in bytes."""

    def parse(text: str) -> int:
        size = unsigned(f"could not parse argument to {name}", 1024, UINT32_MAX)(text)
        if size == 0:
            raise UsageError(f"{name} must be at least 1 (kilobyte)")
        return size

    return parse


def access_mask(text: str) -> int:
    found = re.match(r"[0-7]+", text)
    if found is None:
        raise UsageError(f"Invalid access mask: {text}")
    return int(found[0], 8)


def memory_limit(text: str) -> int:
    message = f"Invalid memory limit: {text}"
    megabytes = atoi(text, message)
    if megabytes < 0:
        raise UsageError(message)
    return megabytes * MEGABYTE


def item_size(text: str) -> int:
    """A size in bytes: a number with k or m behind it, or without."""
    unit = {"k": 1024, "m": MEGABYTE}.get(text[-1:].lower(), 1)
    size = atoi(text, f"Item max size is not a number: {text}", os.EX_USAGE) * unit
    if size > INT_MAX:
        raise UsageError("Cannot set item size limit higher than a gigabyte.", os.EX_USAGE)
    return size


def thread_count(text: str) -> int:
    threads = between(1, INT_MAX, "Number of threads must be greater than 0")(text)
    if threads > 64:
        print(
            "WARNING: Setting a high number of worker threads is not recommended.\n"
            " Set this value to the number of cores in your machine or less.",
            file=sys.stderr,
        )
    return threads


def delimiter(text: str) -> str:
    if not text:
        raise UsageError("No delimiter specified")
    return text[0]


def binding_protocol(text: str) -> str:
    if text not in ("auto", "binary", "ascii"):
        message = f"Invalid value for binding protocol: {text}\n -- should be one of auto, binary, or ascii"
        raise UsageError(message, os.EX_USAGE)
    return "auto-negotiate" if text == "auto" else text


def interfaces(text: str) -> list[str]:
    return [part for part in re.split("[;,]", text) if part]


def hash_power(text: str) -> int:
    power = atoi(text, "Initial hashtable multiplier of 0 is too low")
    if power < 12:
        raise UsageError(f"Initial hashtable multiplier of {power} is too low")
    if power > 32:
        raise UsageError(
            f"Initial hashtable multiplier of {power} is too high\n"
            'Choose a value based on "STAT hash_power_level" from a running instance'
        )
    return power


def lru_algorithm(text: str) -> str:
    if text not in ("segmented", "s3fifo"):
        raise UsageError(f"lru_algorithm must be segmented or s3fifo, not {text}", os.EX_USAGE)
    return text


def hash_algorithm(text: str) -> str:
    if text not in ("jenkins", "murmur3", "xxh3"):
        raise UsageError("Unknown hash_algorithm option (jenkins, murmur3, xxh3)")
    return text


def slab_chunk_max(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+(\s.*)?", text, re.ASCII | re.DOTALL):
        raise UsageError("could not parse argument to slab_chunk_max")
    value = int(text.split()[0])
    if value <= 0:
        raise UsageError("slab_chunk_max must be >= 0")
    if value > 1024:
        raise UsageError("slab_chunk_max must be specified in kilobytes.")
    return value * 1024


def slab_sizes(text: str) -> list[int]:
    """The chunk sizes of `a-b-c`; 0 for a part without a number, to be refused by check_slab_sizes."""
    return [int(part) if part.isascii() and part.isdigit() else 0 for part in text.split("-") if part]


def ext_path(text: str) -> list[tuple[str, int, str]]:
    """Parses <file>:<size>[:<bucket>], the size with a unit of EXT_UNITS."""
    file, _, rest = text.partition(":")
    size, _, bucket = rest.partition(":")
    found = re.fullmatch(r"(\d+)([mgtp])", size, re.ASCII | re.IGNORECASE)
    if not file or found is None:
        raise UsageError(f"must supply size to ext_path, ie: ext_path=/f/e:64m (m|g|t|p supported), not {text!r}")
    bucket = bucket or "default"
    if bucket not in EXT_BUCKETS:
        raise UsageError(f"Unknown extstore bucket: {bucket} (known: {', '.join(EXT_BUCKETS)})")
    return [(os.path.abspath(file), int(found[1]) * EXT_UNITS[found[2].lower()], bucket)]


def ext_io(text: str) -> str:
    if text not in EXT_IO:
        raise UsageError(f"ext_io must be {', '.join(EXT_IO[:-1])} or {EXT_IO[-1]}, not {text!r}", os.EX_USAGE)
    return text


def share(name: str) -> Callable[[str], float]:
    """A parser of numbers that are not negative."""

    def parse(text: str) -> float:
        value = atof(text, f"could not parse argument to {name}")
        if value < 0:
            raise UsageError(f"could not parse argument to {name}")
        return value

    return parse


def memory_file(text: str) -> str:
    """An absolute path: the daemon of -d has another working folder."""
    if not text or "\0" in text:
        raise UsageError("-e needs the path of a file")
    return os.path.abspath(text)


def restart_policy(text: str) -> str:
    if text not in RESTARTS:
        raise UsageError(f"restart must be auto, always or fresh, not {text!r}", os.EX_USAGE)
    return text


def socket_name(text: str) -> str:
    """Parses `none`, or a path without signs that a line of the RDMA exchange cannot have."""
    if text != "none" and not re.fullmatch(r"/[!-~]{1,106}", text):
        raise UsageError(f"rdma_shm must be an absolute path of up to 107 characters without spaces, or none: {text!r}")
    return text
