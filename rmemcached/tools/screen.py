"""The screen of rmemcached-top: tables of the readings, cut to the window."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rmemcached.client.transport.transports import ROWS
from rmemcached.tools.rates import NO_DETAIL, Reading, in_class, in_general, in_prefix, in_rdma, value
from rmemcached.tools.targets import clean

LEAST_WIDTH, LEAST_HEIGHT = 80, 20
ABSENT = "-"
MUCH = "?"  # for impossibly large numbers
SIDE_WIDTH = 23  # of the tables of commands and of RDMA
KEYS = (("q", "quit"), ("space", "pause"), ("up/down", "server"), ("s", "servers"), ("c", "classes"), ("f", "prefixes"))


def count(number: float | None) -> str:
    """Returns a number in units of 1000."""
    if number is None:
        return ABSENT
    if number < 0:
        return f"-{count(-number)}"
    for unit in ("", "k", "M", "G"):
        if number < 999.5:
            return (
                f"{number:.0f}{unit}"
                if number >= 99.5 or (not unit and number == int(number))
                else f"{number:.1f}{unit}"
            )
        number /= 1000
    return f"{number:.0f}T" if number < 999.5 else MUCH


def size(number: float | None) -> str:
    """Returns bytes in units of 1024."""
    if number is None:
        return ABSENT
    for unit in ("", "K", "M", "G"):
        if number < 1023.5:
            return f"{number:.0f}{unit}" if number >= 99.5 or not unit else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}T" if number < 1023.5 else MUCH


def percent(ratio: float | None) -> str:
    if ratio is None:
        return ABSENT
    return f"{100 * ratio:.1f}" if abs(ratio) < 100 else MUCH


def microseconds(seconds: float | None) -> str:
    return ABSENT if seconds is None else f"{seconds * 1e6:.0f}"


def word(text: str | None) -> str:
    return text or ABSENT


class Column(NamedTuple):
    """A column of a sortable table. `value` takes a row's object, and `text` this value."""

    title: str
    value: Callable[[Any], Any]
    text: Callable[[Any], str]
    width: int
    """Characters at least."""


@dataclass
class Order:
    """The order of a table's rows: by a column, or as given."""

    column: int | None = None
    upward: bool = False

    def next(self, columns: int) -> None:
        """Switches to the next column; after the last column to the given order."""
        self.column = 0 if self.column is None else self.column + 1 if self.column + 1 < columns else None

    def sort(self, rows: Sequence[Any], columns: Sequence[Column]) -> list[Any]:
        """Returns sorted rows: numbers from the largest on, the first column from its first text on. `upward` reverses.

        Unknown values come last.
        """
        if self.column is None:
            return list(reversed(rows)) if self.upward else list(rows)
        key = columns[self.column].value
        known = [row for row in rows if key(row) is not None]
        falling = self.column > 0
        return sorted(known, key=key, reverse=falling != self.upward) + [row for row in rows if key(row) is None]

    def heading(self, index: int, column: Column) -> Text:
        if index != self.column:
            return Text(column.title, "bold")
        return Text(column.title + ("^" if (index == 0) != self.upward else "v"), "bold reverse")


@dataclass
class View:
    """The choices made by keys."""

    interval: float
    prefixes: bool
    paused: bool = False
    selected: str = ""
    """The name of a server; empty: the first."""
    servers: Order = field(default_factory=Order)
    classes: Order = field(default_factory=Order)
    by_prefix: Order = field(default_factory=lambda: Order(1))


def probe(reading: Reading, worst: bool = False) -> float | None:
    if reading.last is None:
        return None
    return reading.last.probe_worst if worst else reading.last.probe


def used(reading: Reading) -> float | None:
    """Returns the fraction (0 to 1) of the memory limit used by items; None if unknown or without a limit."""
    limit, held = reading.general("limit_maxbytes"), reading.general("bytes")
    return held / limit if limit and held is not None else None


