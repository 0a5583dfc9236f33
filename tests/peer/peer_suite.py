#!/usr/bin/env python3
"""Runs memcached's own test suite (t/*.t, Perl) against rmemcached, or against any daemon with memcached's flags.

The suite comes from Debian's or Ubuntu's memcached source package (fetched once, with `apt-get source`, into
build/peer), or from a source tree given with --tree. Its tests start `./memcached-debug` through `./timedrun` from the
folder they run in, so a scratch folder with a copy of t/ and two small scripts of these names points them at another
daemon. The suite drives memcached's debug build; rmemcached has the commands of that build behind `-o debug_commands`,
which is added to its command line here, and more with --options.

files.tsv gives each test file's class and the number of assertions passed by memcached 1.6.45's debug build.
deviations.tsv lists the older suites' assertions that fail with 1.6.45; here they must fail, too. options.tsv lists the
assertions that must fail with an option of --options. Files that need features not built in (the proxy, ...) run only
by name, and so does the class extstore. --sasl adds the class sasl, which needs Debian's sasl2-bin and
libsasl2-modules. With --tls all connections have TLS, as with the suite's own SSL_TEST=1, and the tests of TLS run;
--tls needs Perl's IO::Socket::SSL.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / "build" / "peer"
REFERENCE = (1, 6, 45)
MARK = "RMEMCACHED_PEER_SUITE"  # environment variable that marks the processes of a file
TLS_FEWER, TLS_MORE = 10, 60  # how much the number of assertions of a file may differ with --tls
CHUNK_MAX_IN_KILOBYTES = (1, 6, 24)  # the first version whose -o slab_chunk_max is in kilobytes

# Classes that run only when named, with the reason.
LEFT_OUT = {
    "extstore": "takes minutes, and writes gigabytes to /tmp",
    "tls": "only with --tls",
    "sasl": "only with --sasl",
    "proxy": "no proxy",
    "seccomp": "no system call filter",
    "source": "looks at memcached's source code",
    "dead": "skips itself everywhere",
}

# Programs of the scratch folder. The tests ask for -h several times before each start, so DAEMON prints a file.
DAEMON = """#!/bin/sh
if [ "$#" = 1 ] && [ "$1" = -h ]; then cat {help}; exit 0; fi
exec {command} "$@"
"""
TIMEDRUN = """#!/bin/sh
# The limit is the runner's business: the daemon takes the place of this script, and gets its signals.
shift
exec "$@"
"""


class SuiteError(Exception):
    """The suite cannot be run; the message is a line with the reason."""


# --- sources of the tests ---


def source_entries(apt: Path = Path("/etc/apt")) -> str:
    """The machine's package sources, as sources of source packages: the text of a sources.list.d/*.sources file."""
    stanzas = []
    one_line = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*.list"))]
    for path in filter(Path.is_file, one_line):
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(r"deb(?:-src)?\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s*([^#]*)", line)
            if match is None:
                continue
            options, uri, suite, components = match.groups()
            stanza = f"URIs: {uri}\nSuites: {suite}\n"
            if components.strip():
                stanza += f"Components: {components.strip()}\n"
            for option in (options or "").split():
                name, _, value = option.partition("=")
                if name in ("signed-by", "trusted"):
                    stanza += f"{name.title()}: {value}\n"
            stanzas.append(stanza)
    for path in sorted((apt / "sources.list.d").glob("*.sources")):
        for text in re.split(r"\n\s*\n", path.read_text(errors="replace")):
            kept = [line for line in text.splitlines() if not re.match(r"#|Types:", line)]
            if any(line.startswith("URIs:") for line in kept):
                stanzas.append("\n".join(kept) + "\n")
    return "\n".join("Types: deb-src\n" + stanza for stanza in dict.fromkeys(stanzas))


