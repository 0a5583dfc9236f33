"""A document's results as rows of text, for the terminal and for the page."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from dataclasses import dataclass
from typing import Any

from rmemcached.bench import estimate
from rmemcached.bench.arguments import CORES
from rmemcached.bench.document import Document

LONG_NAME = 12
USUAL_COLUMNS = 80
VERDICTS = {estimate.MISSED: "  MISSED", estimate.UNDECIDED: "  undecided", estimate.UNMEASURED: "  (not measured)"}
PERCENTILE_HEADINGS = {"p90": "p90", "p99": "p99", "p99_9": "p99.9", "max": "max"}
LEGEND = (
    "median and quartiles of the rounds;{reference} to floor: the median of the paired ratios to the least of its cost"
)
TO_REFERENCE = (
    " to {reference}: median of the paired ratios, and its 95 % interval; ~ within noise (the interval holds 1), ? too"
    " few rounds for an interval;"
)


@dataclass(frozen=True)
class Block:
    """The table of a case."""

    title: str
    headings: list[str]
    rows: list[list[str]]


def number(value: float) -> str:
    """The number with three significant digits, and no exponent."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def mark(row: dict[str, Any]) -> str:
    """The mark of a ratio: "~" within noise, "?" without an interval, else nothing."""
    return "?" if row["noise"] is None else "~" if row["noise"] else ""


def ratio(row: dict[str, Any]) -> str:
    return "" if row["ratio"] is None else f"{number(row['ratio'])}{mark(row)}"


def interval(row: dict[str, Any]) -> str:
    return "" if row["interval"] is None else " .. ".join(map(number, row["interval"]))


def block(document: Document, case: dict[str, Any]) -> Block:
    """The main figure in full; of each other figure the median and the ratio."""
    rows = {(row["contender"], row["figure"]): row for row in document["results"] if row["case"] == case["name"]}
    main, *others = case["figures"]
    names = [known["name"] for known in document["contenders"] if (known["name"], main["name"]) in rows]
    measured = [rows[name, main["name"]] for name in names]
    floor = any(row["to_floor"] is not None for row in measured)
    latencies = any("p50" in row for row in measured)
    headings = ["", f"{label(main)}", "quartiles", to_reference(document), "95 % interval"]
    headings += ["to floor"] if floor else []
    headings += list(PERCENTILE_HEADINGS.values()) if latencies else []
    headings += [label(figure) for figure in others]
    lines = []
    for name, row in zip(names, measured, strict=True):
        line = [name, number(row["median"])]
        line += [f"{number(row['low_quartile'])} .. {number(row['high_quartile'])}", ratio(row), interval(row)]
        line += ["" if row["to_floor"] is None else number(row["to_floor"])] if floor else []
        line += [number(row[key]) if key in row else "" for key in PERCENTILE_HEADINGS] if latencies else []
        for figure in others:
            other = rows.get((name, figure["name"]))
            line.append("" if other is None else f"{number(other['median'])} {bracketed(other)}".strip())
        lines.append(line)
    return Block(case["name"], headings, lines)


def listed(document: Document, group: str) -> Block:
    """A table of all cases of a group, a row for each contender of each."""
    known = {known["name"]: known for known in document["contenders"]}
    rows = {(row["case"], row["contender"], row["figure"]): row for row in document["results"]}
    headings = ["", "", "median", "", "quartiles", to_reference(document), "95 % interval", "to floor", "bound"]
    lines = []
    others: dict[str, None] = {}
    cases = [case for case in document["cases"] if case.get("group", "") == group]
    for case in cases:
        others |= dict.fromkeys(label(figure) for figure in case["figures"][1:])
    for case in cases:
        name = case["name"].removeprefix(f"{group}: ")
        main, *more = case["figures"]
        for contender in known:
            row = rows.get((case["name"], contender, main["name"]))
            if row is None:
                continue
            line = [name, contender, number(row["median"]), main["unit"]]
            line += [f"{number(row['low_quartile'])} .. {number(row['high_quartile'])}", ratio(row), interval(row)]
            line += ["" if row["to_floor"] is None else number(row["to_floor"]), bound(row)]
            found = {label(figure): rows.get((case["name"], contender, figure["name"])) for figure in more}
            line += ["" if (cell := found.get(other)) is None else number(cell["median"]) for other in others]
            lines.append(line)
            name = ""
    # Empty columns are left out.
    used = [at for at in range(len(headings) + len(others)) if at < 2 or any(line[at] for line in lines)]
    return Block(group, [[*headings, *others][at] for at in used], [[line[at] for at in used] for line in lines])


def bound(row: dict[str, Any]) -> str:
    """A figure's bound, and its verdict."""
    if "bound" not in row:
        return ""
    return row["bound"] + VERDICTS.get(row["verdict"], "")


def bounds(document: Document, verdict: str) -> list[str]:
    """Returns a line for each bound with this verdict: its ratio, and the spread."""
    return [
        f"{row['case']}: {row['contender']}: {verdict}: {row['bound']}: {', '.join(map(spread, row['of_bound']))}"
        for row in document["results"]
        if row.get("verdict") == verdict
    ]