SERVERS = (
    Column("server", lambda r: r.name, word, 16),
    Column("get/s", lambda r: r.rate(in_general, "cmd_get"), count, 5),
    Column("hit %", lambda r: r.ratio(in_general, "get_hits", "get_misses"), percent, 5),
    Column("miss/s", lambda r: r.rate(in_general, "get_misses"), count, 6),
    Column("set/s", lambda r: r.rate(in_general, "cmd_set"), count, 5),
    Column("us p50", lambda r: probe(r), microseconds, 6),
    Column("us max", lambda r: probe(r, True), microseconds, 6),
    Column("mem %", used, percent, 5),
    Column("evict/s", lambda r: r.rate(in_general, "evictions"), count, 7),
    Column("conns", lambda r: r.general("curr_connections"), count, 5),
    # From here on only in wide windows.
    Column("items", lambda r: r.general("curr_items"), count, 6),
    Column("in B/s", lambda r: r.rate(in_general, "bytes_read"), size, 6),
    Column("out B/s", lambda r: r.rate(in_general, "bytes_written"), size, 7),
    Column("limit", lambda r: r.general("limit_maxbytes"), size, 6),
)


def flash_used(reading: Reading) -> float | None:
    """Returns the fraction (0 to 1) of external storage used by values."""
    limit, held = reading.general("extstore_limit_maxbytes"), reading.general("extstore_bytes_used")
    return held / limit if limit and held is not None else None


FLASH_MISSES = ("miss_from_extstore", "get_oom_extstore")


def flash_hits(reading: Reading) -> float | None:
    """Returns the fraction (0 to 1) of the fetches with a value."""
    gets, misses = (reading.change(in_general, *names) for names in (("get_extstore",), FLASH_MISSES))
    return max(1 - misses / gets, 0.0) if gets and misses is not None else None


FLASH = (
    Column("flash", lambda r: r.general("extstore_limit_maxbytes"), size, 6),
    Column("used %", flash_used, percent, 6),
    Column("free p", lambda r: r.general("extstore_pages_free"), count, 6),
    Column("get/s", lambda r: r.rate(in_general, "get_extstore"), count, 5),
    Column("hit %", flash_hits, percent, 5),
    Column("in B/s", lambda r: r.rate(in_general, "extstore_bytes_written"), size, 6),
    Column("out B/s", lambda r: r.rate(in_general, "extstore_bytes_read"), size, 7),
    Column("evict/s", lambda r: r.rate(in_general, "extstore_objects_evicted"), count, 7),
    Column("lost/s", lambda r: r.rate(in_general, "extstore_compact_lost"), count, 6),
    # Faults are rare: all of them since the start.
    Column("faults", lambda r: r.general("extstore_io_errors", "badcrc_from_extstore"), count, 6),
    # From here on only in wide windows.
    Column("moves/s", lambda r: r.rate(in_general, "extstore_compact_rescues"), count, 7),
    Column("values", lambda r: r.general("extstore_objects_used"), count, 6),
    Column("queue", lambda r: r.general("extstore_io_queue"), count, 5),
)
"""The line of a server with external storage."""

COMMANDS = (
    ("get", ("cmd_get",), "get_hits", ("get_misses",)),
    ("set", ("cmd_set",), "", ()),
    ("cas", ("cas_hits", "cas_misses", "cas_badval"), "cas_hits", ("cas_misses", "cas_badval")),
    ("touch", ("cmd_touch",), "touch_hits", ("touch_misses",)),
    ("delete", ("delete_hits", "delete_misses"), "delete_hits", ("delete_misses",)),
    ("incr", ("incr_hits", "incr_misses"), "incr_hits", ("incr_misses",)),
    ("decr", ("decr_hits", "decr_misses"), "decr_hits", ("decr_misses",)),
    ("meta", ("cmd_meta",), "", ()),
    ("direct", ("direct_hits",), "", ()),
    ("flush", ("cmd_flush",), "", ()),
    ("expired", ("get_expired",), "", ()),
    ("reclaim", ("reclaimed",), "", ()),
)
"""A row: its name, the statistics added up for its rate, the statistic of hits, the statistics of misses."""

