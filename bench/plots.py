"""Plots as SVG: lines against a parameter, latency by percentile, bars. Colours suit light and dark pages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rmemcached.bench.arguments import size_name
from rmemcached.bench.document import Document, histograms_of
from rmemcached.bench.measure import merged
from rmemcached.bench.table import label, number

COLOURS = ("#2a9d6f", "#3b8ed0", "#9a6fd0", "#d9652b", "#c8446a", "#c9a227", "#5aa9a3", "#a0685a")
GREY = "#7d8590"
# {parameter: the name of its x axis}, for parameters with several values.
AXES = {
    "size": "value size",
    "think_us": "think time, us",
    "connections": "connections",
    "depth": "requests at a time",
    "keys": "keys",
    "rate": "requests a second",
    "sharers": "threads",
    "applications": "applications, a process each",
    "loss_percent": "packets lost, %",
}
# Parameters that follow from the others.
CONSEQUENCES = ("stored",)
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 30, 48
IN_A_ROW = 2  # names below a plot
FLOOR_DASHES = ("2 3", "8 3", "8 3 2 3")
BOX = re.compile(r'viewBox="0 0 \d+ (\d+)"')
PERCENTS = (50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


@dataclass(frozen=True)
class Line:
    """A name, its colour, its dashes ("": none), and its points."""

    name: str
    colour: str
    dashes: str
    points: list[tuple[float, float]]


def element(tag: str, content: str = "", **attributes: Any) -> str:
    words = "".join(f' {key.replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    return f"<{tag}{words}>{content}</{tag}>" if content else f"<{tag}{words}/>"


def words(x: float, y: float, content: str, anchor: str = "middle", **more: Any) -> str:
    return element(
        "text", escape(content), x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, font_size=11, fill=GREY, **more
    )


def figure(content: list[str], height: float, title: str) -> str:
    """An <svg> element with this content."""
    return element(
        "svg",
        element("title", escape(title)) + "".join(content),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        font_family="system-ui, sans-serif",
    )


def stacked(pictures: Sequence[str]) -> str:
    """An <svg> of several pictures, in a column."""
    if len(pictures) == 1:
        return pictures[0]
    content, top = [], 0.0
    for picture in pictures:
        found = BOX.search(picture)
        assert found is not None
        height = float(found[1])
        content.append(picture.replace("<svg ", f'<svg y="{top:.0f}" width="{WIDTH}" height="{height:.0f}" ', 1))
        top += height
    return figure(content, top, "medians")


def decades(low: float, high: float) -> list[float]:
    """The ticks 1, 2 and 5 of each decade between the two; only 1 when there are many decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    return [factor * 10.0**power for power in range(first, last + 1) for factor in factors]


def tick_name(value: float) -> str:
    """The name of a tick, short enough for its place: millions by a letter, where %g has 1e+06."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:g}"


def logarithm(value: float) -> float:
    """A value's place on the y axis. 0 and negative values are far down."""
    return math.log10(max(value, 1e-9))