def spread(found: list[float]) -> str:
    low, median, high = map(number, found)
    return f"{median} ({low} .. {high})"


def label(figure: dict[str, str]) -> str:
    """A figure's name with its unit."""
    name, unit = figure["name"], figure["unit"]
    if unit == "1/s":
        return name.replace("_", " ")
    return f"{name.removesuffix(f'_{unit}').replace('_', ' ')} {unit}".rstrip()


def to_reference(document: Document) -> str:
    """The heading of ratios."""
    name = document["reference"]
    return f"to {name}" if len(name) <= LONG_NAME else "to reference"


def bracketed(row: dict[str, Any]) -> str:
    return f"({ratio(row)})" if row["ratio"] is not None else ""


def blocks(document: Document) -> list[Block]:
    groups = dict.fromkeys(case.get("group", "") for case in document["cases"])
    plain = [block(document, case) for case in document["cases"] if not case.get("group")]
    return plain + [listed(document, group) for group in groups if group]


def legend(document: Document) -> str:
    name = document["reference"]
    return LEGEND.format(reference=TO_REFERENCE.format(reference=name) if name else "")


def placements(document: Document) -> str:
    """The placement on cores, where the cases have it."""
    found = dict.fromkeys(case["parameters"].get("cores", "") for case in document["cases"])
    return " and ".join(CORES[name] for name in found if name in CORES)


def terminal() -> int:
    """COLUMNS, or the columns of the terminal of stdout; without either 80."""
    return shutil.get_terminal_size((USUAL_COLUMNS, 24)).columns


def text(document: Document, columns: int) -> str:
    """The whole document for a terminal of so many columns. A longer cell stays whole."""
    where = [document["machine"]["cpu"], f"{document['machine']['cores']} cores", placements(document)]
    lines = [f"{document['subcommand']}: {', '.join(filter(None, where))}"]
    lines += [f"  {known['name']}: {known['server']}" for known in document["contenders"]]
    made = blocks(document)
    first = max((len(row[0]) for each in made for row in each.rows), default=0)
    lines = [part for line in lines for part in wrapped(line, columns)]
    for each in made:
        whole = beside(each, first)
        lines += ["", *wrapped(each.title, columns)]
        lines += whole if max(map(len, whole)) <= columns else below(each, columns)
    last = [part for line in [*document.get("notes", ()), legend(document)] for part in wrapped(line, columns)]
    return "\n".join([*lines, "", *last])


def wrapped(line: str, columns: int) -> list[str]:
    """Breaks a line of text into lines of so many columns; a longer word stays whole."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line, columns, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    ) or [""]


def widths_of(each: Block) -> list[int]:
    return [max(len(line[column]) for line in [each.headings, *each.rows]) for column in range(len(each.headings))]


def names_of(each: Block) -> int:
    """The number of name columns: the contender's, or the case's and the contender's."""
    return 2 if each.headings[1] == "" else 1


def beside(each: Block, first: int) -> list[str]:
    """A table with all of its columns beside each other. first: the width of the first column."""
    widths, named = widths_of(each), names_of(each)
    lines = []
    for line in [each.headings, *each.rows]:
        # Names stand at the left of their column, figures at the right.
        cells = [cell.ljust(width) for cell, width in zip(line[1:named], widths[1:named], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(line[named:], widths[named:], strict=True)]
        lines.append("  ".join((f"  {line[0]:<{first}}", *cells)).rstrip())
    return lines


def below(each: Block, columns: int) -> list[str]:
    """The table in parts below each other, each with as many columns as have room beside the contenders' names."""
    widths, named = widths_of(each), names_of(each)
    indent = "  " * named
    room = columns - len(indent) - widths[named - 1]
    parts: list[list[int]] = [[]]
    for at in range(named, len(widths)):
        # A column without a heading is the unit of the column before, and stays with it.
        if parts[-1] and each.headings[at] and sum(2 + widths[other] for other in [*parts[-1], at]) > room:
            parts.append([])
        parts[-1].append(at)
    lines = []
    for part in parts:
        for line in [each.headings, *each.rows]:
            if named == 2 and line[0]:
                lines += wrapped(f"  {line[0]}", columns)
            name = f"{indent}{line[named - 1]:<{widths[named - 1]}}"
            lines.append("  ".join((name, *(line[at].rjust(widths[at]) for at in part))).rstrip())
    return lines


def markdown(document: Document) -> str:
    """The tables of a document in Markdown, each with its command."""

    def line(cells: list[str]) -> str:
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"

    machine = document["machine"]
    where = ", ".join(filter(None, (machine["cpu"], f"{machine['cores']} cores", placements(document))))
    parts = [
        f"`{shlex.join(document['command'])}`: {document['started'][:10]}, {where};"
        f" {', '.join(dict.fromkeys(known['server'] for known in document['contenders'] if not known['floor']))}."
    ]
    for each in blocks(document):
        lines = [line(each.headings), line(["---"] * len(each.headings)), *map(line, each.rows)]
        parts += [f"**{each.title}**", "\n".join(lines)]
    return "\n\n".join([*parts, *document.get("notes", ())])
