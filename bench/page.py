"""A document as a self-contained HTML page: no script, no network. The page alone describes the run."""

from __future__ import annotations

import shlex
from html import escape

from rmemcached.bench import plots, table
from rmemcached.bench.document import Document
from rmemcached.bench.table import Block

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #7d859044; white-space: nowrap; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
.words td:not(:first-child) { white-space: normal; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)); gap: 1rem; }
figure { margin: 0; }
svg { width: 100%; height: auto; }
code { overflow-wrap: anywhere; }
"""

METHOD = (
    "Each round is a process of its own, with servers and clients that no other round has, because where a process's"
    " memory lies shifts a ratio for its whole life. Each contender has a server of its own; the others idle while one"
    " is measured.",
    "A warm-up run is thrown away. In each round every contender does the case, in an order that is drawn and changes"
    " from round to round, so that load from elsewhere meets all alike.",
    "Every value that came back was compared.",
    "A figure is the median of the rounds, with quartiles as spread. A ratio is the median, over the rounds, of the"
    " contender's figure divided by the reference's in the same round; its 95 % interval is a bootstrap over the"
    " rounds.",
    "~ means within noise: the interval holds 1, and no difference was shown. ? means too few rounds for an interval.",
    "Latencies are merged HdrHistograms of all runs.",
    "The interval says how far the rounds of this benchmark agree, not what another machine, or another day, would"
    " give.",
)
# The descriptions for subcommands whose method is not METHOD.
FRESH = (
    "Each run starts a server of its own, measures it and stops it; there is no warm-up. The order is drawn, and"
    " changes by round."
)
BOUNDS = (
    "The bound is what a figure must keep. It is compared with the 95 % interval of the ratio, or with the quartiles"
    " where there is no interval: MISSED stands where all of it is beyond, undecided where the bound lies within."
)
TURNS = (
    "Each round has processes of its own. In it every row is measured once, in an order that is drawn, so that load"
    " from elsewhere meets all alike."
)
METHODS = {
    "load": (
        *METHOD[:2],
        "Latencies count from when a request was due; in a closed loop that is when it was sent.",
        *METHOD[3:],
    ),
    "direct": (TURNS, "A figure of a round is the median of many calls.", *METHOD[3:5], BOUNDS, METHOD[6]),
    "fabrics": (TURNS, "Two processes poll, each on a core of its own where there are two.", *METHOD[3:5], BOUNDS),
    "clients": (TURNS, METHOD[2], *METHOD[3:5], BOUNDS, METHOD[6]),
    "realuse": (TURNS, METHOD[2], *METHOD[3:5], METHOD[6]),
    "bounds": (*METHOD[:5], BOUNDS, METHOD[6]),
    "memory": (FRESH, "The replies to all sets were compared, and the items were counted.", *METHOD[3:5], METHOD[6]),
    "hitratio": (
        FRESH,
        "In a round all contenders got the same requests; another round has others.",
        "Of every value that came back the length was compared.",
        *METHOD[3:5],
        METHOD[6],
    ),
}


def cell(text: str, tag: str = "td") -> str:
    return f"<{tag}>{escape(text)}</{tag}>"


def rows(headings: list[str], lines: list[list[str]], kind: str = "figures") -> str:
    head = "".join(cell(heading, "th") for heading in headings)
    body = "".join(f"<tr>{''.join(map(cell, line))}</tr>\n" for line in lines)
    content = f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{content}</table></div>\n'


def shown(block: Block) -> str:
    return f"<h3>{escape(block.title)}</h3>\n{rows(block.headings, block.rows)}"


def compared(document: Document) -> str:
    lines = [
        [
            known["name"] + (" (reference)" if known["name"] == document["reference"] else ""),
            known["server"],
            known["client"],
            shlex.join(known["command"]),
        ]
        for known in document["contenders"]
    ]
    return rows(["name", "server", "client", "command"], lines, "words")


def surroundings(document: Document) -> str:
    machine = document["machine"]
    return rows(
        ["", ""],
        [
            ["command", shlex.join(document["command"])],
            ["started, took", f"{document['started']}, {document['seconds']:.0f} s"],
            ["CPU", f"{machine['cpu']}, {machine['cores']} cores"],
            *([["placement", placed]] if (placed := table.placements(document)) else []),
            ["seed of the orders", str(document.get("seed", ""))],
            ["kernel", machine["kernel"]],
            ["memory", f"{machine['memory_bytes'] / 2**30:.1f} GiB"],
            ["load before", f"{machine['load']:.2f} (other work on the machine widens the intervals)"],
            ["Python", machine["python"]],
        ],
        "words",
    )


def pictures(title: str, made: list[tuple[str, str]]) -> str:
    if not made:
        return ""
    drawn = "\n".join(f"<figure>{picture}</figure>" for _, picture in made)
    return f'<h2>{escape(title)}</h2>\n<div class="plots">\n{drawn}\n</div>\n'


def section(document: Document) -> str:
    """The page's section about a document."""
    against = plots.against(document)
    method = document.get("method") or METHODS.get(document["subcommand"], METHOD)
    parts = [
        f"<h1>rmemcached-bench {escape(document['subcommand'])}</h1>\n",
        f"<h2>What was compared</h2>\n{compared(document)}",
        f"<h2>Where</h2>\n{surroundings(document)}",
        f"<h2>How</h2>\n<ul>{''.join(f'<li>{escape(line)}</li>' for line in method)}</ul>\n",
        *(f"<p>{escape(note)}</p>\n" for note in document.get("notes", ())),
        pictures("Medians", against or plots.bars(document)),
        pictures("Latency by percentile", plots.percentiles(document)),
        f"<h2>Figures</h2>\n<p>{escape(table.legend(document))}</p>\n",
        *(shown(block) for block in table.blocks(document)),
    ]
    return "".join(parts)


def html(*documents: Document, beyond: str = "") -> str:
    """The whole page. beyond: HTML that follows the documents."""
    title = f"rmemcached-bench {', '.join(document['subcommand'] for document in documents)}"
    body = "".join(map(section, documents)) + beyond
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n'
    )
