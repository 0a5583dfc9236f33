"""memcached's own suite, from the distribution's source package, and the runner's treatment of tests that misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import peer_suite
import pytest

RUNNER = Path(peer_suite.__file__)


def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.timeout(900)
def test_memcacheds_own_suite() -> None:
    done = run("--jobs", "4", "--sasl", timeout=800)
    if done.returncode == 2 and not os.environ.get("CI"):
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr + done.stdout
    assert " fail" not in done.stdout.splitlines()[0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of version 1.6.18, without tests yet."""
    (tmp_path / "t").mkdir()
    (tmp_path / "version.m4").write_text("m4_define([VERSION_NUMBER], [1.6.18])\n")
    return tmp_path


def outcome(tree: Path, file: str, perl: str, *arguments: str) -> dict[str, Any]:
    """Runs a test file. Returns the runner's result."""
    (tree / "t" / file).write_text(perl)
    result = tree / "result.json"
    done = run("--tree", str(tree), "--command", "/bin/true", "--json", str(result), *arguments, file)
    found: dict[str, Any] = json.loads(result.read_text())["files"][0]
    assert (done.returncode == 0) == (found["result"] in ("pass", "skip")), done.stdout
    return found


def test_results(tree: Path) -> None:
    assert outcome(tree, "a.t", 'print "1..2\\nok 1\\nok 2 - two\\n";')["result"] == "pass"
    assert outcome(tree, "a.t", 'print "1..0 # skip not here\\n";')["remarks"] == ["not here"]
    failed = outcome(tree, "a.t", 'print "1..2\\nok 1\\nnot ok 2 - two\\n"; exit 1')
    assert (failed["result"], failed["failed"]) == ("fail", ["two"])
    short = outcome(tree, "a.t", 'print "1..2\\nok 1\\n";')
    assert short["remarks"] == ["ended after 1 of 2 assertions, status 0"]
    died = outcome(tree, "a.t", 'print "1..1\\nok 1\\n"; die "gone";')
    assert (died["result"], "gone" in died["stderr"]) == ("fail", True)


def test_too_slow_and_what_it_leaves_behind(tree: Path) -> None:
    perl = 'system("sleep 1000 &"); print "1..2\\nok 1\\n"; $| = 1; sleep 1000;'
    slow = outcome(tree, "a.t", perl, "--limit", "0.5")
    assert (slow["result"], slow["passed"]) == ("limit", 1)
    # The end of a test also ends its daemons.
    assert outcome(tree, "a.t", 'system("sleep 1000 &"); print "1..1\\nok 1\\n";')["result"] == "pass"


def test_deviations_are_strict(tree: Path) -> None:
    as_listed = outcome(tree, "shutdown.t", 'print "1..1\\nnot ok 1 - error when shutdown is not enabled\\n"; exit 1')
    assert (as_listed["result"], len(as_listed["expected"])) == ("pass", 1)
    passes = outcome(tree, "shutdown.t", 'print "1..1\\nok 1 - error when shutdown is not enabled\\n";')
    assert passes["result"] == "fail" and "passes, but" in passes["remarks"][0]
    newer = outcome(
        tree,
        "shutdown.t",
        'print "1..1\\nnot ok 1 - error when shutdown is not enabled\\n"; exit 1',
        *("--version", "1.6.45"),
    )
    assert newer["result"] == "fail"
    stops = outcome(tree, "cas.t", '$| = 1; print "1..9\\nnot ok 1 - cas empty, throw error\\n"; sleep 1000')
    assert (stops["result"], stops["seconds"] < 20) == ("pass", True)


def test_what_an_option_changes(tree: Path) -> None:
    failing = ("moved some items to cold", "our canary moved to warm")
    lines = "".join(f"not ok {number} - {name}\\n" for number, name in enumerate(failing, 1))
    perl = f'print "1..2\\n{lines}"; exit 2'
    assert outcome(tree, "lru-maintainer.t", perl)["result"] == "fail"
    with_it = outcome(tree, "lru-maintainer.t", perl, "--options", "lru_algorithm=s3fifo")
    assert (with_it["result"], with_it["expected"], with_it["remarks"]) == ("pass", [*failing], [])


def test_fewer_assertions_than_memcached_passes(tree: Path) -> None:
    fewer = outcome(tree, "quit.t", 'print "1..0 # skip all\\n";', "--version", "1.6.45")
    assert fewer["result"] == "fail"
    perl = 'print "1..61\\n"; print "ok $_\\n" for 1 .. 61'
    more = outcome(tree, "maxconns.t", perl, "--version", "1.6.45")
    assert (more["result"], more["remarks"]) == ("fail", ["memcached passes 1 to 60 assertions"])


def test_messages(tree: Path) -> None:
    assert "has no t/*.t" in run("--tree", str(tree)).stderr
    (tree / "t" / "a.t").write_text("")
    nothing = run("--tree", str(tree), "quark")
    assert (nothing.returncode, "quark is no file of" in nothing.stderr) == (2, True)
    assert "/no/daemon -h" in run("--tree", str(tree), "--command", "/no/daemon", "a.t").stderr


def test_source_entries(tmp_path: Path) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://no.example/debian bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://a.example/ubuntu jammy main universe # us\n"
    )
    (folder / "b.sources").write_text(
        "Types: deb\n# a remark\nURIs: http://b.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
    )
    assert peer_suite.source_entries(tmp_path) == (
        "Types: deb-src\nURIs: http://a.example/ubuntu\nSuites: jammy\nComponents: main universe\nSigned-By: /k.gpg\n\n"
        "Types: deb-src\nURIs: http://b.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
    )