def fetch_source_package(package: str = "memcached") -> Path:
    """The unpacked source package of the newest version in the machine's package sources. Raises SuiteError.

    Everything, package lists included, stays below build/peer: /etc and /var are read only, and no root is needed.
    """
    found = sorted(CACHE.glob(f"{package}-*/t"))
    if found:
        return found[-1].parent
    if shutil.which("apt-get") is None:
        raise SuiteError("no apt-get to fetch memcached's source package with: give a source tree with --tree")
    entries = source_entries()
    if not entries:
        raise SuiteError("no package sources in /etc/apt: give a source tree with --tree")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        scratch = Path(name)
        for folder in ("lists/partial", "cache/archives/partial", "sources.d", "download"):
            (scratch / folder).mkdir(parents=True)
        (scratch / "sources.d" / "source.sources").write_text(entries)
        apt = ["apt-get", "-q"]
        for option, value in {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": scratch / "sources.d",
            "Dir::State::Lists": scratch / "lists",
            "Dir::Cache": scratch / "cache",
            "APT::Sandbox::User": "",
            "Acquire::Retries": 2,
        }.items():
            apt += ["-o", f"{option}={value}"]
        said = []
        # A package source without source packages is no reason to give up: only the archive counts.
        for words in (["update"], ["--download-only", "source", package]):
            done = subprocess.run(
                [*apt, *words], cwd=scratch / "download", capture_output=True, text=True, timeout=300, check=False
            )
            said += [line for line in done.stderr.splitlines() if line.startswith("E:")]
        archives = sorted((scratch / "download").glob("*.orig.tar.*[!c]"))
        if not archives:
            raise SuiteError(
                f"apt-get source {package}: {(said or ['no reason given'])[0]} (--tree takes another source)"
            )
        with tarfile.open(archives[0]) as archive:
            for member in archive:
                data = archive.extractfile(member) if member.isfile() else None
                if data is not None and re.fullmatch(r"[^/.]+-[\d.]+/(t/([\w-]+/)*[\w.-]+|version\.m4)", member.name):
                    target = scratch / "tree" / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data.read())
        (tree,) = (scratch / "tree").iterdir()
        with contextlib.suppress(OSError):  # another run was faster
            tree.rename(CACHE / tree.name)
        return CACHE / tree.name


def version_of(tree: Path) -> tuple[int, ...] | None:
    """The version in a source tree; None for a tree without a version (a checkout)."""
    with contextlib.suppress(OSError):
        match = re.search(r"VERSION_NUMBER\],\s*\[([\d.]+)", (tree / "version.m4").read_text())
        if match:
            return tuple(map(int, match[1].split(".")))
    match = re.fullmatch(r"memcached-(\d+\.\d+\.\d+)", tree.resolve().name)
    return tuple(map(int, match[1].split("."))) if match else None


# --- expected failures ---


@dataclass(frozen=True)
class Deviation:
    """An assertion of an older suite that must fail."""

    before: tuple[int, ...]  # holds for suites older than this version
    file: str
    assertion: str  # the text of the assertion; "..." at its end stands for any text
    stops: bool  # the test waits for ever after the assertion
    reason: str

    def matches(self, text: str) -> bool:
        if self.assertion.endswith("..."):
            return text.startswith(self.assertion[:-3])
        return text == self.assertion


def table(path: Path) -> list[list[str]]:
    lines = path.read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def known_files() -> dict[str, tuple[str, range | None]]:
    """file -> class, how many assertions memcached 1.6.45's debug build passes."""
    found: dict[str, tuple[str, range | None]] = {}
    for name, kind, count in table(HERE / "files.tsv"):
        low, _, high = count.partition("-")
        found[name] = (kind, range(int(low), int(high or low) + 1) if low else None)
    return found


def known_deviations(version: tuple[int, ...], options: Sequence[str]) -> list[Deviation]:
    """The assertions of a suite of this version that must fail with these options of rmemcached."""
    found = [
        Deviation(REFERENCE, file, assertion, False, reason)
        for option, file, assertion, reason in table(HERE / "options.tsv")
        if option in options
    ]
    for before, file, assertion, how, reason in table(HERE / "deviations.tsv"):
        limit = tuple(map(int, before.split(".")))
        if version < limit:
            found.append(Deviation(limit, file, assertion, how == "stops", reason))
    return found


# --- a single file ---