LANES = (
    ("lanes", "rdma_streams"),
    ("queue pairs", "rdma_queue_pairs"),
    *((f" {name}", f"rdma_{name}_queue_pairs") for name, row in ROWS.items() if not (row.plain or row.by_cm)),
    *((f" {name}", f"{name}_queue_pairs") for name, row in ROWS.items() if row.by_cm),
    (" unready", "rdma_unready_queue_pairs"),
    ("views", "rdma_views"),
)
RDMA_RATES = (
    ("sends/s", count, ("rdma_sends",)),
    ("receives/s", count, ("rdma_recvs",)),
    ("READ/s", count, ("rdma_reads",)),
    ("READ B/s", size, ("rdma_read_bytes",)),
    ("WRITE/s", count, ("rdma_writes",)),
    ("WRITE B/s", size, ("rdma_write_bytes",)),
    ("waits/s", count, ("rdma_credit_waits",)),
    ("errors/s", count, ("rdma_read_errors", "rdma_write_errors", "rdma_qp_errors")),
)


class SlabClass(NamedTuple):
    place: str
    reading: Reading

    def now(self, *names: str) -> float | None:
        return value(in_class(self.place)(self.reading.last), *names) if self.reading.last else None

    def rate(self, *names: str) -> float | None:
        return self.reading.rate(in_class(self.place), *names)

    def memory(self) -> float | None:
        """Bytes of its pages."""
        factors = [self.now(name) for name in ("chunk_size", "chunks_per_page", "total_pages")]
        chunk, chunks, pages = factors
        return None if chunk is None or chunks is None or pages is None else chunk * chunks * pages

    def filled(self) -> float | None:
        """The part of the class's chunks with items, from 0 to 1."""
        total, taken = self.now("total_chunks"), self.now("used_chunks")
        return taken / total if total and taken is not None else None


CLASSES = (
    Column("class", lambda c: int(c.place), str, 5),
    Column("chunk", lambda c: c.now("chunk_size"), size, 5),
    Column("memory", lambda c: c.memory(), size, 6),
    Column("used %", lambda c: c.filled(), percent, 6),
    Column("evict/s", lambda c: c.rate("evicted"), count, 7),
    Column("items", lambda c: c.now("number", "used_chunks") if c.now("number") is None else c.now("number"), count, 6),
    Column("get/s", lambda c: c.rate("get_hits"), count, 6),
    Column("set/s", lambda c: c.rate("cmd_set"), count, 6),
    Column("age s", lambda c: c.now("age"), count, 6),
)


class Prefix(NamedTuple):
    name: str
    reading: Reading

    def rate(self, *names: str) -> float | None:
        return self.reading.rate(in_prefix(self.name), *names)

    def total(self) -> float | None:
        return value(in_prefix(self.name)(self.reading.last), "get", "set", "del") if self.reading.last else None


def hit_ratio(prefix: Prefix) -> float | None:
    gets, hits = (prefix.reading.change(in_prefix(prefix.name), name) for name in ("get", "hit"))
    return hits / gets if gets and hits is not None else None


