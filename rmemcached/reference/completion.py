"""Completion in bash and zsh, by shtab; for the list behind the daemon's -o, by functions of our own."""

from __future__ import annotations

import argparse
import re

import shtab

from rmemcached.options import EXTENDED
from rmemcached.reference.commands import subparsers
from rmemcached.reference.daemon import Suboption

FILE = re.compile(r"FILE|PATH|\.json|\.svg")
FOLDER = re.compile(r"FOLDER")
# Words for arguments of -o.
VALUES = {
    "hash_algorithm": ("jenkins", "murmur3", "xxh3"),
    "lru_algorithm": ("segmented", "s3fifo"),
    "slab_automove": ("0", "1", "2"),
    "rdma_device": ("none",),
    "rdma_shm": ("none",),
}
# Matches a help text that lists the words of an argument.
WORDS = re.compile(r"([\w-]+(?:, [\w-]+)+) \(default: all\)")
PROTOCOLS = ("ascii", "binary", "auto")
USERS = {"bash": "_rmemcached_users", "zsh": "_users"}
HOSTS = {"bash": "_rmemcached_hosts", "zsh": "_hosts"}

BASH_HOSTS = """\
_rmemcached_hosts() {
    compgen -A hostname -- "$1"
}
"""
BASH_PREAMBLE = """\
_rmemcached_users() {
    compgen -u -- "$1"
}
"""
# "=" and ":" end a word for readline, which completes only the text behind these signs.
BASH_EXTENDED = """\

_rmemcached_extended() {
    local whole=$1 names=$2 broken part prefix name
    broken=${whole##*[=:]}
    part=${whole##*,}
    prefix=${broken%"${broken##*,}"}
    compopt +o filenames -o nospace 2>/dev/null
    if [[ $part == *=* ]]; then
        name=${part%%=*}
        part=${part#*=}
        case $name in
@VALUES@
        *) COMPREPLY=() ;;
        esac
    else
        COMPREPLY=($(compgen -P "$prefix" -W "$names" -- "$part"))
    fi
}

_rmemcached() {
    local line=${COMP_LINE:0:COMP_POINT} word before
    word=${line##*[[:space:]]}
    before=${line%"$word"}
    before=${before%"${before##*[![:space:]]}"}
    before=${before##*[[:space:]]}
    if [[ $before == -o || $before == --extended ]]; then
        _rmemcached_extended "$word" '@NAMES@'
    elif [[ $word == --extended=* ]]; then
        _rmemcached_extended "${word#*=}" '@NAMES@'
    else
        _shtab_rmemcached
    fi
}

complete -o filenames -F _rmemcached rmemcached
"""


def tell_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells shtab the kind of each argument: file, host, or word.

    Every positional argument gets a kind: for an argument of unknown kind zsh completes no options either.
    """
    for action in parser._actions:
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        if FOLDER.search(metavar):
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif FILE.search(metavar):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif not action.option_strings and not action.choices:
            words = WORDS.fullmatch(action.help or "")
            if words:
                action.choices = words[1].split(", ")
            else:
                action.complete = HOSTS  # type: ignore[attr-defined]
    if (children := subparsers(parser)) is not None:
        for child in children.choices.values():
            tell_arguments(child)


def tell_words(parser: argparse.ArgumentParser) -> None:
    """Tells shtab the kinds of the daemon's arguments."""
    for action in parser._actions:
        if "-B" in action.option_strings:
            action.choices = PROTOCOLS
        elif "-u" in action.option_strings:
            action.complete = USERS  # type: ignore[attr-defined]
        elif "-o" in action.option_strings:
            action.complete = {"zsh": "_rmemcached_extended"}  # type: ignore[attr-defined]


def with_values(suboptions: list[Suboption]) -> list[str]:
    """Returns the completions of -o: with an equal sign where an argument follows."""
    names = [(name, value) for option in suboptions for name, value in option.names]
    return sorted(f"{name}=" if value else name for name, value in names)


def bash_extended(suboptions: list[Suboption]) -> str:
    cases = [
        f"""        {name}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$part")) ;;"""
        for name, words in VALUES.items()
        if name in EXTENDED
    ]
    names = " ".join(with_values(suboptions))
    return BASH_EXTENDED.replace("@VALUES@", "\n".join(cases)).replace("@NAMES@", names)


def zsh_quoted(text: str) -> str:
    """Returns text for the brackets of a specification, within single quotes."""
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_extended(suboptions: list[Suboption]) -> str:
    """Returns the function for completing a list of -o."""
    specifications = []
    for option in suboptions:
        for name, value in option.names:
            known = f"({' '.join(VALUES[name])})" if name in VALUES else ""
            argument = f":{zsh_quoted(value)}:{known}" if value else ""
            specifications.append(f"    '{name}[{zsh_quoted(option.help)}]{argument}'")
    lines = " \\\n".join(specifications)
    return f"_rmemcached_extended() {{\n  _values -s , 'option' \\\n{lines}\n}}\n"


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Returns the completion script of a command. Changes the parser: use a new parser for anything else."""
    suboptions = list(getattr(parser, "suboptions", []))
    tell_arguments(parser)
    if not suboptions:
        return shtab.complete(parser, shell, preamble=BASH_HOSTS if shell == "bash" else "")
    tell_words(parser)
    preamble = {"bash": BASH_PREAMBLE, "zsh": zsh_extended(suboptions)}
    text = shtab.complete(parser, shell, preamble=preamble[shell])
    return text + bash_extended(suboptions) if shell == "bash" else text