ASSERTION = re.compile(r"(not )?ok\b\s*(\d*)(?:\s*-)?\s*(.*)")
PLAN = re.compile(r"1\.\.(\d+)(?:\s*#\s*skip\S*\s*(.*))?", re.IGNORECASE)


@dataclass
class Outcome:
    """The outcome of a test file. result: pass, fail, limit (too slow), skip."""

    file: str
    kind: str
    result: str = "fail"
    passed: int = 0
    planned: int | None = None
    failed: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # failed assertions listed in deviations.tsv
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0
    stderr: str = ""

    def take(self, line: str) -> str | None:
        """Takes a line of TAP. Returns the text of a failed assertion."""
        plan = PLAN.match(line)
        if plan:
            self.planned = int(plan[1])
            if self.planned == 0:
                self.remarks.append(plan[2] or "skipped")
            return None
        match = ASSERTION.match(line)
        if match is None:
            return None
        failed, _, text = match.groups()
        if not failed or re.search(r"#\s*TODO\b", text):
            self.passed += 1
            return None
        self.failed.append(text)
        return text

    def conclude(self, status: int | None, deviations: Sequence[Deviation], stopped: bool) -> None:
        """Compares the results with the expected results. status: of the Perl process; None: it was too slow."""
        surprising: list[str] = []
        for text in self.failed:
            (self.expected if any(d.matches(text) for d in deviations) else surprising).append(text)
        missing = [d.assertion for d in deviations if not any(d.matches(text) for text in self.failed)]
        reached = self.passed + len(self.failed)
        self.failed = surprising
        self.remarks += [f"passes, but deviations.tsv has it fail: {text}" for text in missing]
        if status is None:
            self.result = "limit"
        elif self.planned == 0 and not reached:
            self.result = "skip"
        elif surprising or missing:
            self.result = "fail"
        elif not stopped and (self.planned is None or reached != self.planned):
            self.remarks.append(f"ended after {reached} of {self.planned or '?'} assertions, status {status}")
        elif not stopped and status != len(self.expected):  # Test::More: the status counts the failures
            self.remarks.append(f"status {status}")
        else:
            self.result = "pass"


