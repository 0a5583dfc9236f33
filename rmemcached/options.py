"""memcached's command line: words -> Settings (memcached.c, main).

Two tables have all options: OPTIONS those with a letter, EXTENDED those of -o. Most numbers are read like atoi: blanks
before and anything behind the digits are ignored (`-m 64m` is 64). A word without any digit, 0 for memcached, is
refused here.
"""

from __future__ import annotations

import getopt
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from rmemcached import VERSIONS
from rmemcached.host import read_text
from rmemcached.option_values import (
    INT_MAX,
    UINT32_MAX,
    UsageError,
    above,
    access_mask,
    between,
    binding_protocol,
    choice,
    delimiter,
    direct_readers,
    ext_io,
    ext_path,
    hash_algorithm,
    hash_power,
    in_range,
    integer,
    interfaces,
    item_size,
    kilobytes,
    lru_algorithm,
    memory_file,
    memory_limit,
    restart_policy,
    share,
    slab_chunk_max,
    slab_sizes,
    socket_name,
    thread_count,
    unsigned,
    view_limit,
)
from rmemcached.settings import MEGABYTE, VIEWS, Settings, of_device
from rmemcached.usage import usage

CHUNK_ALIGN_BYTES = 8
MAX_SLAB_SIZES = 62
VIEWS_SHARE = 4  # items in views may have a quarter of all memory

# parts of memcached missing in this daemon: the beginnings of names of -o
NOT_BUILT_IN = {"proxy_": "proxy"}

EXT_ALIGN = 2 * MEGABYTE
EXT_PATHS = 64  # as EXT_PAGES: in flash.pxd, too
EXT_PAGES = 65534


class Action:
    """Things to do besides serving."""

    daemonize: bool = False
    pidfile: str | None = None
    user: str | None = None
    show: str | None = None
    """Text to print in place of serving."""


# ---- the tables ------------------------------------------------------------------------------------------------------


class Option(NamedTuple):
    """An option. Without `parse` there is no argument."""

    setting: str = ""
    """The attribute of Settings or Action set to the parsed argument; empty: the argument is checked only."""
    parse: Callable[[str], Any] | None = None
    long: str = ""
    """The long name of an option with a letter."""
    sets: Mapping[str, Any] = MappingProxyType({})
    """Attributes set whatever the argument is."""
    join: Callable[[Any, Any], Any] | None = None
    """Combines the previous value and this option's value; None: the new value replaces the previous value."""
    missing: str = "Missing {name} argument"
    """The error without an argument. For options with a letter the C library prints its own."""
    default: str | None = None
    """The value without an argument; None: an argument is required."""


def add_new(known: list[str], more: list[str]) -> list[str]:
    return known + [one for one in more if one not in known]


