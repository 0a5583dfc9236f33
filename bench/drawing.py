"""A paper's figure for `rmemcached-bench figures`: how to draw it, and the claims beside the original."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmemcached.bench.contenders import Contender, default_contenders
from rmemcached.bench.document import Document, Record
from rmemcached.bench.errors import BenchError
from rmemcached.bench.table import number, ratio
from rmemcached.verbs import port

# The software RNIC's devices, and the part of a name for a device of the system.
DEVICES = ("soft_shm", "soft_iw")
INFINIBAND = Path("/sys/class/infiniband")
IWARP = "RNIC"  # the value of node_type
UNMEASURED = "not measured"


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement. memcached: its path; netem: a network device that may be made to lose packets."""

    quick: bool
    memcached: str = ""
    netem: str = ""

    def of(self, quick: Any, full: Any) -> Any:
        """`quick` or `full`."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Paper:
    """The source of figures."""

    title: str
    authors: str
    source: str


@dataclass(frozen=True)
class Claim:
    """A statement of the original, its figure there, and the text of the figure here, made from a document."""

    said: str
    theirs: str
    ours: Callable[[Document], str]


@dataclass(frozen=True)
class Drawing:
    """A figure to be drawn.

    axis: the parameter of the x axis, "": bars. reference: the reference of ratios; "": memcached if installed, else
    tcp. method: how, in sentences. lacks: parts of the original missing here, each with the reason for its absence.
    obstacle: the reason against drawing here, "" without. machine and options: what the figure's command has before and
    behind it, in the clone.
    """

    name: str
    title: str
    axis: str
    method: tuple[str, ...]
    measure: Callable[[Effort, Record], None]  # a round
    claims: tuple[Claim, ...]
    reference: str = ""
    lacks: tuple[str, ...] = ()
    obstacle: Callable[[Effort], str] = lambda _: ""
    machine: str = ""
    options: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        return self.name.partition("-")[0]


def system_device() -> str:
    """The system's RDMA device that connects without rdma_cm; "" without such a device."""
    try:
        device = port.choose("system")["device"]
    except OSError:
        return ""
    return "" if IWARP in (INFINIBAND / device / "node_type").read_text() else device


def contenders(effort: Effort, *names: str) -> list[Contender]:
    """The contenders available on this machine. "verbs" is our daemon over a device of the system.

    Raises BenchError when the given memcached is no program.
    """
    found = []
    for name in names:
        if name == "verbs":
            found += [Contender("verbs", "rmemcached", "verbs")] if system_device() else []
        elif name == "memcached" and effort.memcached:
            made = default_contenders([f"memcached={effort.memcached}"])
            if not made:
                raise BenchError(f"--memcached {effort.memcached}: there is no such program")
            found.append(dataclasses.replace(made[0], name="memcached"))
        else:
            found += default_contenders([name])
    return found


def participant(record: Record, name: str, server: str, client: str) -> None:
    """Adds a contender without a command of its own."""
    record.contender({"name": name, "server": server, "client": client, "command": [], "floor": False})


# --- the contents of a document ---


def cases(document: Document, **parameters: Any) -> Iterator[dict[str, Any]]:
    """The cases with these parameters, in the order of measurement."""
    for case in document["cases"]:
        if all(case["parameters"].get(key) == value for key, value in parameters.items()):
            yield case


def row(document: Document, contender: str, figure: str = "", **parameters: Any) -> dict[str, Any] | None:
    """The first result of a contender in a case with these parameters. figure: "" is the main figure."""
    for case in cases(document, **parameters):
        wanted = figure or case["figures"][0]["name"]
        for found in document["results"]:
            if (found["case"], found["contender"], found["figure"]) == (case["name"], contender, wanted):
                return dict(found)
    return None


def to_reference(contender: str, **parameters: Any) -> Callable[[Document], str]:
    """The ratio of a contender to the reference, with its mark."""

    def said(document: Document) -> str:
        found = row(document, contender, **parameters)
        return ratio(found) if found and found["ratio"] is not None else UNMEASURED

    return said


def median(contender: str, figure: str = "", **parameters: Any) -> Callable[[Document], str]:
    """The median of a contender."""

    def said(document: Document) -> str:
        found = row(document, contender, figure, **parameters)
        return number(found["median"]) if found else UNMEASURED

    return said


def last_to_first(contender: str, axis: str, **parameters: Any) -> Callable[[Document], str]:
    """A contender's median at the greatest value of the axis, divided by its median at the least value."""

    def said(document: Document) -> str:
        values = sorted(case["parameters"][axis] for case in cases(document, **parameters))
        if not values:
            return UNMEASURED
        ends = [row(document, contender, **parameters, **{axis: value}) for value in (values[0], values[-1])]
        if ends[0] is None or ends[1] is None or not ends[0]["median"]:
            return UNMEASURED
        return f"{number(ends[1]['median'] / ends[0]['median'])} at {values[-1]}"

    return said


def each(said: dict[str, Callable[[Document], str]]) -> Callable[[Document], str]:
    """The texts of several figures, each behind its name, without unmeasured figures."""

    def together(document: Document) -> str:
        found = {name: text for name, one in said.items() if (text := one(document)) != UNMEASURED}
        return ", ".join(f"{name} {text}" for name, text in found.items()) or UNMEASURED

    return together


def devices(
    which: Callable[..., Callable[[Document], str]], *names: str, **parameters: Any
) -> Callable[[Document], str]:
    """The figure `which` of each of these contenders, behind the contender's name."""
    return each({name: which(name, **parameters) for name in names})


def of_devices(
    which: Callable[..., Callable[[Document], str]],
    contender: str,
    names: Sequence[str] = (*DEVICES, "verbs"),
    key: str = "device",
    **parameters: Any,
) -> Callable[[Document], str]:
    """The figure `which` of a contender on each device. The parameter `key` of the cases names the device."""
    return each({name: which(contender, **{key: name}, **parameters) for name in names})
