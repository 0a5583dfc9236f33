"""memcached's command line: words -> Settings (memcached.c, main).

Numbers are read as atoi does: blanks before and anything behind the digits are ignored (`-m 64m` is 64). Where
memcached would take a word without any digit for 0, it is refused here.
"""

from __future__ import annotations

import getopt
import re
import sys
from collections.abc import Callable, Sequence

from rmemcached import MEMCACHED_VERSION
from rmemcached.settings import MEGABYTE, Settings
from rmemcached.usage import usage

EX_USAGE = 64
CHUNK_ALIGN_BYTES = 8
MAX_SLAB_SIZES = 62
INT_MAX = 2**31 - 1

SHORT = "a:AZp:s:U:m:Mc:khiVrvdl:u:P:f:n:t:D:LR:Cb:B:I:SFXWY:e:o:N:"
LONG = {
    "unix-mask=": "a",
    "enable-shutdown": "A",
    "enable-ssl": "Z",
    "port=": "p",
    "unix-socket=": "s",
    "udp-port=": "U",
    "memory-limit=": "m",
    "disable-evictions": "M",
    "conn-limit=": "c",
    "lock-memory": "k",
    "help": "h",
    "license": "i",
    "version": "V",
    "enable-coredumps": "r",
    "verbose": "v",
    "daemon": "d",
    "listen=": "l",
    "user=": "u",
    "pidfile=": "P",
    "slab-growth-factor=": "f",
    "slab-min-size=": "n",
    "threads=": "t",
    "enable-largepages": "L",
    "max-reqs-per-event=": "R",
    "disable-cas": "C",
    "listen-backlog=": "b",
    "protocol=": "B",
    "max-item-size=": "I",
    "enable-sasl": "S",
    "disable-flush-all": "F",
    "disable-dumping": "X",
    "disable-watch": "W",
    "auth-file=": "Y",
    "memory-file=": "e",
    "extended=": "o",
    "napi-ids=": "N",
}
OPTION_OF = {name.rstrip("="): short for name, short in LONG.items()}

# what memcached can be built with, and this daemon is not: the beginnings of names of -o
NOT_BUILT_IN = {"ext_": "extstore", "ssl_": "TLS", "proxy_": "proxy"}