def lines(
    made: Sequence[Line],
    title: str,
    y_label: str,
    x_label: str,
    ticks: Sequence[tuple[float, str]],
    along: Callable[[float], float],
) -> str:
    """A plot of lines on a logarithmic y axis. along: the place of a value on the x axis, in any unit."""
    values = [y for line in made for _, y in line.points if y > 0]
    low, high = min(values, default=1), max(values, default=1)
    bottom, top = logarithm(low / 1.15), logarithm(high * 1.15)
    edges = [along(x) for x, _ in ticks]
    begin, end = min(edges), max(edges)

    def across(x: float) -> float:
        part = (along(x) - begin) / (end - begin) if end > begin else 0.5
        return LEFT + 8 + part * (WIDTH - LEFT - RIGHT - 16)

    def up(y: float) -> float:
        return TOP + (top - logarithm(y)) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    content = [words(LEFT, 16, title, "start", font_weight="bold")]
    for y in decades(low / 1.15, high * 1.15):
        if bottom <= logarithm(y) <= top:
            at = f"{up(y):.1f}"
            content.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, stroke=GREY, stroke_opacity=0.25))
            content.append(words(LEFT - 6, up(y) + 4, tick_name(y), "end"))
    for x, name in ticks:
        content.append(words(across(x), HEIGHT - BOTTOM + 16, name))
    content.append(words((LEFT + WIDTH) / 2, HEIGHT - BOTTOM + 34, x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    content.append(words(14, middle, y_label, transform=f"rotate(-90 14 {middle:.0f})"))
    for line in made:
        content += drawn(line, across, up)
    return figure([*content, *keys(made, HEIGHT)], HEIGHT + 18 * rows_of_keys(made), title)


def drawn(line: Line, across: Callable[[float], float], up: Callable[[float], float]) -> list[str]:
    points = [(across(x), up(y), y) for x, y in line.points if y > 0]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dashes = {"stroke_dasharray": line.dashes} if line.dashes else {}
    made = [element("polyline", points=path, fill="none", stroke=line.colour, stroke_width=1.8, **dashes)]
    for x, y, value in points:
        tip = element("title", escape(f"{line.name}: {number(value)}"))
        made.append(element("circle", tip, cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, fill=line.colour))
    return made


def rows_of_keys(made: Sequence[Line]) -> int:
    return -(-len(made) // IN_A_ROW)


def keys(made: Sequence[Line], top: float) -> list[str]:
    """The meaning of the colours."""
    content = []
    for place, line in enumerate(made):
        x, y = LEFT + place % IN_A_ROW * 245, top + 6 + place // IN_A_ROW * 18
        dashes = {"stroke_dasharray": line.dashes} if line.dashes else {}
        content.append(
            element("line", x1=x, x2=x + 18, y1=y - 4, y2=y - 4, stroke=line.colour, stroke_width=2, **dashes)
        )
        content.append(words(x + 23, y, line.name, "start"))
    return content


def styles(document: Document) -> dict[str, tuple[str, str]]:
    """{contender: (colour, dashes)}; floors are grey and dashed, the reference is dashed."""
    found = {}
    names = [known["name"] for known in document["contenders"] if not known["floor"]]
    for place, name in enumerate(names):
        found[name] = (COLOURS[place % len(COLOURS)], "5 4" if name == document["reference"] else "")
    floors = [known["name"] for known in document["contenders"] if known["floor"]]
    for place, name in enumerate(floors):
        found[name] = (GREY, FLOOR_DASHES[place % len(FLOOR_DASHES)])
    return found


def told_apart(document: Document) -> set[str]:
    """The parameters with different values in the cases."""
    values: dict[str, set[str]] = {}
    for case in document["cases"]:
        for key, value in case["parameters"].items():
            values.setdefault(key, set()).add(str(value))
    return {key for key, found in values.items() if len(found) > 1}


def medians(document: Document) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["case"], row["contender"], row["figure"]): row for row in document["results"]}


def against(document: Document) -> list[tuple[str, str]]:
    """(title, SVG): the main figure against each parameter with several values, with all else equal.

    A document with an `axis` is drawn against this axis only.
    """
    rows, apart = medians(document), told_apart(document)
    made = []
    wanted = document.get("axis", "")
    for axis, axis_name in {wanted: AXES[wanted]}.items() if wanted else AXES.items():
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for case in document["cases"]:
            if axis in case["parameters"]:
                rest = tuple(
                    (key, value) for key, value in case["parameters"].items() if key not in (axis, *CONSEQUENCES)
                )
                groups.setdefault((rest, case["figures"][0]["name"]), []).append(case)
        for (rest, figure_name), cases in groups.items():
            cases.sort(key=lambda case: case["parameters"][axis])
            xs = [case["parameters"][axis] for case in cases]
            if len(set(xs)) < 2:
                continue
            found = []
            for name, (colour, dashes) in styles(document).items():
                points = [
                    (float(case["parameters"][axis]), rows[case["name"], name, figure_name]["median"])
                    for case in cases
                    if (case["name"], name, figure_name) in rows
                ]
                if points:
                    found.append(Line(name, colour, dashes, points))
            title = ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in rest if key in apart)
            ticks = [(float(x), size_name(x) if axis == "size" else str(x)) for x in xs]
            main = label(cases[0]["figures"][0])
            picture = lines(found, title or main, f"median of {main}", axis_name, ticks, lambda x: math.log2(x + 1))
            made.append((f"{main} against {axis_name}", picture))
    return made


def nines(percent: float) -> float:
    """The place of a percentile on the axis: 90, 99 and 99.9 are equally far apart."""
    return -math.log10(1 - percent / 100)


def percentiles(document: Document) -> list[tuple[str, str]]:
    """(title, SVG) of each case with latencies: latency by percentile."""
    made = []
    for case in document["cases"]:
        found = []
        for name, (colour, dashes) in styles(document).items():
            if texts := histograms_of(document, case["name"], name):
                total = merged(texts)
                # A percentile beyond the number of samples would show the maximum only.
                shown = [at for at in PERCENTS if total.get_total_count() * (100 - at) >= 100]
                points = [(float(at), total.get_value_at_percentile(at) / 1000) for at in shown]
                found.append(Line(name, colour, dashes, points))
        found = [line for line in found if line.points]
        if found:
            longest = max((line.points for line in found), key=len)
            ticks = [(at, f"{at:g}") for at, _ in longest if at in (50, 90, 99, 99.9, 99.99)]
            ticks.append((longest[-1][0], ""))
            picture = lines(found, case["name"], "latency, us", "percentile", ticks, nines)
            made.append((case["name"], picture))
    return made


def bars(document: Document) -> list[tuple[str, str]]:
    """(title, SVG) of each case: the main figure's medians with their quartiles."""
    rows = medians(document)
    made = []
    for case in document["cases"]:
        main = case["figures"][0]
        found = [
            (name, colour, row)
            for name, (colour, _) in styles(document).items()
            if (row := rows.get((case["name"], name, main["name"])))
        ]
        if case.get("group") and len(found) < 2:
            continue
        most = max((row["high_quartile"] for _, _, row in found), default=0) or 1
        room = WIDTH - 190 - 80
        content = [words(4, 16, f"{case['name']}: {label(main)}", "start", font_weight="bold")]
        for place, (name, colour, row) in enumerate(found):
            y = 30 + 22 * place
            content.append(words(180, y + 12, name, "end"))
            width = max(row["median"] / most * room, 1)
            content.append(element("rect", x=188, y=y, width=f"{width:.1f}", height=15, fill=colour, fill_opacity=0.8))
            low, high = (188 + row[key] / most * room for key in ("low_quartile", "high_quartile"))
            content.append(
                element("line", x1=f"{low:.1f}", x2=f"{high:.1f}", y1=y + 7.5, y2=y + 7.5, stroke=GREY, stroke_width=2)
            )
            content.append(words(max(188 + width, high) + 6, y + 12, number(row["median"]), "start"))
        made.append((case["name"], figure(content, 36 + 22 * len(found), case["name"])))
    return made