OPTIONS = {
    # where to listen
    "p": Option("port", integer("Invalid port number"), "port"),
    "U": Option("udp_port", integer("Invalid UDP port number"), "udp-port"),
    "s": Option("socket_path", str, "unix-socket"),
    "a": Option("socket_mask", access_mask, "unix-mask"),
    "l": Option("interfaces", interfaces, "listen", join=add_new),
    "B": Option("protocol", binding_protocol, "protocol"),
    "b": Option("backlog", integer("Invalid backlog"), "listen-backlog"),
    "c": Option(
        "max_connections", between(1, INT_MAX, "Maximum connections must be greater than 0"), long="conn-limit"
    ),
    "Z": Option(long="enable-ssl", sets={"ssl_enabled": True}),
    # memory and items
    "m": Option("max_bytes", memory_limit, "memory-limit"),
    "M": Option(long="disable-evictions", sets={"evict_to_free": False}),
    "I": Option("item_size_max", item_size, "max-item-size"),
    "f": Option("factor", above(1, float("inf"), "Factor must be greater than 1"), "slab-growth-factor"),
    "n": Option("chunk_size", between(1, INT_MAX, "Chunk size must be greater than 0"), "slab-min-size"),
    "L": Option(long="enable-largepages", sets={"preallocate": True}),
    "k": Option(long="lock-memory", sets={"lock_memory": True}),
    "C": Option(long="disable-cas", sets={"use_cas": False}),
    "e": Option("memory_file", memory_file, "memory-file"),
    # the rights of clients
    "A": Option(long="enable-shutdown", sets={"shutdown_command": True}),
    "F": Option(long="disable-flush-all", sets={"flush_enabled": False}),
    "X": Option(long="disable-dumping", sets={"dump_enabled": False}),
    "W": Option(long="disable-watch", sets={"watch_enabled": False}),
    "Y": Option("auth_file", str, "auth-file"),
    "S": Option(long="enable-sasl", sets={"sasl": True}),
    # the process
    "t": Option("threads", thread_count, "threads"),
    "R": Option(
        "requests_per_event",
        between(1, INT_MAX, "Number of requests per event must be greater than 0"),
        "max-reqs-per-event",
    ),
    "N": Option("napi_ids", between(1, INT_MAX, "Maximum number of NAPI IDs must be greater than 0"), "napi-ids"),
    "d": Option(long="daemon", sets={"daemonize": True}),
    "P": Option("pidfile", str, "pidfile"),
    "u": Option("user", str, "user"),
    "r": Option(long="enable-coredumps", sets={"coredumps": True}),
    "v": Option(long="verbose", sets={"verbose": 1}, join=operator.add),
    "D": Option("prefix_delimiter", delimiter, sets={"detail_enabled": True}),
    "h": Option(long="help", sets={"show": usage()}),
    "i": Option(
        long="license",
        sets={"show": f"{VERSIONS}\n\nrmemcached: BSD-3-Clause, see the file LICENSE.\n"},
    ),
    "V": Option(long="version", sets={"show": f"{VERSIONS}\n"}),
    "o": Option(parse=str, long="extended"),
}
# as getopt wants them
SHORT = "".join(letter + ":" * (option.parse is not None) for letter, option in OPTIONS.items())
LONG = [option.long + "=" * (option.parse is not None) for option in OPTIONS.values() if option.long]
LETTERS = {option.long: letter for letter, option in OPTIONS.items()}

# Numbers of -o unknown to memcached: name of option and setting, least, most.
RDMA_RANGES = (
    ("rdma_eager", 0, 1 << 30),
    ("rdma_credits", 2, 1024),
    ("rdma_msgsize", 512, 65536),
    ("rdma_max_qps", 1, 1 << 20),
    ("rdma_max_lanes", 1, 1 << 16),
    ("rdma_ready_timeout", 1, 3600),
    ("rdma_peer_memory", 0, 1 << 26),
    ("rdma_port", 1, 255),
    ("rdma_cm_port", 1, 65535),
    ("rdma_gid_index", 0, 255),
    ("rdma_direct_linger", 0, 86400),
    ("rdma_spin", 0, 1000000),
    ("rdma_spin_share", 1, 100),
)