class UsageError(Exception):
    """A command line that cannot be run: `args[0]` is the line to print, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Action:
    """What to do besides serving."""

    def __init__(self) -> None:
        self.daemonize = False
        self.pidfile: str | None = None
        self.user: str | None = None
        self.show: str | None = None


# ---- numbers ---------------------------------------------------------------------------------------------------------


def atoi(text: str, message: str, status: int = 1) -> int:
    """The number that `text` begins with; UsageError(message) when there is none, or none that an int holds."""
    found = re.match(r"\s*([+-]?\d+)", text, re.ASCII)
    if found is None or abs(value := int(found[1])) > INT_MAX:
        raise UsageError(message, status)
    return value


def atof(text: str, message: str) -> float:
    found = re.match(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise UsageError(message)
    return float(found[0])


def unsigned(text: str, message: str) -> int:
    """A whole word that is a number of 32 bits (memcached's safe_strtoul)."""
    if not re.fullmatch(r"\s*\+?\d+\s*", text, re.ASCII) or int(text) > 2**32 - 1:
        raise UsageError(message)
    return int(text)


def between(low: int, high: int, message: str) -> Callable[[str], int]:
    """A converter of atoi numbers that must lie in [low, high]."""

    def convert(text: str) -> int:
        value = atoi(text, message)
        if not low <= value <= high:
            raise UsageError(message)
        return value

    return convert


def above(limit: float, high: float, message: str) -> Callable[[str], float]:
    """A converter of numbers that must lie in (limit, high]."""

    def convert(text: str) -> float:
        value = atof(text, message)
        if not limit < value <= high:
            raise UsageError(message)
        return value

    return convert


def word(name: str) -> Callable[[str], int]:
    return lambda text: unsigned(text, f"could not parse argument to {name}")


def kilobytes(name: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        size = word(name)(text) * 1024
        if size > 2**32 - 1:
            raise UsageError(f"could not parse argument to {name}")
        return size

    return convert


def rdma_number(name: str, low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = atoi(text, f"could not parse argument to {name}: {text}")
        if not low <= value <= high:
            raise UsageError(f"{name} must be between {low} and {high}, not {value}")
        return value

    return convert


def socket_name(text: str) -> str:
    """A path that can stand in a line of the RDMA exchange."""
    if text != "none" and not re.fullmatch(r"/[!-~]{1,106}", text):
        raise UsageError(f"rdma_shm must be an absolute path of up to 107 characters without spaces, or none: {text!r}")
    return text


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


def check_hash_power(settings: Settings) -> None:
    """The table needs more buckets than there are item locks for so many threads (memcached: thread.c)."""
    steps = ((2, 10), (3, 11), (4, 12), (10, 13), (20, 14))
    locks = next((power for threads, power in steps if settings.threads <= threads), 15)
    if 0 < settings.hash_power <= locks:
        raise UsageError(
            f"Hash table power size ({settings.hash_power}) cannot be equal to or less than item lock table ({locks})\n"
            "Item lock table grows with `-t N` (worker threadcount)\nHash table grows with `-o hashpower=N` "
        )


def slab_chunk_max(text: str) -> int:
    if not re.fullmatch(r"\s*[+-]?\d+(\s.*)?", text, re.ASCII | re.DOTALL):
        raise UsageError("could not parse argument to slab_chunk_max")
    value = int(text.split()[0])
    if value <= 0:
        raise UsageError("slab_chunk_max must be >= 0")
    if value > 1024:
        raise UsageError("slab_chunk_max must be specified in kilobytes.")
    return value * 1024


def parse_size(text: str) -> int:
    """A size of -I in bytes: a number with k or m behind it, or without."""
    unit = {"k": 1024, "m": MEGABYTE}.get(text[-1:].lower(), 1)
    size = atoi(text, f"Item max size is not a number: {text}", EX_USAGE) * unit
    if size > INT_MAX:
        raise UsageError("Cannot set item size limit higher than a gigabyte.", EX_USAGE)
    return size


def parse_slab_sizes(text: str, settings: Settings) -> list[int]:
    """The chunk sizes of `a-b-c`, which must grow by more than the alignment."""
    sizes: list[int] = []
    for part in filter(None, text.split("-")):
        size = int(part) if part.isascii() and part.isdigit() else 0
        if not settings.chunk_size <= size <= settings.slab_chunk_max:
            raise UsageError(f"slab size {size} is out of valid range", EX_USAGE)
        last = sizes[-1] if sizes else 0
        if last >= size:
            raise UsageError(f"slab size {size} cannot be lower than or equal to a previous class size", EX_USAGE)
        if size <= last + CHUNK_ALIGN_BYTES:
            message = f"slab size {size} must be at least {CHUNK_ALIGN_BYTES} bytes larger than previous class"
            raise UsageError(message, EX_USAGE)
        sizes.append(size)
        if len(sizes) > MAX_SLAB_SIZES:
            raise UsageError("too many slab classes specified", EX_USAGE)
    if not sizes:
        raise UsageError("slab_sizes names no size", EX_USAGE)
    return sizes


# ---- -o --------------------------------------------------------------------------------------------------------------

# name -> what it sets
SWITCHES: dict[str, dict[str, bool | int]] = {
    "maxconns_fast": {"maxconns_fast": True},
    "no_maxconns_fast": {"maxconns_fast": False},
    "no_hashexpand": {"hash_expand": False},
    "slab_reassign": {"slab_reassign": True},
    "no_slab_reassign": {"slab_reassign": False},
    "no_slab_automove": {"slab_automove": 0},
    "lru_crawler": {"lru_crawler": True},
    "no_lru_crawler": {"lru_crawler": False},
    "lru_maintainer": {"lru_maintainer": True, "lru_segmented": True},
    "no_lru_maintainer": {"lru_maintainer": False, "lru_segmented": False},
    "no_chunked_items": {"slab_chunk_max": MEGABYTE},
    "track_sizes": {"track_sizes": True},
    "drop_privileges": {"drop_privileges": True},
    "no_drop_privileges": {"drop_privileges": False},
    "rdma": {"rdma": True},
    "no_rdma": {"rdma": False},
    "rdma_crc": {"rdma_crc": True},
    "no_rdma_crc": {"rdma_crc": False},
    "debug_commands": {"debug_commands": True},
}
# accepted for what memcached takes them for today: nothing
WITHOUT_EFFECT = {"modern", "inline_ascii_resp", "no_inline_ascii_resp", "relaxed_privileges"}

# name -> (attribute, what is said when the value is missing, converter)
VALUES: dict[str, tuple[str, str, Callable[[str], int | float | str]]] = {
    "hashpower": ("hash_power", "Missing numeric argument for hashpower", hash_power),
    "slab_automove_ratio": (
        "slab_automove_ratio",
        "Missing slab_automove_ratio argument",
        above(0, 1, "slab_automove_ratio must be > 0 and < 1"),
    ),
    "slab_automove_window": (
        "slab_automove_window",
        "Missing slab_automove_window argument",
        between(3, 1800, "slab_automove_window must be > 2 and < 1800"),
    ),
    "slab_automove_freeratio": (
        "slab_automove_freeratio",
        "Missing slab_automove_freeratio argument",
        above(0, 1, "slab_automove_freeratio must be > 0 and < 1"),
    ),
    "tail_repair_time": (
        "tail_repair_time",
        "Missing numeric argument for tail_repair_time",
        between(10, INT_MAX, "Cannot set tail_repair_time to less than 10 seconds"),
    ),
    "lru_crawler_sleep": (
        "lru_crawler_sleep",
        "Missing lru_crawler_sleep value",
        between(0, 1000000, "LRU crawler sleep must be between 0 and 1 second"),
    ),
    "lru_crawler_tocrawl": (
        "lru_crawler_tocrawl",
        "Missing lru_crawler_tocrawl value",
        lambda text: unsigned(text, "lru_crawler_tocrawl takes a numeric 32bit value"),
    ),
    "hot_lru_pct": (
        "hot_lru_pct",
        "Missing hot_lru_pct argument",
        between(1, 79, "hot_lru_pct must be > 1 and < 80"),
    ),
    "warm_lru_pct": (
        "warm_lru_pct",
        "Missing warm_lru_pct argument",
        between(1, 79, "warm_lru_pct must be > 1 and < 80"),
    ),
    "hot_max_factor": (
        "hot_max_factor",
        "Missing hot_max_factor argument",
        above(0, float("inf"), "hot_max_factor must be > 0"),
    ),
    "warm_max_factor": (
        "warm_max_factor",
        "Missing warm_max_factor argument",
        above(0, float("inf"), "warm_max_factor must be > 0"),
    ),
    "temporary_ttl": (
        "temporary_ttl",
        "Missing temporary_ttl argument",
        between(0, INT_MAX, "temporary_ttl is not a number of seconds"),
    ),
    "idle_timeout": (
        "idle_timeout",
        "Missing numeric argument for idle_timeout",
        between(0, INT_MAX, "idle_timeout is not a number of seconds"),
    ),
    "watcher_logbuf_size": (
        "logger_watcher_buf_size",
        "Missing watcher_logbuf_size argument",
        kilobytes("watcher_logbuf_size"),
    ),
    "worker_logbuf_size": (
        "logger_buf_size",
        "Missing worker_logbuf_size argument",
        kilobytes("worker_logbuf_size"),
    ),
    "read_buf_mem_limit": (
        "read_buf_mem_limit",
        "Missing read_buf_mem_limit argument",
        lambda text: word("read_buf_mem_limit")(text) * MEGABYTE,
    ),
    "sock_cookie_id": ("sock_cookie_id", "Missing sock_cookie_id argument", word("sock_cookie_id")),
    "slab_chunk_max": ("slab_chunk_max", "Missing slab_chunk_max argument", slab_chunk_max),
    "rdma_eager": ("rdma_eager", "Missing rdma_eager argument", rdma_number("rdma_eager", 0, 1 << 30)),
    "rdma_credits": ("rdma_credits", "Missing rdma_credits argument", rdma_number("rdma_credits", 2, 1024)),
    "rdma_msgsize": ("rdma_msgsize", "Missing rdma_msgsize argument", rdma_number("rdma_msgsize", 512, 65536)),
    "rdma_max_qps": ("rdma_max_qps", "Missing rdma_max_qps argument", rdma_number("rdma_max_qps", 1, 1 << 20)),
    "rdma_device": ("rdma_device", "Missing rdma_device argument", str),
    "rdma_shm": ("rdma_shm", "Missing rdma_shm argument", socket_name),
    "rdma_port": ("rdma_port", "Missing rdma_port argument", rdma_number("rdma_port", 1, 255)),
    "rdma_cm_port": ("rdma_cm_port", "Missing rdma_cm_port argument", rdma_number("rdma_cm_port", 1, 65535)),
    "rdma_gid_index": ("rdma_gid_index", "Missing rdma_gid_index argument", rdma_number("rdma_gid_index", 0, 255)),
    "rdma_spin": ("rdma_spin", "Missing rdma_spin argument", rdma_number("rdma_spin", 0, 1000000)),
}


class Parsed:
    """Settings in the making, and what is looked at when all options are known."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.action = Action()
        self.protocol_specified = False
        self.tcp_specified = False
        self.chunk_specified = False
        self.slab_sizes: str | None = None

    def extended(self, text: str) -> None:
        """The options of one -o."""
        settings = self.settings
        rest = text
        while rest:
            option, _, after = rest.partition(",")
            if not option:
                raise UsageError(f'Illegal suboption "{rest}"')
            rest = after
            name, equals, value = option.partition("=")
            if name in SWITCHES:
                for attribute, setting in SWITCHES[name].items():
                    setattr(settings, attribute, setting)
            elif name in VALUES:
                attribute, missing, convert = VALUES[name]
                if not equals:
                    raise UsageError(missing)
                setattr(settings, attribute, convert(value))
                settings.temp_lru |= name == "temporary_ttl"
                self.chunk_specified |= name == "slab_chunk_max"
            elif name == "slab_automove":
                convert = between(0, 2, "slab_automove must be between 0 and 2")
                settings.slab_automove = convert(value) if equals else 1
            elif name == "slab_sizes":
                self.slab_sizes = value
            elif name == "no_modern":
                self.no_modern()
            elif name == "hash_algorithm":
                # The store has one hash function: the name is only checked.
                if not equals:
                    raise UsageError("Missing hash_algorithm argument")
                if value not in ("jenkins", "murmur3", "xxh3"):
                    raise UsageError("Unknown hash_algorithm option (jenkins, murmur3, xxh3)")
            elif name == "resp_obj_mem_limit":
                print("DEPRECATED: resp_obj_mem_limit no longer used. See read_buf_mem_limit,", file=sys.stderr)
            elif name not in WITHOUT_EFFECT:
                feature = next((what for start, what in NOT_BUILT_IN.items() if name.startswith(start)), None)
                note = f": this server is not built with {feature} support." if feature else ""
                raise UsageError(f'Illegal suboption "{option}"{note}')

    def no_modern(self) -> None:
        """memcached 1.4's defaults."""
        settings = self.settings
        if not self.chunk_specified:
            settings.slab_chunk_max = MEGABYTE
        settings.slab_reassign = False
        settings.slab_automove = 0
        settings.maxconns_fast = False
        settings.lru_segmented = settings.lru_crawler = settings.lru_maintainer = False

    def option(self, flag: str, value: str) -> None:
        """One option; `flag` is its letter."""
        settings, action = self.settings, self.action
        match flag:
            case "A":
                settings.shutdown_command = True
            case "Z":
                raise UsageError("This server is not built with TLS support.", EX_USAGE)
            case "S":
                raise UsageError("This server is not built with SASL support.", EX_USAGE)
            case "e":
                raise UsageError("This server is not built with support for memory files (-e).", EX_USAGE)
            case "a":
                found = re.match(r"[0-7]+", value)
                if found is None:
                    raise UsageError(f"Invalid access mask: {value}")
                settings.socket_mask = int(found[0], 8)
            case "U":
                settings.udp_port = atoi(value, f"Invalid UDP port number: {value}")
            case "p":
                settings.port = atoi(value, f"Invalid port number: {value}")
                self.tcp_specified = True
            case "s":
                settings.socket_path = value
            case "m":
                megabytes = atoi(value, f"Invalid memory limit: {value}")
                if megabytes < 0:
                    raise UsageError(f"Invalid memory limit: {value}")
                settings.max_bytes = megabytes * MEGABYTE
            case "M":
                settings.evict_to_free = False
            case "c":
                settings.max_connections = between(1, INT_MAX, "Maximum connections must be greater than 0")(value)
            case "h":
                action.show = usage()
            case "i":
                action.show = f"memcached {MEMCACHED_VERSION}\n\nrmemcached: BSD-3-Clause, see the file LICENSE.\n"
            case "V":
                action.show = f"memcached {MEMCACHED_VERSION}\n"
            case "k":
                settings.lock_memory = True
            case "v":
                settings.verbose += 1
            case "l":
                known = settings.interfaces
                known += [part for part in re.split("[;,]", value) if part and part not in known]
            case "d":
                action.daemonize = True
            case "r":
                settings.coredumps = True
            case "R":
                message = "Number of requests per event must be greater than 0"
                settings.requests_per_event = between(1, INT_MAX, message)(value)
            case "u":
                action.user = value
            case "P":
                action.pidfile = value
            case "f":
                settings.factor = above(1, float("inf"), "Factor must be greater than 1")(value)
            case "n":
                settings.chunk_size = between(1, INT_MAX, "Chunk size must be greater than 0")(value)
            case "t":
                settings.threads = between(1, INT_MAX, "Number of threads must be greater than 0")(value)
                if settings.threads > 64:
                    print(
                        "WARNING: Setting a high number of worker threads is not recommended.\n"
                        " Set this value to the number of cores in your machine or less.",
                        file=sys.stderr,
                    )
            case "D":
                if not value:
                    raise UsageError("No delimiter specified")
                settings.prefix_delimiter = value[0]
                settings.detail_enabled = True
            case "L":
                settings.preallocate = True
            case "C":
                settings.use_cas = False
            case "b":
                settings.backlog = atoi(value, f"Invalid backlog: {value}")
            case "B":
                if value not in ("auto", "binary", "ascii"):
                    raise UsageError(
                        f"Invalid value for binding protocol: {value}\n -- should be one of auto, binary, or ascii",
                        EX_USAGE,
                    )
                settings.protocol = "auto-negotiate" if value == "auto" else value
                self.protocol_specified = True
            case "I":
                settings.item_size_max = parse_size(value)
            case "F":
                settings.flush_enabled = False
            case "X":
                settings.dump_enabled = False
            case "W":
                settings.watch_enabled = False
            case "Y":
                settings.auth_file = value
            case "N":
                settings.napi_ids = between(1, INT_MAX, "Maximum number of NAPI IDs must be greater than 0")(value)
            case "o":
                self.extended(value)

    def check(self) -> None:
        """The limits that options have together, in memcached's order."""
        settings = self.settings
        if settings.napi_ids > settings.threads:
            message = (
                f"Number of napi_ids({settings.napi_ids}) cannot be greater than number of threads({settings.threads})"
            )
            raise UsageError(message, EX_USAGE)
        size = settings.item_size_max
        if size < 1024:
            raise UsageError("Item max size cannot be less than 1024 bytes.", EX_USAGE)
        if size > settings.max_bytes // 2:
            raise UsageError("Cannot set item size limit higher than 1/2 of memory max.", EX_USAGE)
        if size > 1024 * MEGABYTE:
            raise UsageError("Cannot set item size limit higher than a gigabyte.", EX_USAGE)
        if size > MEGABYTE and not self.chunk_specified:
            settings.slab_chunk_max = MEGABYTE // 2
        chunk = settings.slab_chunk_max
        if chunk > size:
            message = f"slab_chunk_max (bytes: {chunk}) cannot be larger than -I (item_size_max {size})"
            raise UsageError(message, EX_USAGE)
        if size % chunk:
            message = f"-I (item_size_max: {size}) must be evenly divisible by slab_chunk_max (bytes: {chunk})"
            raise UsageError(message, EX_USAGE)
        if MEGABYTE % chunk:
            message = f"slab_chunk_max (bytes: {chunk}) must divide evenly into {MEGABYTE} (slab_page_size)"
            raise UsageError(message, EX_USAGE)
        if self.slab_sizes is not None:
            settings.slab_sizes = parse_slab_sizes(self.slab_sizes, settings)
        if settings.hot_lru_pct + settings.warm_lru_pct > 80:
            raise UsageError("hot_lru_pct + warm_lru_pct cannot be more than 80% combined", EX_USAGE)
        if settings.temp_lru and not settings.lru_maintainer:
            raise UsageError("temporary_ttl requires lru_maintainer to be enabled", EX_USAGE)
        check_hash_power(settings)
        if settings.auth_file is not None:
            self.check_authentication()
        if settings.rdma_cm_port and (settings.socket_path is not None or not settings.rdma):
            raise UsageError("rdma_cm_port needs TCP and RDMA: it goes with neither -s nor no_rdma", EX_USAGE)
        if settings.rdma_cm_port and settings.rdma_device == "none":
            raise UsageError("rdma_cm_port needs a device: it does not go with rdma_device=none", EX_USAGE)
        if settings.udp_port and not self.tcp_specified:
            settings.port = settings.udp_port
        for port in (settings.port, settings.udp_port):
            if not -1 <= port <= 65535:
                raise UsageError(f"ERROR: Invalid port number {port}.", EX_USAGE)

    def check_authentication(self) -> None:
        settings = self.settings
        if not self.protocol_specified:
            settings.protocol = "ascii"
        elif settings.protocol != "ascii":
            message = "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens."
            raise UsageError(message, EX_USAGE)
        if settings.udp_port:
            message = "Cannot use UDP with ascii authentication enabled (-U 0 to disable)"
            raise UsageError(message, EX_USAGE)


# ---- words -----------------------------------------------------------------------------------------------------------


def getopt_message(error: getopt.GetoptError) -> str:
    """What the C library's getopt_long says."""
    missing = "requires argument" in error.msg
    if "not a unique prefix" in error.msg:
        return f"option '--{error.opt}' is ambiguous"
    if len(error.opt) == 1:
        return f"option requires an argument -- '{error.opt}'" if missing else f"invalid option -- '{error.opt}'"
    if "must not have" in error.msg:
        return f"option '--{error.opt}' doesn't allow an argument"
    return f"option '--{error.opt}' requires an argument" if missing else f"unrecognized option '--{error.opt}'"


def parse(arguments: Sequence[str]) -> tuple[Settings, Action]:
    """Turns the words of the command line into settings. Raises UsageError."""
    parsed = Parsed()
    # --verbose may have an argument, which nobody looks at.
    words = [re.sub(r"^(--verb(?:o(?:s(?:e)?)?)?)=.*", r"\1", argument, flags=re.DOTALL) for argument in arguments]
    try:
        options, _ = getopt.gnu_getopt(words, SHORT, list(LONG))
    except getopt.GetoptError as error:
        raise UsageError(f'memcached: {getopt_message(error)}\nIllegal argument "?"') from None
    for option, value in options:
        parsed.option(OPTION_OF[option[2:]] if option.startswith("--") else option[1:], value.lstrip())
        if parsed.action.show is not None:
            return parsed.settings, parsed.action
    parsed.check()
    return parsed.settings, parsed.action
