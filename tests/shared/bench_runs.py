"""Runs rmemcached-bench with all its outputs, and looks at them."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

from program import run_program

from rmemcached.bench import command, document, page, table

BUSY_NOTE = "other processes used "  # first words of the note about a loaded machine


def run(*arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = run_program([sys.executable, "-P", "-m", "rmemcached.bench", *arguments], 150)
    assert done.returncode in ((0, 1) if status is None else (status,)), done.stderr
    return done


def refused(words: str) -> tuple[object, str]:
    """The status of a wrong command line, and its output to stderr, in this process: the imports take a second."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status: object = command.main(words.split())
        except SystemExit as end:
            status = end.code
    return status, said.getvalue()


class Outline(HTMLParser):
    """The tags, addresses and cells of a page. Complains of unmatched tags."""

    VOID = frozenset({"meta", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href", "data")]
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def check_page(path: Path, figures: document.Document) -> Outline:
    """The page names the contenders, has every figure of the table, and needs no other file."""
    text = path.read_text()
    outline = Outline(text)
    assert not outline.open and "script" not in outline.tags
    assert outline.addresses == ["data:,"]
    assert "url(" not in text and "@import" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    for block in table.blocks(figures):
        for row in block.rows:
            assert not [cell for cell in row if cell and cell not in outline.cells]
    assert figures["machine"]["cpu"] in text and figures["machine"]["kernel"] in text
    for known in figures["contenders"]:
        assert known["server"] in outline.cells
    return outline


def measured(tmp_path: Path, *arguments: str, status: int | None = 0) -> tuple[document.Document, str, Outline]:
    """Runs the command with all outputs: the JSON document, the table, the page."""
    paths = {name: tmp_path / f"out.{name}" for name in ("json", "html", "svg")}
    options = ["--json", str(paths["json"]), "--html", str(paths["html"]), "--plot", str(paths["svg"])]
    done = run(*arguments, *options, status=status)
    figures = document.read(str(paths["json"]))
    assert figures["command"] == ["rmemcached-bench", *arguments, *options]
    assert page.html(figures) == paths["html"].read_text()
    assert paths["svg"].read_text().startswith("<svg ")
    outline = check_page(paths["html"], figures)
    assert outline.tags.count("svg") > 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    said = unwrapped(done.stdout)
    for known in figures["contenders"]:
        assert known["name"] in said and unwrapped(known["server"]) in said
    for row in figures["results"]:
        assert row["median"] >= row["low_quartile"] >= 0
    for case in figures["cases"]:
        assert unwrapped(case["name"].removeprefix(f"{case['group']}: ")) in said
    return figures, done.stdout, outline


def unwrapped(text: str) -> str:
    """The text without ends of lines."""
    return " ".join(text.split())


def notes(figures: document.Document) -> list[str]:
    """The notes, without the note about other work on the machine."""
    return [note for note in figures["notes"] if not note.startswith(BUSY_NOTE)]


def names(figures: document.Document, floors: bool = False) -> list[str]:
    return [known["name"] for known in figures["contenders"] if known["floor"] == floors]