PREFIXES = (
    Column("prefix", lambda p: p.name, word, 20),
    Column("cmd/s", lambda p: p.rate("get", "set", "del"), count, 6),
    Column("commands", lambda p: p.total(), count, 8),
    Column("get/s", lambda p: p.rate("get"), count, 6),
    Column("hit %", hit_ratio, percent, 5),
    Column("set/s", lambda p: p.rate("set"), count, 6),
    Column("del/s", lambda p: p.rate("del"), count, 6),
)


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Returns the first columns, as many as fit into the width."""
    found: list[Column] = []
    for column in columns:
        width -= column.width + 1
        if width < 0:
            break
        found.append(column)
    return found


def plain_table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=False)


def sortable(
    rows: Sequence[Any], columns: Sequence[Column], order: Order, width: int, marked: str | None = None
) -> Table:
    """Returns a table of sorted rows. marked: the first column's value in the marked row."""
    table = plain_table()
    width -= 2 if marked is not None else 0
    shown = fitting(columns, width)
    # A long name takes the remaining room, and no more.
    most = max(shown[0].width, width - 1 - sum(column.width + 1 for column in shown[1:])) if shown else 0
    if marked is not None:
        table.add_column(width=1, no_wrap=True)
    for index, column in enumerate(shown):
        table.add_column(
            order.heading(index, column),
            justify="left" if index == 0 else "right",
            min_width=column.width,
            max_width=most if index == 0 else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in rows:
        cells = [Text(column.text(column.value(row))) for column in shown]
        if marked is not None:
            chosen = columns[0].value(row) == marked
            cells.insert(0, Text(">" if chosen else " ", "bold"))
        table.add_row(*cells)
    return table


def server_table(readings: Sequence[Reading], view: View, width: int) -> Table:
    return sortable(readings, SERVERS, view.servers, width, selection(readings, view).name)


def selection(readings: Sequence[Reading], view: View) -> Reading:
    """Returns the server with details on the screen."""
    return next((reading for reading in readings if reading.name == view.selected), readings[0])


def command_table(reading: Reading, most: int | None) -> Table:
    """most: rows below the heading; None: all."""
    table = plain_table()
    for name in ("command", "/s", "hit %"):
        table.add_column(Text(name, "bold"), justify="left" if name == "command" else "right", no_wrap=True)
    for name, counted, good, others in [row for row in COMMANDS if reading.general(*row[1]) is not None][:most]:
        ratio = percent(reading.ratio(in_general, good, *others)) if good else ""
        table.add_row(Text(name), Text(count(reading.rate(in_general, *counted))), Text(ratio))
    return table


def rdma_rows(reading: Reading) -> Iterator[tuple[str, str]]:
    if not reading.last or not reading.last.rdma:
        yield "not there", ""
        return
    for name, statistic in LANES:
        if (number := reading.rdma(statistic)) is not None:
            yield name, count(number)
    if (number := reading.general("direct_readers")) is not None:
        yield "readers", count(number)
    for name, text, counted in RDMA_RATES:
        if reading.rdma(*counted) is not None:
            yield name, text(reading.rate(in_rdma, *counted))
    polled = reading.rate(in_rdma, "rdma_polled_ns")
    if polled is not None:
        yield "cores polling", f"{polled / 1e9:.2f}"


def rdma_table(reading: Reading, most: int | None) -> Table:
    """most: rows below the heading; None: all."""
    table = plain_table()
    table.add_column(Text("RDMA", "bold"), no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, text in list(rdma_rows(reading))[:most]:
        table.add_row(Text(name), Text(text))
    return table


def class_rows(reading: Reading, view: View) -> list[SlabClass]:
    places = sorted(reading.last.classes, key=int) if reading.last else []
    rows = [SlabClass(place, reading) for place in places]
    # Classes without pages any more are left out.
    return view.classes.sort([row for row in rows if row.now("total_pages") != 0], CLASSES)


def prefix_part(reading: Reading, view: View, lines: int | None, width: int) -> RenderableType:
    if reading.last is not None and not reading.last.detail:
        return Text(f"prefixes: {NO_DETAIL}")
    rows = [Prefix(name, reading) for name in sorted(reading.last.prefixes)] if reading.last else []
    rows = view.by_prefix.sort(rows, PREFIXES)
    return sortable(rows if lines is None else rows[: max(lines - 1, 0)], PREFIXES, view.by_prefix, width)


def title(reading: Reading, one_line: bool) -> Text:
    """Returns the heading of a server: its name, then versions, uptime, threads and memory, or why they are missing."""
    text = Text(no_wrap=one_line, overflow="ellipsis" if one_line else "fold")
    text.append(f"{reading.name}: ", "bold")
    if reading.error:
        return text.append(reading.error, "bold red")
    if reading.last is None:
        return text.append("no answer yet")
    general = reading.last.general
    own = general.get("rmemcached_version")
    version = clean(general.get("version", "?"))
    text.append(f"rmemcached {clean(own)}, memcached {version}" if own is not None else f"memcached {version}")
    up = reading.general("uptime") or 0
    text.append(f", up {up / 86400:.1f} days" if up >= 86400 else f", up {up:.0f} s")
    text.append(f", {count(reading.general('threads'))} threads, {size(reading.general('bytes'))} in")
    text.append(f" {count(reading.general('curr_items'))} items, limit {size(reading.general('limit_maxbytes'))}")
    return text


def details(reading: Reading, view: View, width: int, lines: int | None) -> list[RenderableType]:
    """Returns the parts about one server. lines: their number at most; None: without a limit."""
    found: list[RenderableType] = [title(reading, lines is not None)]
    if reading.last is None:
        return found
    body = None if lines is None else lines - 1
    if reading.general("extstore_limit_maxbytes") is not None:
        found.append(sortable([reading], FLASH, Order(), width))
        body = None if body is None else body - 2
    below: list[RenderableType] = []
    if view.prefixes:
        share = None if body is None else max(body // 3, 3)
        body = None if body is None or share is None else body - share
        below = [prefix_part(reading, view, share, width)]
    most = None if body is None else max(body - 1, 0)
    classes = sortable(class_rows(reading, view)[:most], CLASSES, view.classes, width - 2 * SIDE_WIDTH - 4)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_row(command_table(reading, most), classes, rdma_table(reading, most))
    return [*found, grid, *below]


def head(view: View, readings: Sequence[Reading], clock: float) -> Text:
    down = sum(bool(reading.error) for reading in readings)
    servers = f"{len(readings)} server{'s' if len(readings) > 1 else ''}" + (f", {down} down" if down else "")
    text = Text(
        f"rmemcached-top  {time.strftime('%H:%M:%S', time.localtime(clock))}  every {view.interval:g} s  {servers}"
    )
    if view.paused:
        text.append("  ").append("paused", "bold reverse")
    return text


def keys(view: View) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for key, what in KEYS:
        if view.prefixes or key != "f":
            text.append(key, "bold").append(f" {what}  ")
            if key == "up/down":
                text.append("sort: ")
    return text.append("S C F", "bold").append(" turn round")


def live(readings: Sequence[Reading], view: View, clock: float, width: int, height: int) -> RenderableType:
    """Returns a screen of this size. readings: in the order of the command line."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return Text(
            f"The window has {width}x{height} characters: rmemcached-top needs {LEAST_WIDTH}x{LEAST_HEIGHT}. q quits."
        )
    rows = view.servers.sort(readings, SERVERS)
    chosen = selection(readings, view)
    most = max((height - 4) // 3, 1)
    # If not all servers fit, the screen shows the rows around the selected row.
    first = max(min(rows.index(chosen) - most // 2, len(rows) - most), 0)
    shown = rows[first : first + most]
    left = height - 4 - len(shown)
    table = sortable(shown, SERVERS, view.servers, width, chosen.name)
    parts: list[RenderableType] = [head(view, readings, clock), keys(view), table, Text("")]
    parts += details(chosen, view, width, left)
    return Group(*parts)


def once(readings: Sequence[Reading], view: View, clock: float, width: int) -> RenderableType:
    """Returns the whole screen, from the top to the bottom."""
    parts: list[RenderableType] = [head(view, readings, clock), server_table(readings, view, width)]
    for reading in readings:
        parts += [Text(""), *details(reading, view, width, None)]
    return Group(*parts)