EXTENDED = {
    "maxconns_fast": Option(sets={"maxconns_fast": True}),
    "no_maxconns_fast": Option(sets={"maxconns_fast": False}),
    "hashpower": Option("hash_power", hash_power, missing="Missing numeric argument for {name}"),
    "no_hashexpand": Option(sets={"hash_expand": False}),
    # The store has a single hash function: the name is only checked.
    "hash_algorithm": Option(parse=hash_algorithm),
    "idle_timeout": Option(
        "idle_timeout",
        between(0, INT_MAX, "idle_timeout is not a number of seconds"),
        missing="Missing numeric argument for {name}",
    ),
    "read_buf_mem_limit": Option(
        "read_buf_mem_limit", unsigned("could not parse argument to read_buf_mem_limit", MEGABYTE)
    ),
    "lru_maintainer": Option(sets={"lru_maintainer": True, "lru_segmented": True}),
    "no_lru_maintainer": Option(sets={"lru_maintainer": False, "lru_segmented": False}),
    "lru_algorithm": Option("lru_algorithm", lru_algorithm),
    "hot_lru_pct": Option("hot_lru_pct", between(1, 79, "hot_lru_pct must be > 1 and < 80")),
    "warm_lru_pct": Option("warm_lru_pct", between(1, 79, "warm_lru_pct must be > 1 and < 80")),
    "hot_max_factor": Option("hot_max_factor", above(0, float("inf"), "hot_max_factor must be > 0")),
    "warm_max_factor": Option("warm_max_factor", above(0, float("inf"), "warm_max_factor must be > 0")),
    "temporary_ttl": Option(
        "temporary_ttl", between(0, INT_MAX, "temporary_ttl is not a number of seconds"), sets={"temp_lru": True}
    ),
    "lru_crawler": Option(sets={"lru_crawler": True}),
    "no_lru_crawler": Option(sets={"lru_crawler": False}),
    "lru_crawler_sleep": Option(
        "lru_crawler_sleep",
        between(0, 1000000, "LRU crawler sleep must be between 0 and 1 second"),
        missing="Missing {name} value",
    ),
    "lru_crawler_tocrawl": Option(
        "lru_crawler_tocrawl",
        unsigned("lru_crawler_tocrawl takes a numeric 32bit value"),
        missing="Missing {name} value",
    ),
    "tail_repair_time": Option(
        "tail_repair_time",
        between(10, INT_MAX, "Cannot set tail_repair_time to less than 10 seconds"),
        missing="Missing numeric argument for {name}",
    ),
    "slab_reassign": Option(sets={"slab_reassign": True}),
    "no_slab_reassign": Option(sets={"slab_reassign": False}),
    "slab_automove": Option("slab_automove", between(0, 2, "slab_automove must be between 0 and 2"), default="1"),
    "no_slab_automove": Option(sets={"slab_automove": 0}),
    "slab_automove_ratio": Option("slab_automove_ratio", above(0, 1, "slab_automove_ratio must be > 0 and < 1")),
    "slab_automove_window": Option(
        "slab_automove_window", between(3, 1800, "slab_automove_window must be > 2 and < 1800")
    ),
    "slab_automove_freeratio": Option(
        "slab_automove_freeratio", above(0, 1, "slab_automove_freeratio must be > 0 and < 1")
    ),
    "slab_chunk_max": Option("slab_chunk_max", slab_chunk_max),
    "slab_sizes": Option("slab_sizes", slab_sizes, default=""),
    "no_chunked_items": Option(sets={"slab_chunk_max": MEGABYTE}),
    "track_sizes": Option(sets={"track_sizes": True}),
    "ext_path": Option(
        "ext_paths",
        ext_path,
        join=lambda known, more: known + more,
        missing="missing argument to ext_path, ie: ext_path=/d/file:5G",
    ),
    **{
        name: Option(name, unsigned(f"could not parse argument to {name}", unit))
        for name, unit in (
            ("ext_page_size", MEGABYTE),
            ("ext_wbuf_size", MEGABYTE),
            ("ext_threads", 1),
            ("ext_io_depth", 1),
            ("ext_item_size", 1),
            ("ext_item_age", 1),
            ("ext_low_ttl", 1),
            ("ext_recache_rate", 1),
            ("ext_compact_under", 1),
            ("ext_drop_under", 1),
            ("ext_max_sleep", 1),
        )
    },
    "ext_io": Option("ext_io", ext_io),
    "ext_max_frag": Option("ext_max_frag", share("ext_max_frag")),
    "ext_drop_unread": Option(sets={"ext_drop_unread": True}),
    "restart": Option("restart", restart_policy),
    "watcher_logbuf_size": Option(
        "logger_watcher_buf_size", unsigned("could not parse argument to watcher_logbuf_size", 1024, UINT32_MAX)
    ),
    "worker_logbuf_size": Option(
        "logger_buf_size", unsigned("could not parse argument to worker_logbuf_size", 1024, UINT32_MAX)
    ),
    "sock_cookie_id": Option("sock_cookie_id", unsigned("could not parse argument to sock_cookie_id")),
    "drop_privileges": Option(sets={"drop_privileges": True}),
    "no_drop_privileges": Option(sets={"drop_privileges": False}),
    "ssl_chain_cert": Option("ssl_chain_cert", str),
    "ssl_key": Option("ssl_key", str),
    "ssl_ca_cert": Option("ssl_ca_cert", str),
    "ssl_verify_mode": Option("ssl_verify_mode", choice("ssl_verify_mode", 0, 3)),
    "ssl_keyformat": Option("ssl_keyformat", choice("ssl_keyformat", 1, 2)),
    "ssl_ciphers": Option("ssl_ciphers", str),
    "ssl_min_version": Option("ssl_min_version", choice("ssl_min_version", 0, 3)),
    "ssl_wbuf_size": Option("ssl_wbuf_size", kilobytes("ssl_wbuf_size")),
    "ssl_session_cache": Option(sets={"ssl_session_cache": True}),
    "ssl_kernel_tls": Option(sets={"ssl_kernel_tls": True}),
    "rdma": Option(sets={"rdma": True}),
    "no_rdma": Option(sets={"rdma": False}),
    "huge_pages": Option(sets={"huge_pages": True}),
    "no_huge_pages": Option(sets={"huge_pages": False}),
    "rdma_direct": Option("rdma_direct", direct_readers, default="all"),
    "rdma_view_limit": Option("rdma_view_limit", view_limit),
    "rdma_direct_remote": Option(sets={"rdma_direct_remote": True}),
    "rdma_cleartext": Option(sets={"rdma_cleartext": True}),
    "rdma_crc": Option(sets={"rdma_crc": True}),
    "no_rdma_crc": Option(sets={"rdma_crc": False}),
    "rdma_device": Option("rdma_device", str),
    "rdma_shm": Option("rdma_shm", socket_name),
    **{name: Option(name, in_range(name, low, high)) for name, low, high in RDMA_RANGES},
    "debug_commands": Option(sets={"debug_commands": True}),
    # accepted without effect, as in today's memcached
    "modern": Option(),
    "inline_ascii_resp": Option(),
    "no_inline_ascii_resp": Option(),
    "relaxed_privileges": Option(),
}


