"""Manual pages, completion and the page of all commands: made of the commands' own options, and nothing is left out."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pexpect
import pytest

from rmemcached.options import EXTENDED, OPTIONS
from rmemcached.reference.__main__ import BASH, MANUALS, ZSH, files
from rmemcached.reference.commands import PARSERS, Command, describe, parsers
from rmemcached.reference.completion import VALUES
from rmemcached.reference.daemon import UNLISTED, make_parser

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = sorted(PARSERS)


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder made by a build."""
    folder = tmp_path_factory.mktemp("reference")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rmemcached.reference", str(folder)],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


def test_every_command_is_described(share: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(PARSERS) == set(scripts)
    made = {str(path.relative_to(share)) for path in share.rglob("*") if path.is_file()}
    assert made == {
        f"{folder}/{before}{name}{after}"
        for name in scripts
        for folder, before, after in ((MANUALS, "", ".1"), (BASH, "", ""), (ZSH, "_", ""))
    }
    assert {str(path) for path in files()} == made


def test_the_daemon_has_every_option_of_its_tables() -> None:
    parser = make_parser()
    letters = {name[1:] for action in parser._actions for name in action.option_strings if len(name) == 2}
    assert letters == set(OPTIONS)
    for letter, option in OPTIONS.items():
        action = parser._option_string_actions[f"-{letter}"]
        assert (action.nargs != 0) == (option.parse is not None), letter
        assert action.help and (not option.long or f"--{option.long}" in action.option_strings)
    listed = [name for line in parser.suboptions for name, _ in line.names]  # type: ignore[attr-defined]
    assert len(listed) == len(set(listed))
    assert set(listed) == {*EXTENDED, "no_modern"} and set(UNLISTED) <= set(EXTENDED)
    for line in parser.suboptions:  # type: ignore[attr-defined]
        assert line.help
        for name, value in line.names:
            assert bool(value) == (name in EXTENDED and EXTENDED[name].parse is not None), name


def test_values_of_completion_are_accepted() -> None:
    for name, words in VALUES.items():
        parse = EXTENDED[name].parse
        assert parse is not None
        for word in words:
            parse(word)


def options(command: Command) -> list[str]:
    found = [name for group in command.groups for entry in group.entries for name in entry.names]
    return found + [name for child in command.subcommands for name in options(child)]


@pytest.mark.parametrize("name", COMMANDS)
def test_manual_pages(name: str, share: Path) -> None:
    """The manual pages have no warning, and every option and subcommand."""
    page = share / MANUALS / f"{name}.1"
    checked = subprocess.run(["mandoc", "-T", "lint", page], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    shown = subprocess.run(
        ["mandoc", "-T", "ascii", "-O", "width=200", page], capture_output=True, text=True, check=True
    )
    text = re.sub(r".\x08", "", shown.stdout)
    command = describe(parsers()[name])
    assert re.search(rf"^NAME\n +{name} - \w", text, re.MULTILINE) and command.summary
    words = set(re.findall(r"[\w-]+", text))
    assert options(command) and not set(options(command)) - words
    assert not {child.name.split()[-1] for child in command.subcommands} - words
    assert "November 14, 2023" in text or "2023-11-14" in text


COMPLETE = """
source "$1"
shift
COMP_LINE="$*"
[ -n "$LAST" ] || COMP_LINE="$COMP_LINE "
COMP_POINT=${#COMP_LINE}
COMP_WORDS=("$@")
[ -n "$LAST" ] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
spec=$(complete -p "$1") || exit 9
[[ $spec =~ -F\\ ([^ ]+) ]]
${BASH_REMATCH[1]} "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(share: Path, *words: str) -> set[str]:
    """bash's offers for the last of these words."""
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", str(share / BASH / words[0]), *words],
        env={**os.environ, "LAST": words[-1]},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_bash_completes_every_option(name: str, share: Path) -> None:
    command = describe(parsers()[name])
    own = {option for group in command.groups for entry in group.entries for option in entry.names}
    assert complete(share, name, "--") == {option for option in own if option.startswith("--")}
    for child in command.subcommands:
        words = child.name.split()[1:]
        its = {option for option in options(child) if option.startswith("--")}
        assert complete(share, name, *words, "--") == its


def test_bash_completes_arguments(share: Path) -> None:
    assert complete(share, "rmemcached-bench", "lat") == {"latency"}
    assert complete(share, "rmemcached-perftest", "re") == {"read"}
    assert complete(share, "rmemcached-doctor", "--rd") == {"--rdma-cm-port"}
    assert "localhost" in complete(share, "rmemcached-top", "localh")
    assert complete(share, "rmemcached-bench", "realuse", "sha") == {"sharing"}
    assert complete(share, "rmemcached-top", "--transport", "soft_") == {"soft_shm", "soft_iw"}
    assert complete(share, "rmemcached", "-B", "a") == {"ascii", "auto"}
    assert complete(share, "rmemcached", "-u", "roo") == {"root"}
    assert complete(share, "rmemcached", "-Y", "pyproj") == {"pyproject.toml"}


def test_bash_completes_extended_options(share: Path) -> None:
    assert complete(share, "rmemcached", "-o", "rdma_view") == {"rdma_view_limit="}
    assert complete(share, "rmemcached", "-o", "rdma_direct,no_rdma") == {
        "rdma_direct,no_rdma",
        "rdma_direct,no_rdma_crc",
    }
    # readline takes the text behind the last "=".
    assert complete(share, "rmemcached", "-o", "lru_algorithm=s") == {"segmented", "s3fifo"}
    assert complete(share, "rmemcached", "-o", "hashpower=20,lru_alg") == {"20,lru_algorithm="}
    assert len(complete(share, "rmemcached", "--extended", "")) == len(EXTENDED) + 1


@pytest.mark.parametrize("name", COMMANDS)
def test_zsh_takes_its_files(name: str, share: Path) -> None:
    """compinit finds each file, and zsh can read all of them."""
    file = share / ZSH / f"_{name}"
    assert file.read_text().startswith(f"#compdef {name}\n")
    script = (
        f"fpath=({share / ZSH} $fpath); autoload -Uz compinit; compinit -u -D; print $_comps[{name}]; zsh -n {file}"
    )
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"_{name}\n", "")


ZSH_LINES = """
PS1='> '
unsetopt zle_bracketed_paste
fpath=(FOLDER $fpath)
autoload -Uz compinit
compinit -u -D
print rea''dy
"""


def test_zsh_completes(share: Path) -> None:
    """zsh completes words typed in a terminal before Tab, also for commands with positional arguments only."""
    shell = pexpect.spawn(
        *("zsh", ["-f"]), env={**os.environ, "TERM": "dumb"}, dimensions=(60, 200), encoding="utf-8", timeout=20
    )
    shell.delaybeforesend = None
    try:
        shell.sendline(ZSH_LINES.replace("FOLDER", str(share / ZSH)).strip().replace("\n", "; "))
        shell.expect("ready\r\n")
        for typed, there in (
            ("rmemcached -o rdma_vi", "rmemcached -o rdma_view_limit="),
            ("rmemcached -o hashpower=20,lru_algorithm=s3", "lru_algorithm=s3fifo,"),
            ("rmemcached-bench lat", "rmemcached-bench latency "),
            ("rmemcached-bench realuse lar", "rmemcached-bench realuse large "),
            ("rmemcached-bench realuse --trans", "rmemcached-bench realuse --transports "),
            ("rmemcached-devices --he", "rmemcached-devices --help "),
            ("rmemcached-doctor --js", "rmemcached-doctor --json "),
            ("rmemcached-doctor localho", "rmemcached-doctor localhost "),
            ("rmemcached-exporter --passw", "rmemcached-exporter --password-file "),
            ("rmemcached-perftest send lat --loc", "rmemcached-perftest send lat --local "),
            ("rmemcached-top --transp", "rmemcached-top --transport "),
        ):
            shell.send(typed + "\t")
            shell.expect_exact(there)
            shell.send("\x15")
    finally:
        shell.close(force=True)


def test_data_files_of_a_wheel(tmp_path: Path) -> None:
    """A build has the files, made by its own modules; builds for development have none."""
    build = runpy.run_path(str(ROOT / "setup.py"), run_name="list")["data_files"]
    build.__globals__.update(KIND="", ONLY=[], TESTING=False)
    found = build(ROOT, tmp_path / "made")
    assert [folder for folder, _ in found] == sorted(map(str, (MANUALS, BASH, ZSH)))
    assert all(len(names) == len(PARSERS) and all(map(os.path.isfile, names)) for _, names in found)
    build.__globals__.update(TESTING=True)
    assert build(ROOT, tmp_path / "made") == []
