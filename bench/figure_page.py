"""docs/figures.md: its pictures and tables, from the files of `rmemcached-bench figures`."""

from __future__ import annotations

import re
import shlex
from html import escape
from pathlib import Path

from rmemcached.bench import estimate, plots
from rmemcached.bench.document import Document, write_text
from rmemcached.bench.drawing import Drawing
from rmemcached.bench.errors import BenchError

PAGE = "figures.md"
PICTURES = "pictures"
GAP = 16
BLOCK = "<!-- {name}: drawn -->\n{content}<!-- end -->\n"
FOUND = re.compile(r"<!-- ([a-z]+-[a-z0-9]+): drawn -->\n(.*?)<!-- end -->\n", re.DOTALL)
NO_INTERVAL = "; `?` without an interval, which takes 5 rounds"


def picture(document: Document) -> str:
    """All plots of a document as one SVG, two in a row."""
    drawn = [svg for _, svg in plots.against(document) or plots.bars(document)]
    heights = [float(re.search(r'viewBox="0 0 \d+ (\d+)"', svg)[1]) for svg in drawn]  # type: ignore[index]
    columns = min(len(drawn), 2)
    content, top = [], 0.0
    for first in range(0, len(drawn), 2):
        for column, svg in enumerate(drawn[first : first + 2]):
            where = (
                f'<svg x="{column * (plots.WIDTH + GAP)}" y="{top:.0f}" width="{plots.WIDTH}"'
                f' height="{heights[first + column]:.0f}" '
            )
            content.append(svg.replace("<svg ", where, 1))
        top += max(heights[first : first + 2]) + GAP
    width = columns * plots.WIDTH + (columns - 1) * GAP
    name = document["subcommand"].partition(" ")[2]
    return plots.element(
        "svg",
        plots.element("title", escape(name)) + "\n" + "\n".join(content),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {max(top - GAP, 1):.0f}",
        role="img",
        font_family="system-ui, sans-serif",
    )


def claims(document: Document, drawing: Drawing) -> list[str]:
    """The lines of a table: the original's claims, and the results here."""
    lines = ["| | original | here |", "|---|---|---|"]
    lines += [f"| {claim.said} | {claim.theirs} | {claim.ours(document)} |" for claim in drawing.claims]
    return lines


def command(document: Document, drawing: Drawing) -> str:
    """The command that draws exactly this figure again."""
    words = ["rmemcached-bench", "figures", drawing.name, *drawing.options]
    given = document["command"]
    words += ["--quick"] if "--quick" in given else []
    words += ["--rounds", given[given.index("--rounds") + 1]] if "--rounds" in given else []
    return drawing.machine + shlex.join(words)


def doubts(document: Document, rounds: int) -> list[str]:
    """The reasons why figures are a sketch and no result: a line of the page, or none."""
    machine = document["machine"]
    found = [f"{rounds} {'rounds' if rounds > 1 else 'round'} only"] if rounds < estimate.LEAST_ROUNDS else []
    if machine["load"] > machine["cores"]:
        found.append(f"others had the machine, too (load {machine['load']:.1f} on {machine['cores']} cores)")
    return [f"**A sketch, not a result:** {'; '.join(found)}.", ""] if found else []


def block(document: Document, drawing: Drawing) -> str:
    """The text between a figure's marks."""
    machine = document["machine"]
    contenders = [known for known in document["contenders"] if not known["floor"]]
    versions = dict.fromkeys(known["server"] for known in contenders if known["server"][:1] != "n")
    beside = f"; {', '.join(versions)}" if versions else ""
    rounds = max(sample["round"] for sample in document["samples"])
    marks = "`~` within noise" + (NO_INTERVAL if rounds < estimate.LEAST_ROUNDS else "")
    ratios = (
        f"Ratios are to {document['reference']}, unless the row says otherwise; {marks}."
        if document["reference"]
        else ""
    )
    where = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f} before{beside}"
    when = f"{rounds} {'rounds' if rounds > 1 else 'round'}, {document['started'][:10]}"
    lines = [
        f"![{drawing.title}]({PICTURES}/{drawing.name}.svg)",
        "",
        *doubts(document, rounds),
        *claims(document, drawing),
        "",
        f"{ratios} {where}; {when}: `{command(document, drawing)}`".strip(),
    ]
    lines += ["", *(note for note in document["notes"] if note.startswith("Measured in "))]
    return "\n".join(lines).strip() + "\n"


def fill(folder: str, documents: dict[str, Document], drawings: dict[str, Drawing]) -> None:
    """Writes pictures, and tables between the marks of the page. Raises BenchError for a figure without marks."""
    path = Path(folder) / PAGE
    text = path.read_text()
    for name, document in documents.items():
        found = [match for match in FOUND.finditer(text) if match[1] == name]
        if len(found) != 1:
            raise BenchError(f"{path}: {name} needs one line `<!-- {name}: drawn -->`, and `<!-- end -->` behind it")
        made = BLOCK.format(name=name, content=block(document, drawings[name]))
        text = text[: found[0].start()] + made + text[found[0].end() :]
        write_text(str(Path(folder) / PICTURES / f"{name}.svg"), picture(document) + "\n")
    write_text(str(path), text)


def absent(reasons: dict[str, str]) -> str:
    """A part of the report: the missing figures."""
    items = "".join(f"<li>{escape(name)}: {escape(why)}</li>\n" for name, why in reasons.items())
    return f"<h1>Not drawn</h1>\n<ul>\n{items}</ul>\n"