def takes_nothing(name: str) -> bool:
    """Whether this is an option of our own without an argument. memcached ignores arguments of such options. Here
    huge_pages=no would then do the contrary of the user's wish.
    """
    plain = name.removeprefix("no_")
    ours = plain.startswith("rdma") or plain in ("huge_pages", "debug_commands")
    return ours and name in EXTENDED and EXTENDED[name].parse is None


def why_not_direct(settings: Settings) -> str:
    """Why no client may read items directly if the command line has no rdma_direct: a name of DIRECT_OFF. Empty:
    clients of the daemon's own user and of root may.
    """
    if not settings.rdma or settings.rdma_shm == "none":
        return "shared_memory"
    if settings.socket_path is not None or settings.rdma_shm is not None:
        return "-s" if settings.rdma_shm is None else "rdma_shm"
    if settings.auth_file is not None:
        return "-Y"
    if settings.sasl:
        return "-S"
    if not settings.dump_enabled:
        return "-X"
    with suppress(OSError):
        if read_text("/proc/sys/vm/overcommit_memory").strip() == "2":
            return "overcommit_memory"
    return ""


# ---- limits of several options together ------------------------------------------------------------------------------


def check_hash_power(settings: Settings) -> None:
    """The table needs more buckets than there are item locks for so many threads (memcached: thread.c)."""
    steps = ((2, 10), (3, 11), (4, 12), (10, 13), (20, 14))
    locks = next((power for threads, power in steps if settings.threads <= threads), 15)
    if 0 < settings.hash_power <= locks:
        raise UsageError(
            f"Hash table power size ({settings.hash_power}) cannot be equal to or less than item lock table ({locks})\n"
            "Item lock table grows with `-t N` (worker threadcount)\nHash table grows with `-o hashpower=N` "
        )


def check_slab_sizes(settings: Settings) -> None:
    """Chunk sizes must grow by more than the alignment."""
    last = 0
    for count, size in enumerate(settings.slab_sizes, 1):
        if not settings.chunk_size <= size <= settings.slab_chunk_max:
            raise UsageError(f"slab size {size} is out of valid range", os.EX_USAGE)
        if last >= size:
            message = f"slab size {size} cannot be lower than or equal to a previous class size"
            raise UsageError(message, os.EX_USAGE)
        if size <= last + CHUNK_ALIGN_BYTES:
            message = f"slab size {size} must be at least {CHUNK_ALIGN_BYTES} bytes larger than previous class"
            raise UsageError(message, os.EX_USAGE)
        if count > MAX_SLAB_SIZES:
            raise UsageError("too many slab classes specified", os.EX_USAGE)
        last = size
    if not settings.slab_sizes:
        raise UsageError("slab_sizes names no size", os.EX_USAGE)


