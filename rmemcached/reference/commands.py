"""The commands, and the texts of their parsers."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from rmemcached.reference.daemon import Suboption

PARSERS = {
    "rmemcached": "rmemcached.reference.daemon",
    "rmemcached-bench": "rmemcached.bench.command",
    "rmemcached-devices": "rmemcached.devices",
    "rmemcached-doctor": "rmemcached.tools.doctor",
    "rmemcached-exporter": "rmemcached.tools.exporter",
    "rmemcached-perftest": "rmemcached.perftest.command",
    "rmemcached-top": "rmemcached.tools.top",
    "rmemcached-verbs": "rmemcached.verbs.launch",
}
"""The modules whose make_parser() has the options."""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns a new parser of each command. Raises ImportError where the package is not built."""
    return {name: importlib.import_module(module).make_parser() for name, module in PARSERS.items()}


class Entry(NamedTuple):
    """An option or an argument."""

    names: list[str]
    """Empty for a positional argument."""
    value: str
    """The option's argument, or the name of a positional argument; empty: none."""
    help: str


class Group(NamedTuple):
    title: str
    entries: list[Entry]


class Text(NamedTuple):
    """A paragraph, or lines with their line ends."""

    text: str
    literal: bool


class Command(NamedTuple):
    """A command or a subcommand."""

    name: str
    """The name as typed; for a subcommand with its command before it."""
    summary: str
    usage: str
    description: list[Text]
    groups: list[Group]
    epilog: list[Text]
    suboptions: list[Suboption]
    """The options behind the daemon's -o; empty for other commands."""
    subcommands: list[Command]


def texts(raw: str | None) -> list[Text]:
    """Returns the paragraphs of a description; indented lines keep their line ends."""
    found = []
    for part in re.split(r"\n\s*\n", (raw or "").strip("\n")):
        lines = part.splitlines()
        if lines and all(line.startswith("    ") for line in lines):
            found.append(Text("\n".join(line[4:].rstrip() for line in lines), True))
        elif part.strip():
            found.append(Text(" ".join(part.split()), False))
    return found


def split_summary(name: str, description: list[Text]) -> tuple[str, list[Text]]:
    """Returns the purpose of the command in one phrase, and the rest of the description."""
    if not description:
        return "", []
    first, *rest = description
    found = re.fullmatch(rf"(?:The command )?{re.escape(name)}: (.+?)(?:\. ([A-Z].*)|\.?)", first.text, re.DOTALL)
    if found is None:
        phrase, _, more = first.text.partition(". ")
        found_phrase, found_more = phrase.rstrip("."), more
    else:
        found_phrase, found_more = found[1], found[2] or ""
    return found_phrase, [*([Text(found_more, False)] if found_more else []), *rest]


def entry(action: argparse.Action, formatter: argparse.HelpFormatter) -> Entry:
    if action.option_strings:
        default = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    else:
        default = action.dest
    value = "" if action.nargs == 0 else formatter._format_args(action, default)
    return Entry(list(action.option_strings), value, formatter._expand_help(action) if action.help else "")


def subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


def groups(parser: argparse.ArgumentParser) -> Iterator[Group]:
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        entries = [
            entry(action, formatter)
            for action in group._group_actions
            if not isinstance(action, argparse._SubParsersAction) and action.help != argparse.SUPPRESS
        ]
        if entries:
            yield Group((group.title or "options").capitalize(), entries)


def describe(parser: argparse.ArgumentParser, summary: str | None = None) -> Command:
    """Returns the texts of a parser. summary: from a different place than the description."""
    if hasattr(parser, "color"):  # since Python 3.14, for terminals
        parser.color = False
    description = texts(parser.description)
    if summary is None:
        summary, description = split_summary(parser.prog, description)
    elif description and not description[0].literal:
        first = description[0].text.removeprefix(f"{parser.prog}: ")
        description[0] = Text(first[:1].upper() + first[1:], False)
    children = []
    if (action := subparsers(parser)) is not None:
        summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
        children = [describe(child, summaries.get(name, "")) for name, child in action.choices.items()]
    return Command(
        parser.prog,
        summary,
        " ".join(parser.format_usage().removeprefix("usage: ").split()),
        description,
        list(groups(parser)),
        texts(parser.epilog),
        list(getattr(parser, "suboptions", [])),
        children,
    )
