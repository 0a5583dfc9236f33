"""Manual pages: roff in the macros of man(7)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from rmemcached import __version__
from rmemcached.reference.commands import Command, Entry, Text

WIDTH = 76
SPECIAL = {"\\": r"\(rs", "`": r"\(ga", "'": r"\(aq", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}


def escaped(text: str) -> str:
    """Returns any text in roff's notation."""
    found = "".join(SPECIAL.get(sign, sign if sign < "\x7f" else f"\\[u{ord(sign):04X}]") for sign in text)
    # A hyphen at the beginning of a word is an option's: as a minus sign it can be copied from the page.
    return re.sub(r"(?<![\w\\])-+(?=[\w-])", lambda dashes: dashes[0].replace("-", r"\-"), found)


def literal(text: str) -> str:
    """Returns text for typing: every hyphen is a minus sign."""
    return escaped(text).replace(r"\-", "-").replace("-", r"\-")


def protected(line: str) -> str:
    """Returns a line without the beginning of a roff request."""
    return r"\&" + line if line.startswith((".", "'")) else line


def wrapped(text: str) -> list[str]:
    """Returns the lines of a paragraph; text in backquotes is bold."""
    marked = (
        "".join(rf"\fB{literal(part)}\fR" if index % 2 else escaped(part) for index, part in enumerate(text.split("`")))
        if text.count("`") % 2 == 0
        else escaped(text)
    )
    return [protected(line) for line in textwrap.wrap(marked, WIDTH, break_long_words=False, break_on_hyphens=False)]


def paragraphs(texts: Sequence[Text], first: bool = True) -> Iterator[str]:
    """Yields the lines of paragraphs. first: after a heading, which begins a paragraph itself."""
    for text in texts:
        if not first:
            yield ".PP"
        first = False
        if text.literal:
            yield from (".RS 4", ".nf", *(protected(literal(line)) for line in text.text.splitlines()), ".fi", ".RE")
        else:
            yield from wrapped(text.text)


def tagged(entry: Entry) -> Iterator[str]:
    """Yields an option with its text."""
    yield ".TP"
    value = rf"\fI{literal(entry.value)}\fR" if entry.value else ""
    if not entry.names:
        yield protected(value)
    else:
        names = [rf"\fB{literal(name)}\fR" for name in entry.names]
        yield ", ".join(names) + (" " + value if value else "")
    yield from wrapped(entry.help) or [r"\&"]


def option_groups(command: Command, heading: str) -> Iterator[str]:
    for group in command.groups:
        yield f"{heading} {escaped(group.title)}"
        for entry in group.entries:
            yield from tagged(entry)


def suboptions(command: Command) -> Iterator[str]:
    yield ".SH EXTENDED OPTIONS"
    yield r"Behind \fB\-o\fR, separated by commas."
    for option in command.suboptions:
        yield ".TP"
        names = []
        for name, value in option.names:
            names.append(rf"\fB{literal(name)}\fR" + (rf"=\fI{literal(value)}\fR" if value else ""))
        yield ", ".join(names)
        yield from wrapped(option.help) or [r"\&"]


def subcommand(command: Command) -> Iterator[str]:
    yield f".SS {literal(command.name.rpartition(' ')[2])}"
    yield from wrapped((command.summary[:1].upper() + command.summary[1:]).rstrip(".") + ".")
    yield ".PP"
    yield from usage(command)
    yield from paragraphs(command.description, first=False)
    for group in command.groups:
        for entry in group.entries:
            yield from tagged(entry)
    yield from paragraphs(command.epilog, first=False)


def usage(command: Command) -> Iterator[str]:
    yield rf"\fB{literal(command.name)}\fR"
    rest = command.usage.removeprefix(command.name).strip()
    yield from (protected(line) for line in textwrap.wrap(literal(rest), WIDTH, break_on_hyphens=False))


def page(command: Command, others: Sequence[str], date: str) -> str:
    """Returns a command's manual page. others: the names of the commands with pages; date: year, month and day."""
    lines = [
        f'.TH {literal(command.name.upper())} 1 "{date}" "rmemcached {__version__}" "User Commands"',
        ".SH NAME",
        *textwrap.wrap(rf"{literal(command.name)} \- {escaped(command.summary)}", WIDTH, break_on_hyphens=False),
        ".SH SYNOPSIS",
        *usage(command),
    ]
    if command.description:
        lines += [".SH DESCRIPTION", *paragraphs(command.description)]
    lines += [".SH OPTIONS", *option_groups(command, ".SS")]
    if command.suboptions:
        lines += suboptions(command)
    if command.subcommands:
        lines += [".SH SUBCOMMANDS"]
        for child in command.subcommands:
            lines += subcommand(child)
    if command.epilog:
        lines += [".SH NOTES", *paragraphs(command.epilog)]
    seen = ", ".join(rf"\fB{literal(name)}\fR(1)" for name in others if name != command.name)
    lines += [".SH SEE ALSO", *textwrap.wrap(seen, WIDTH, break_on_hyphens=False)]
    return "\n".join(lines) + "\n"