def check_item_size(settings: Settings) -> None:
    """Checks the sizes of the largest item, and of the largest chunk."""
    size, chunk = settings.item_size_max, settings.slab_chunk_max
    if chunk > size:
        message = f"slab_chunk_max (bytes: {chunk}) cannot be larger than -I (item_size_max {size})"
        raise UsageError(message, os.EX_USAGE)
    if size % chunk:
        message = f"-I (item_size_max: {size}) must be evenly divisible by slab_chunk_max (bytes: {chunk})"
        raise UsageError(message, os.EX_USAGE)
    if MEGABYTE % chunk:
        message = f"slab_chunk_max (bytes: {chunk}) must divide evenly into {MEGABYTE} (slab_page_size)"
        raise UsageError(message, os.EX_USAGE)


def check_flash(settings: Settings) -> None:
    """Checks the sizes of external storage, and computes memcached's limits of free pages."""
    wbuf, page = settings.ext_wbuf_size, settings.ext_page_size
    if not settings.ext_paths:
        return
    if settings.item_size_max > wbuf:
        raise UsageError(
            f"-I (item_size_max: {settings.item_size_max}) cannot be larger than ext_wbuf_size: {wbuf}", os.EX_USAGE
        )
    if settings.udp_port:
        raise UsageError("Cannot use UDP with extstore enabled (-U 0 to disable)", os.EX_USAGE)
    if wbuf % EXT_ALIGN or page % EXT_ALIGN or wbuf == 0 or page % wbuf or not page < 1 << 32:
        raise UsageError(
            "ext_page_size and ext_wbuf_size must be even numbers of megabytes, ext_page_size a multiple of"
            " ext_wbuf_size and less than 4096",
            os.EX_USAGE,
        )
    pages = [size // page for _, size, _ in settings.ext_paths]
    if 0 in pages:
        raise UsageError(
            "supplied ext_path has zero size, cannot use: a file needs at least a page,"
            f" ext_page_size={page // MEGABYTE} megabytes",
            os.EX_USAGE,
        )
    if sum(pages) > EXT_PAGES or len(pages) > EXT_PATHS:
        raise UsageError(
            f"ext_path takes {EXT_PATHS} files and {EXT_PAGES} pages at most: increase ext_page_size, or lower sizes",
            os.EX_USAGE,
        )
    if settings.ext_threads == 0 or settings.ext_io_depth == 0:
        raise UsageError("ext_threads and ext_io_depth must be at least 1", os.EX_USAGE)
    if settings.ext_compact_under == 0:
        settings.ext_compact_under = settings.ext_drop_under = max(sum(pages) // 100, 1)


class Parsed:
    """Settings in the making."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.action = Action()
        self.given: set[str] = set()
        """Letters, and names of -o."""

    def option(self, letter: str, text: str) -> None:
        """Takes an option with its argument."""
        if letter == "o":
            self.extended(text)
        else:
            self.apply(letter, OPTIONS[letter], text)

    def extended(self, text: str) -> None:
        """Takes the options of a single -o."""
        rest = text
        while rest:
            option, _, after = rest.partition(",")
            if not option:
                raise UsageError(f'Illegal suboption "{rest}"')
            rest = after
            name, equals, value = option.partition("=")
            if equals and takes_nothing(name):
                raise UsageError(f"{name} takes no value, but has {value!r}: leave it out to keep the default")
            if name in EXTENDED:
                self.apply(name, EXTENDED[name], value if equals else EXTENDED[name].default)
            elif name == "no_modern":
                self.no_modern()
            elif name == "resp_obj_mem_limit":
                print("DEPRECATED: resp_obj_mem_limit no longer used. See read_buf_mem_limit,", file=sys.stderr)
            else:
                feature = next((what for start, what in NOT_BUILT_IN.items() if name.startswith(start)), None)
                note = f": this server is not built with {feature} support." if feature else ""
                raise UsageError(f'Illegal suboption "{option}"{note}')

    def apply(self, name: str, option: Option, text: str | None) -> None:
        """Applies an option. text: None without an argument."""
        found = dict(option.sets)
        if option.parse is not None:
            if text is None:
                raise UsageError(option.missing.format(name=name))
            value = option.parse(text)
            if option.setting:
                found[option.setting] = value
        for attribute, value in found.items():
            target = self.action if hasattr(self.action, attribute) else self.settings
            if option.join is not None:
                value = option.join(getattr(target, attribute), value)
            setattr(target, attribute, value)
        self.given.add(name)

    def no_modern(self) -> None:
        """Sets memcached 1.4's defaults."""
        settings = self.settings
        if "slab_chunk_max" not in self.given:
            settings.slab_chunk_max = MEGABYTE
        settings.slab_reassign = False
        settings.slab_automove = 0
        settings.maxconns_fast = False
        settings.lru_segmented = settings.lru_crawler = settings.lru_maintainer = False

    def check(self) -> None:
        """Checks the limits of several options together, in memcached's order."""
        settings = self.settings
        if settings.napi_ids > settings.threads:
            message = (
                f"Number of napi_ids({settings.napi_ids}) cannot be greater than number of threads({settings.threads})"
            )
            raise UsageError(message, os.EX_USAGE)
        if settings.item_size_max < 1024:
            raise UsageError("Item max size cannot be less than 1024 bytes.", os.EX_USAGE)
        if settings.item_size_max > settings.max_bytes // 2:
            raise UsageError("Cannot set item size limit higher than 1/2 of memory max.", os.EX_USAGE)
        if settings.item_size_max > 1024 * MEGABYTE:
            raise UsageError("Cannot set item size limit higher than a gigabyte.", os.EX_USAGE)
        if settings.item_size_max > MEGABYTE and "slab_chunk_max" not in self.given:
            settings.slab_chunk_max = MEGABYTE // 2
        check_item_size(settings)
        if "slab_sizes" in self.given:
            check_slab_sizes(settings)
        if settings.hot_lru_pct + settings.warm_lru_pct > 80:
            raise UsageError("hot_lru_pct + warm_lru_pct cannot be more than 80% combined", os.EX_USAGE)
        if settings.temp_lru and not settings.lru_maintainer:
            raise UsageError("temporary_ttl requires lru_maintainer to be enabled", os.EX_USAGE)
        check_hash_power(settings)
        check_flash(settings)
        if settings.sasl:
            self.check_sasl()
        if settings.auth_file is not None:
            self.check_authentication()
        for name in of_device(settings):
            if settings.socket_path is not None or not settings.rdma:
                raise UsageError(f"{name} needs TCP and RDMA: it goes with neither -s nor no_rdma", os.EX_USAGE)
            if settings.rdma_device == "none":
                raise UsageError(f"{name} needs a device: it does not go with rdma_device=none", os.EX_USAGE)
        if settings.ssl_enabled:
            self.check_tls()
        elsewhere = settings.rdma_shm not in (None, "none")
        if elsewhere and (settings.socket_path is not None or not settings.rdma):
            message = (
                "rdma_shm=<file> needs TCP and RDMA: it goes with neither -s, whose socket serves for both, nor no_rdma"
            )
            raise UsageError(message, os.EX_USAGE)
        if "restart" in self.given and settings.memory_file is None:
            raise UsageError("restart says what happens to the items of a memory file: it needs -e <file>", os.EX_USAGE)
        self.check_direct()
        if settings.rdma_direct_remote and (not settings.rdma or settings.socket_path is not None):
            raise UsageError("rdma_direct_remote needs TCP and RDMA: it goes with neither -s nor no_rdma", os.EX_USAGE)
        if settings.rdma_direct != "off":
            self.check_views()
        elif settings.rdma_view_limit is not None:
            raise UsageError("rdma_view_limit is for what rdma_direct lets clients see, and that is off", os.EX_USAGE)
        if settings.udp_port and "p" not in self.given:
            settings.port = settings.udp_port
        for port in (settings.port, settings.udp_port):
            if not -1 <= port <= 65535:
                raise UsageError(f"ERROR: Invalid port number {port}.", os.EX_USAGE)

    def check_direct(self) -> None:
        """Decides who reads items directly. Without an option, direct reads must surprise nobody."""
        settings = self.settings
        if "rdma_direct" not in self.given:
            settings.rdma_direct_off = why_not_direct(settings)
            settings.rdma_direct = "off" if settings.rdma_direct_off else "own"
        elif settings.rdma_direct == "off":
            settings.rdma_direct_off = "rdma_direct"
        elif not settings.rdma or settings.rdma_shm == "none":
            raise UsageError(
                "rdma_direct needs shared memory: it goes with neither no_rdma nor rdma_shm=none", os.EX_USAGE
            )
        elif settings.rdma_direct == "own" and (settings.socket_path is not None or settings.rdma_shm is not None):
            raise UsageError(
                "rdma_direct=own is for clients over the socket without a file: with -s and rdma_shm=<file> it is"
                " rdma_direct=all, for whoever the file's permissions let in",
                os.EX_USAGE,
            )

    def check_views(self) -> None:
        """Checks the limit of views, or sets the default. tail_repair_time excludes views: the repair takes long-held
        references of clients for lost references, and frees the item."""
        settings = self.settings
        repairs = "tail_repair_time" in self.given
        if settings.rdma_view_limit is None and not repairs:
            settings.rdma_view_limit = (settings.max_bytes // VIEWS_SHARE, VIEWS)
        elif settings.rdma_view_limit is not None and settings.rdma_view_limit[0] and repairs:
            raise UsageError(
                "tail_repair_time frees items that clients have views of: it needs rdma_view_limit=0", os.EX_USAGE
            )
        elif settings.rdma_view_limit is not None and settings.rdma_view_limit[0] > settings.max_bytes:
            views, memory = settings.rdma_view_limit[0] // MEGABYTE, settings.max_bytes // MEGABYTE
            raise UsageError(
                f"rdma_view_limit cannot be more than the memory limit: {views} MB, and -m {memory}", os.EX_USAGE
            )

    def check_sasl(self) -> None:
        # Without -B a client may speak text when it has authenticated itself by the binary protocol.
        settings = self.settings
        if "B" in self.given and settings.protocol != "binary":
            raise UsageError("ERROR: You cannot allow the ASCII protocol while using SASL.", os.EX_USAGE)
        if settings.udp_port:
            message = "ERROR: Cannot enable UDP while using binary SASL authentication."
            raise UsageError(message, os.EX_USAGE)

    def check_tls(self) -> None:
        """Checks that -Z has its files, and that nothing leaves the host in the clear unless the user says so."""
        settings = self.settings
        if settings.port == 0:
            raise UsageError("ERROR: You cannot enable SSL without a TCP port.", os.EX_USAGE)
        if settings.ssl_chain_cert is None:
            raise UsageError(
                "-Z needs the server's certificate and key: -o ssl_chain_cert=<file>,ssl_key=<file>", os.EX_USAGE
            )
        for name in (*of_device(settings), *["rdma_direct_remote"] * settings.rdma_direct_remote):
            if not settings.rdma_cleartext:
                raise UsageError(
                    f"{name} does not go with -Z: RDMA is not encrypted (-o rdma_cleartext allows it)", os.EX_USAGE
                )

    def check_authentication(self) -> None:
        settings = self.settings
        if "B" not in self.given:
            # With -S beside -Y, the first byte says how the client authenticates itself.
            settings.protocol = "auto-negotiate" if settings.sasl else "ascii"
        elif settings.protocol != "ascii":
            message = "ERROR: You cannot allow the BINARY protocol while using ascii authentication tokens."
            raise UsageError(message, os.EX_USAGE)
        if settings.udp_port:
            message = "Cannot use UDP with ascii authentication enabled (-U 0 to disable)"
            raise UsageError(message, os.EX_USAGE)


# ---- the words of the command line -----------------------------------------------------------------------------------


def getopt_message(error: getopt.GetoptError) -> str:
    """Returns the words of the C library's getopt_long for this error."""
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
    # --verbose may have an argument, ignored by everybody.
    words = [re.sub(r"^(--verb(?:o(?:s(?:e)?)?)?)=.*", r"\1", argument, flags=re.DOTALL) for argument in arguments]
    try:
        options, _ = getopt.gnu_getopt(words, SHORT, LONG)
    except getopt.GetoptError as error:
        raise UsageError(f'memcached: {getopt_message(error)}\nIllegal argument "?"') from None
    for option, value in options:
        parsed.option(LETTERS[option[2:]] if option.startswith("--") else option[1:], value.lstrip())
        if parsed.action.show is not None:
            return parsed.settings, parsed.action
    parsed.check()
    return parsed.settings, parsed.action
