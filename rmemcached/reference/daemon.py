"""The daemon's options as an ArgumentParser, like the options of the remaining commands.

The text of -h (rmemcached/usage.py) has the purpose of each option, the tables (rmemcached/options.py) their names. The
parser is for reading, not for parsing: the daemon's command line is getopt's.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NamedTuple

from rmemcached.options import EXTENDED
from rmemcached.usage import usage

OPTION = re.compile(r"(-\w)(?:, (--[\w-]+)(?:=<([^>]+)>)?| <([^>]+)>) +(.*)")
NAME = r"\w+(?:=<[^>]+>(?:\[:<[^>]+>\])?)?"
SUBOPTION = re.compile(rf"   ({NAME}(?:, {NAME})*)(?: +(.*))?")
DESCRIPTION = """rmemcached: memcached with an RDMA transport

A memcached that gives clients of its own RDMA and shared memory besides TCP. Its options are those of memcached, and
some more behind -o."""
# Names in the tables, but not in the text of -h.
UNLISTED = {
    "drop_privileges": "no program that the daemon executes gains privileges [no]",
    "no_drop_privileges": "the contrary of drop_privileges",
    "inline_ascii_resp": "accepted without effect",
    "no_inline_ascii_resp": "accepted without effect",
    "relaxed_privileges": "accepted without effect",
}


class Suboption(NamedTuple):
    """A line about options of -o."""

    names: list[tuple[str, str]]
    """Pairs of an option's name and the text behind its equal sign; empty without an argument."""
    help: str


class Section(NamedTuple):
    title: str
    lines: list[str]


def sections(text: str) -> Iterator[Section]:
    """Yields the parts of the text, below their headings."""
    for part in text.split("\n\n")[1:]:
        title, *lines = part.splitlines()
        yield Section(title, lines)


def escaped(text: str) -> str:
    """Returns the text without a meaning for argparse's formatting."""
    return text.replace("%", "%%")


def suboption(line: str) -> Suboption | None:
    found = SUBOPTION.fullmatch(line)
    if found is None:
        return None
    names = [tuple(name.split("=", 1)) if "=" in name else (name, "") for name in found[1].split(", ")]
    return Suboption([(name, argument) for name, argument in names], found[2] or "")


def add_option(group: argparse._ArgumentGroup, line: str) -> argparse.Action | None:
    """Adds the option at the beginning of a line."""
    found = OPTION.fullmatch(line)
    if found is None:
        return None
    letter, long, behind, alone, text = found.groups()
    names = [letter, *([long] if long else [])]
    argument = behind or alone
    if argument is None:
        return group.add_argument(*names, action="store_true", help=escaped(text))
    return group.add_argument(*names, metavar=argument.upper(), help=escaped(text))


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser; its attribute `suboptions` lists the options of -o."""
    parser = argparse.ArgumentParser(
        "rmemcached",
        usage="rmemcached [options]",
        description=DESCRIPTION,
        add_help=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    suboptions: list[Suboption] = []
    for section in sections(usage()):
        group = parser.add_argument_group(section.title)
        last: argparse.Action | None = None
        for line in section.lines:
            if (action := add_option(group, line)) is not None:
                last = action
            elif (found := suboption(line)) is not None:
                suboptions.append(found)
            elif suboptions:
                suboptions[-1] = suboptions[-1]._replace(help=f"{suboptions[-1].help} {line.strip()}".strip())
            elif last is not None:
                last.help = f"{last.help} {escaped(line.strip())}"
    suboptions += [Suboption([(name, "")], text) for name, text in UNLISTED.items() if name in EXTENDED]
    parser.suboptions = suboptions  # type: ignore[attr-defined]
    return parser
