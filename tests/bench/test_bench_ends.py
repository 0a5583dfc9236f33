"""How rmemcached-bench ends before its time: interrupted, killed, the disk full. Nothing is left; files are whole."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_runs import BUSY_NOTE, run

from rmemcached.bench import command, document, measure
from rmemcached.bench.contenders import Running
from rmemcached.bench.errors import BenchError

BENCH = (sys.executable, "-P", "-m", "rmemcached.bench")
LATENCY = "latency --seconds 60 --sizes 100 --operations get"
PACED = "paced --seconds 60 --most 100000000 --think 0 --clients 3 --busy 1"
STORING = "load --keys 1000000000 --memory 64"
CONTENDERS = ("--contenders", "tcp,memcached")


@pytest.fixture(autouse=True, scope="module")
def with_signals() -> Iterator[None]:
    """Restores signals ignored by the tests: nohup, and a shell with a background command, ignore them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Family:
    """A command in a session of its own, and its child processes."""

    def __init__(self, words: str, *more: str) -> None:
        self.command = subprocess.Popen(
            [*BENCH, *words.split(), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def members(self) -> dict[int, str]:
        """{number: command line} of the session's processes, without zombies."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                # Behind the name stand the state, the parent, the group and the session.
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.command.pid and state != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def await_member(self, text: str, count: int = 1) -> int:
        """Waits until so many processes have this text in their command line. Returns the number of the first."""
        while self.command.poll() is None:
            found = [number for number, line in self.members().items() if text in line]
            if len(found) >= count:
                return found[0]
        raise AssertionError(self.command.communicate())

    def ended(self, within: float = 40) -> tuple[int, str]:
        """(status, stderr) after the end of all processes."""
        watched = []
        for number in self.members():
            with contextlib.suppress(ProcessLookupError):
                watched.append(os.pidfd_open(number))
        _, said = self.command.communicate(timeout=within)
        for descriptor in watched:
            assert select.select([descriptor], [], [], within)[0], self.members()
            os.close(descriptor)
        assert not self.members()
        return self.command.returncode, said


@contextlib.contextmanager
def family(words: str, *more: str) -> Iterator[Family]:
    made = Family(words, *more)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(made.command.pid, signal.SIGKILL)
        made.command.communicate()


@pytest.mark.parametrize("words, last", [(LATENCY, "bare --port"), (PACED, "spawn_main")])
def test_interrupted_at_the_terminal(words: str, last: str) -> None:
    """Ctrl-C reaches all processes, which end without output."""
    with family(words, *CONTENDERS) as made:
        made.await_member(last)
        os.killpg(made.command.pid, signal.SIGINT)
        assert made.ended() == (130, "")


def test_interrupted_again_and_again() -> None:
    """Repeated Ctrl-C still ends all servers."""
    with family(PACED, *CONTENDERS) as made:
        made.await_member("spawn_main")
        for _ in range(5):
            os.killpg(made.command.pid, signal.SIGINT)
        status, said = made.ended()
        assert status in (130, -signal.SIGINT) and "one_round" not in said, said


@pytest.mark.parametrize(
    "words, last, more",
    [
        (PACED, "spawn_main", CONTENDERS),
        # In this case the first server of the command has just been started.
        (STORING, "-m rmemcached -", CONTENDERS),
        ("fabrics --iterations 3000", "one_round", ()),
    ],
)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_command_alone_is_killed(words: str, last: str, more: tuple[str, ...], how: int) -> None:
    with family(words, *more) as made:
        made.await_member(last, 2 if last == "one_round" else 1)
        made.command.send_signal(how)
        assert made.ended() == (130 if how == signal.SIGINT else -how, "")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_command_alone_is_killed_while_it_stores_keys(how: int) -> None:
    """The end of the command alone, while keys are stored without any reports, ends all processes."""
    with family(STORING, *CONTENDERS) as made:
        number = made.await_member("-m rmemcached -")
        words = made.members()[number].split()
        server = Running(("127.0.0.1", int(words[words.index("-p") + 1])))
        stored = 0
        while not stored:
            with contextlib.suppress(ConnectionRefusedError):  # the server does not listen yet
                stored = int(server.stats()["cmd_set"])
        made.command.send_signal(how)
        assert made.ended() == (130 if how == signal.SIGINT else -how, "")


def test_the_terminal_is_closed() -> None:
    with family(PACED, *CONTENDERS) as made:
        made.await_member("spawn_main")
        os.killpg(made.command.pid, signal.SIGHUP)
        assert made.ended() == (-signal.SIGHUP, "")


def test_the_round_is_killed() -> None:
    with family(PACED, *CONTENDERS) as made:
        made.await_member("spawn_main")
        os.kill(made.await_member("one_round"), signal.SIGKILL)
        status, said = made.ended()
        assert status == 1 and said == "rmemcached-bench: round 1 ended with status -9; its output is above\n"


# ---- files -----------------------------------------------------------------------------------------------------------

SHORT = "latency --seconds 0 --least 2 --rounds 1 --sizes 100 --operations get --contenders tcp"


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the figures of a run."""
    path = tmp_path_factory.mktemp("figures") / "figures.json"
    run(*SHORT.split(), "--json", str(path))
    return path


def test_a_full_disk_leaves_the_file_before(figures: Path, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(BenchError, match=r"figures\.json: File too large"):
            document.write(str(path), document.read(str(figures)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == ["figures.json"] and path.read_text() == "before"


def test_a_file_keeps_its_links(tmp_path: Path) -> None:
    path, link = tmp_path / "figures.json", tmp_path / "link"
    path.write_text("before")
    link.symlink_to(path)
    document.write_text(str(link), "now")
    assert link.is_symlink() and path.read_text() == "now"
    document.write_text(os.devnull, "nowhere")
    assert Path(os.devnull).is_char_device()


def test_files_are_there_when_nobody_reads_the_table(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    with subprocess.Popen(
        [*BENCH, *SHORT.split(), "--json", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None and bench.stderr is not None
        bench.stdout.close()
        assert not [line for line in bench.stderr if not line.startswith(BUSY_NOTE)]
    assert bench.returncode == 1 and document.read(str(path))["results"]


def test_a_table_that_cannot_be_written_is_one_line(figures: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*BENCH, "show", str(figures)], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "rmemcached-bench: stdout: No space left on device\n")


@pytest.mark.parametrize(
    "path, value",
    [
        (("machine", "kernel"), None),
        (("machine",), 5),
        (("contenders", 0, "command"), [1]),
        (("contenders", 0, "name"), []),
        (("cases", 0, "figures", 0, "name"), {}),
        (("samples", 0, "values"), {"p50_us": "x"}),
        (("notes",), 3),
        (("reference",), None),
    ],
)
def test_a_damaged_file_is_named(
    figures: Path, tmp_path: Path, path: tuple[str | int, ...], value: object, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = json.loads(figures.read_text())
    where = damaged
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    (tmp_path / "damaged.json").write_text(json.dumps(damaged))
    assert command.main(["show", str(tmp_path / "damaged.json"), "--html", str(tmp_path / "out.html")]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/damaged.json is damaged: " in said and said.count("\n") == 1


def test_all_shows_what_was_measured_before_it_failed(tmp_path: Path) -> None:
    """`all` reports the first subcommand though the second finds no room for its file."""
    (tmp_path / "hitratio.json").symlink_to("/dev/full")
    done = run("all", str(tmp_path), "--quick", "--only", "memory,hitratio", status=1)
    assert f"{tmp_path}/hitratio.json: No space left on device" in done.stderr
    assert "rmemcached-bench memory" in (tmp_path / "report.html").read_text()


def test_the_bar_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    bar = measure.Progress()
    bar.shown = True
    bar.show(0.1, "x" * 200)
    shown = capsys.readouterr().err.removeprefix("\r\x1b[K")
    assert len(shown) == measure.USUAL_COLUMNS - 1