class Runner:
    """A scratch folder with a copy of a suite, pointed at a daemon."""

    def __init__(self, tree: Path, command: Sequence[str], version: tuple[int, ...] | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="peer-suite."))
        self.folder.chmod(0o755)  # daemons with another user look into the folder
        shutil.copytree(tree / "t", self.folder / "t", symlinks=True)
        if version is not None and version < CHUNK_MAX_IN_KILOBYTES:
            for path in (self.folder / "t").glob("*.t"):
                text = path.read_text(errors="surrogateescape")
                told = re.sub(r"slab_chunk_max=(\d+)", lambda m: f"slab_chunk_max={int(m[1]) // 1024}", text)
                path.write_text(told, errors="surrogateescape")
        self.environment = {key: value for key, value in os.environ.items() if key != "PERL5LIB"}
        self.environment["LC_ALL"] = "C"
        try:
            help_text = subprocess.run(
                [*command, "-h"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
            ).stdout
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise SuiteError(f"{shlex.join(command)} -h: {error}") from None
        (self.folder / "help").write_bytes(help_text)
        self._program("memcached-debug", DAEMON.format(help=self.folder / "help", command=shlex.join(command)))
        self._program("timedrun", TIMEDRUN)

    def _program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _left(self, name: str) -> list[int]:
        """Live processes started by the run of this name, including daemons without a terminal."""
        mark = f"{MARK}={self.folder}/{name}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def run(self, file: str, kind: str, limit: float, deviations: Sequence[Deviation]) -> Outcome:
        """Runs a file, and ends its leftovers."""
        outcome = Outcome(file, kind)
        name = f"{file}.{threading.get_ident()}"
        begin = time.monotonic()
        stopped = threading.Event()
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                ["perl", f"t/{file}"],
                cwd=self.folder,
                env={**self.environment, MARK: f"{self.folder}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",
                start_new_session=True,
            )

            def read() -> None:
                assert process.stdout is not None
                for line in process.stdout:
                    text = outcome.take(line.rstrip("\n"))
                    if text is not None and any(d.stops and d.matches(text) for d in deviations):
                        stopped.set()
                        process.kill()

            reader = threading.Thread(target=read)
            reader.start()
            status: int | None
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            # Daemons have the pipe as their standard output: the pipe ends with the last daemon.
            while left := self._left(name):
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                process.poll()
            reader.join()
            for path in Path("/tmp").glob(f"memcachetest.{process.pid}.*"):
                path.unlink(missing_ok=True)
            errors.seek(0)
            outcome.stderr = errors.read().decode(errors="replace")
        outcome.seconds = time.monotonic() - begin
        outcome.conclude(status, deviations, stopped.is_set())
        return outcome


# --- all files ---


def choose(words: Sequence[str], tree: Path, added: Sequence[str] = ()) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The (file, class) pairs for words (files or classes; none: all but LEFT_OUT, and the added classes of
    LEFT_OUT), and the omitted files by class."""
    classes = known_files()
    present = {path.name: classes.get(path.name, ("new", None))[0] for path in sorted((tree / "t").glob("*.t"))}
    if not present:
        raise SuiteError(f"{tree} has no t/*.t")
    left_out: dict[str, int] = {}
    if not words:
        for kind in present.values():
            if kind in LEFT_OUT and kind not in added:
                left_out[kind] = left_out.get(kind, 0) + 1
        return [(file, kind) for file, kind in present.items() if kind not in left_out], left_out
    chosen = {}
    for word in words:
        file = word.removeprefix("t/").removesuffix(".t") + ".t"
        of_class = {name: kind for name, kind in present.items() if kind == word.removeprefix("@")}
        if not of_class and file not in present:
            raise SuiteError(
                f"{word} is no file of {tree / 't'} and no class: {', '.join(sorted(set(present.values())))}"
            )
        chosen.update(of_class or {file: present[file]})
    return list(chosen.items()), left_out


def describe(outcome: Outcome) -> str:
    """The line of the table, and the lines below with the failures."""
    planned = "?" if outcome.planned is None else outcome.planned
    lines = [
        f"{outcome.result:<6} {outcome.file:<26} {outcome.kind:<10} {outcome.passed:>6} of {planned:<6}"
        f"{outcome.seconds:7.1f} s" + (f"   {len(outcome.expected)} deviate" if outcome.expected else "")
    ]
    if outcome.result == "skip":
        lines[0] += f"   {outcome.remarks[0]}"
    elif outcome.result != "pass":
        lines += [f"       not ok: {text[:150]}" for text in outcome.failed[:10]]
        lines += [f"       {remark}" for remark in outcome.remarks]
        lines += [f"       | {line[:200]}" for line in outcome.stderr.strip().splitlines()[-6:]]
    return "\n".join(lines)


def check_count(outcome: Outcome, version: tuple[int, ...] | None, tls: bool) -> None:
    """Checks, for the reference version's own suite, that a file has as many assertions as with memcached."""
    counts = known_files().get(outcome.file, ("", None))[1]
    if tls and counts:
        # TLS has statistics of its own, and some files leave a few assertions out.
        counts = counts if outcome.kind == "tls" else range(counts[0] - TLS_FEWER, counts[-1] + TLS_MORE)
    counted = outcome.passed + len(outcome.expected)
    if version == REFERENCE and outcome.result in ("pass", "skip") and counts and counted not in counts:
        outcome.result = "fail"
        passed = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        outcome.remarks.append(f"memcached passes {passed} assertions")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/peer-suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="FILE|CLASS", help="what to run (default: all that can pass)")
    parser.add_argument("--tree", type=Path, help="a memcached source tree (default: the source package)")
    parser.add_argument("--version", help="the version of a tree that does not say it, for instance 1.6.45")
    parser.add_argument("--command", help="the daemon to test (default: rmemcached of this Python)")
    parser.add_argument("--options", default="", help="more of rmemcached's -o options, such as rdma_direct")
    parser.add_argument("--sasl", action="store_true", help="run the class sasl, too, with users of its own in /tmp")
    parser.add_argument("--tls", action="store_true", help="all connections have TLS (SSL_TEST=1)")
    parser.add_argument("--jobs", type=int, default=2, help="files at a time (default: 2)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of everything (default: 1)")
    parser.add_argument("--limit", type=float, help="seconds that a file may take (default: 120, with --tls 600)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--list", action="store_true", help="print the files and their classes, and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 everything as expected, 1 not, 2 no run was possible."""
    options = parse_arguments(arguments)
    # With -P Python takes the installed package, and no folder of the same name in the current directory.
    extended = [word for word in options.options.split(",") if word]
    command = [sys.executable, "-P", "-m", "rmemcached", "-o", ",".join(["debug_commands", *extended])]
    if options.command:
        command = shlex.split(options.command)
    try:
        if shutil.which("perl") is None:
            raise SuiteError("perl is not installed: apt-get install perl")
        tree = options.tree.resolve() if options.tree else fetch_source_package()
        version = tuple(map(int, options.version.split("."))) if options.version else version_of(tree)
        if options.sasl and shutil.which("saslpasswd2", path=f"{os.environ['PATH']}:/usr/sbin") is None:
            raise SuiteError("saslpasswd2 is not installed: apt-get install sasl2-bin libsasl2-modules")
        if options.tls and subprocess.run(["perl", "-MIO::Socket::SSL", "-e", "1"], check=False).returncode:
            raise SuiteError("--tls needs Perl's IO::Socket::SSL: apt-get install libio-socket-ssl-perl")
        added = [kind for kind, wanted in (("sasl", options.sasl), ("tls", options.tls)) if wanted]
        chosen, left_out = choose(options.words, tree, added)
        if options.list:
            print("\n".join(f"{file:<26} {kind}" for file, kind in chosen))
            return 0
        runner = Runner(tree, command, version)
        if options.sasl:
            runner.environment["RUN_SASL_TESTS"] = "1"
        if options.tls:
            runner.environment["SSL_TEST"] = "1"
    except (SuiteError, ValueError) as error:
        print(f"peer-suite: {error}", file=sys.stderr)
        return 2
    named = ".".join(map(str, version)) if version else "of unknown version, taken for the newest"
    deviations = known_deviations(version or REFERENCE, extended)
    print(f"memcached's suite {named}: {len(chosen)} files against {shlex.join(command)}", flush=True)
    outcomes: list[Outcome] = []
    printing = threading.Lock()

    def one(file: str, kind: str) -> None:
        limit = options.limit or (600 if options.tls else 120)
        outcome = runner.run(file, kind, limit, [d for d in deviations if d.file == file])
        check_count(outcome, version, options.tls)
        with printing:
            outcomes.append(outcome)
            print(describe(outcome), flush=True)

    begin = time.monotonic()
    with runner, ThreadPoolExecutor(options.jobs) as pool:
        try:
            list(pool.map(lambda pair: one(*pair), chosen * options.repeat))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    bad = [outcome for outcome in outcomes if outcome.result not in ("pass", "skip")]
    counts = {result: sum(o.result == result for o in outcomes) for result in ("pass", "fail", "limit", "skip")}
    print(
        f"\n{len(outcomes)} files in {time.monotonic() - begin:.0f} s: "
        + ", ".join(f"{count} {result}" for result, count in counts.items() if count)
        + f"; {sum(o.passed for o in outcomes)} assertions pass, {sum(len(o.failed) for o in outcomes)} fail, "
        f"{sum(len(o.expected) for o in outcomes)} deviate as listed"
    )
    used = {(o.file, text) for o in outcomes for text in o.expected}
    for deviation in deviations:
        if any(file == deviation.file and deviation.matches(text) for file, text in used):
            print(f"  deviates: {deviation.file}: {deviation.assertion}: {deviation.reason}")
    for kind, count in left_out.items():
        print(f"  left out: {count} of class {kind}: {LEFT_OUT[kind]}")
    if options.json:
        document = {"version": named, "command": command, "files": [vars(outcome) for outcome in outcomes]}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
