"""rmemcached-top in a real terminal, with real servers: its display, its keys, and the terminal afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pyte
import pytest
from daemon_tools import Conversation, rdma_client
from flash_tools import fill, options
from scripted import Scripted
from servers import Server, free_port, start_memcached, start_rmemcached

from rmemcached.client import Client
from rmemcached.tools.rates import Reading, Sample
from rmemcached.tools.screen import Order, count, size

ServerFactory = Callable[..., Server]
COMMAND = (sys.executable, "-P", "-m", "rmemcached.tools.top")
OTHER_SCREEN = "\x1b[?1049h"
BACK = "\x1b[?1049l"
HOME = b"\x1b[H"
SHOW_CURSOR = "\x1b[?25h"


class Terminal:
    """The command in a pseudo-terminal, and the text on its screen."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 30, term: str = "xterm-256color") -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.received = self.pending = b""
        self.process = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "--interval", "0.1", *arguments],
            env={**environment, "TERM": term, "LC_ALL": "C.UTF-8"},
            dimensions=(lines, columns),
            timeout=20,
        )
        # pexpect would sleep before a key, and at the close of the terminal.
        self.process.delaybeforesend = None
        self.process.ptyproc.delayafterclose = self.process.ptyproc.delayafterterminate = 0.0
        self.before = termios.tcgetattr(self.process.child_fd)

    def take(self) -> bool:
        """Takes a single screen of the output, without missing any; False at the end."""
        if not self.pending:
            try:
                self.pending = self.process.read_nonblocking(65536, 20)
            except pexpect.EOF:
                return False
        at = self.pending.find(HOME, 1)
        data, self.pending = (self.pending[:at], self.pending[at:]) if at > 0 else (self.pending, b"")
        self.received += data
        self.stream.feed(data)
        return True

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def until(self, pattern: str) -> re.Match[str]:
        """Waits until the screen has this text."""
        deadline = time.monotonic() + 30
        while (found := re.search(pattern, self.text(), re.MULTILINE)) is None:
            assert time.monotonic() < deadline and self.take(), f"{pattern!r} is not in\n{self.text()}"
        return found

    def press(self, keys: str) -> None:
        self.process.send(keys)

    def rest(self) -> int:
        """Waits for the end of the command. Returns its status."""
        while self.take():
            pass
        self.process.wait()
        return -self.process.signalstatus if self.process.signalstatus else int(self.process.exitstatus)

    def is_as_it_was(self) -> None:
        """Checks that the settings of the line, the screen and the cursor are as before."""
        said = self.received.decode()
        assert said.count(OTHER_SCREEN) == said.count(BACK) > 0
        assert said.rindex(SHOW_CURSOR) > said.rindex("\x1b[?25l")
        assert said.rindex(BACK) > said.rindex("rmemcached-top")

    def kill(self) -> None:
        if self.process.isalive():
            self.process.kill(signal.SIGKILL)
            self.process.wait()
        self.process.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        started.append(Terminal(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def load(server: Server, hits: int, misses: int) -> None:
    with Client(server.address, transport="tcp") as client:
        client.set("there", b"x", noreply=False)
        # All gets are in a single command, so no sample falls in the middle.
        client.raw_command("get" + " there" * hits + " no" * misses, "END\r\n")


def test_it_shows_what_happens(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    server = rmemcached_server()
    with rdma_client(server) as client:
        client.set("key", b"x" * 100_000, noreply=False)
        shown = terminal(server.place, "--interval", "0.5")
        shown.until(rf"^> {re.escape(server.place)}\s+0\s+-\s+0\s")
        assert "rmemcached 0.1.0, memcached 1.6.45" in shown.text()
        load(server, 300, 100)
        # The sample with these 400 gets is of about half a second: the pattern leaves the rate open, and 75 % are hits.
        shown.until(rf"^> {re.escape(server.place)}\s+[\d.]+k?\s+75\.0\s")
        shown.until(r"^get\s+[\d.]+k?\s+75\.0\s")
        assert re.search(r"lanes\s+1\s*$", shown.text(), re.MULTILINE)
        assert re.search(r"soft_(iw|shm)\s+1\s*$", shown.text(), re.MULTILINE)
        assert re.search(r"^get +\S+ +\S+ +\d+ +[\d.]+K? +[\d.]+[KM] ", shown.text(), re.MULTILINE)
    shown.press("q")
    assert shown.rest() == 0
    shown.is_as_it_was()


def test_it_shows_who_reads_without_asking(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    server = rmemcached_server()
    with Client(server.address) as client:
        client.set("key", b"value", noreply=False)
        shown = terminal(server.place, "--interval", "0.2")
        shown.until(r"readers\s+1\s*$")
    shown.until(r"readers\s+0\s*$")


def test_values_on_flash(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    """A server with ext_path has a line about flash, in the smallest window, too; other servers have none."""
    flash, other = rmemcached_server("-o", options(tmp_path / "flash")), rmemcached_server()
    with Conversation(flash) as control:
        keys = list(fill(flash, control))
        shown = terminal(flash.place, other.place, "--interval", "0.5", columns=80, lines=20)
        shown.until(r"^flash +used % +free p +get/s +hit % +in B/s +out B/s +evict/s +lost/s +faults +moves/s\s*$")
        shown.until(r"^64\.0M +[\d.]+ +\d +0 +- +0 +0 +0 +0 +0 +0\s*$")
        with Client(flash.address, transport="tcp") as client:
            assert None not in client.get_many(keys).values()
        shown.until(r"^64\.0M +[\d.]+ +\d +[1-9][\d.k]* +100\.0 +0 +[\d.]+[KM] ")
    shown.press("j")
    shown.until(rf"^> {other.place} ")
    assert "free p" not in shown.text()


def test_memcached_has_no_rdma(terminal: Callable[..., Terminal]) -> None:
    with start_memcached() as server:
        load(server, 1, 0)
        shown = terminal(server.place, columns=140)
        shown.until(r"^127\.0\.0\.1:\d+: memcached 1\.\d")
        shown.until(r"not there\s*$")
        shown.until(r"^get +0 ")


@pytest.mark.parametrize("way", ["q", "Ctrl-C", "SIGTERM", "SIGHUP"])
def test_the_terminal_is_left_as_it_was(
    way: str, rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(rmemcached_server().place)
    shown.until(r"^> 127.* 0 ")
    during = termios.tcgetattr(shown.process.child_fd)
    assert during[3] & (termios.ECHO | termios.ICANON) == 0
    if way in ("q", "Ctrl-C"):
        shown.press("q" if way == "q" else "\x03")
    else:
        shown.process.kill(signal.Signals[way])
    assert shown.rest() == 0
    shown.is_as_it_was()
    assert termios.tcgetattr(shown.process.child_fd) == shown.before


def test_it_is_stopped_and_goes_on(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    """Ctrl-Z gives the terminal back until the command goes on."""
    shown = terminal(rmemcached_server().place)
    shown.until(r"^> 127.* 0 ")
    shown.press("\x1a")
    pid, status = os.waitpid(shown.process.pid, os.WUNTRACED)
    assert pid and os.WIFSTOPPED(status)
    assert termios.tcgetattr(shown.process.child_fd) == shown.before
    while BACK not in shown.received.decode():
        assert shown.take()
    shown.process.kill(signal.SIGCONT)
    while shown.received.decode().count(OTHER_SCREEN) < 2:
        assert shown.take()
    shown.press("q")
    assert shown.rest() == 0
    shown.is_as_it_was()


def test_a_server_dies_and_comes_back(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    first = start_rmemcached(path=path)
    shown = terminal(path)
    with first:
        shown.until(r"^> /.* 0 ")
    shown.until(r"1 server, 1 down")
    shown.until(r"^/.*: ConnectionRefusedError|^/.*: FileNotFoundError")
    with start_rmemcached(path=path):
        shown.until(r"1 server *$")
        shown.until(r"^> /.* 0 ")


def test_keys(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    servers = [rmemcached_server() for _ in range(3)]
    load(servers[1], 1, 0)
    with Client(servers[1].address, transport="tcp") as client:
        client.set("larger", b"x" * 20_000, noreply=False)
    shown = terminal(*(server.place for server in servers))
    shown.until(rf"^> {servers[0].place} .* 0 ")
    shown.press("j")
    shown.until(rf"^> {servers[1].place} ")
    shown.until(rf"^{servers[1].place}: rmemcached")
    shown.press("\x1b[B")
    shown.until(rf"^> {servers[2].place} ")
    shown.press("\x1b[A")
    shown.until(rf"^> {servers[1].place} ")
    shown.press("c")
    first = shown.until(r"class\^.*\n.*?%? +-? +(\d+) +[\d.]+K? +[\d.]+[KM]")
    shown.press("C")
    last = shown.until(r"classv.*\n.*?%? +-? +(\d+) +[\d.]+K? +[\d.]+[KM]")
    assert int(last[1]) > int(first[1])
    shown.press("s")
    shown.until(r"server\^")
    names = sorted(server.place for server in servers)
    assert re.findall(r"^[> ] (127\S+)", shown.text(), re.MULTILINE) == names
    shown.press("S")
    shown.until(r"serverv")
    shown.until(rf"\n[> ] {names[2]}.*\n[> ] {names[1]}.*\n[> ] {names[0]}")
    shown.press(" ")
    shown.until(r"paused")
    frozen = shown.until(r"\d\d:\d\d:\d\d")[0]
    load(servers[1], 50, 50)
    shown.press("j")
    rows = names[::-1]
    shown.until(rf"^> {rows[min(rows.index(servers[1].place) + 1, 2)]} ")
    assert frozen in shown.text() and "paused" in shown.text()
    shown.press(" ")
    shown.until(r"^rmemcached-top .* servers *$")


def test_small_windows(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    """The command reports a small window, and goes on when the window grows."""
    shown = terminal(rmemcached_server().place, columns=40, lines=10)
    shown.until(r"The window has 40x10 characters:")
    shown.screen.resize(24, 80)
    shown.process.setwinsize(24, 80)
    shown.until(r"^> 127.* 0 ")
    assert max(map(len, shown.screen.display)) == 80
    shown.press("q")
    assert shown.rest() == 0


@pytest.mark.parametrize("term", ["vt100", "no-such-terminal"])
def test_terminals_without_colour(term: str, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(f"127.0.0.1:{free_port()}", term=term)
    shown.until("refused")
    shown.press("q")
    assert shown.rest() == 0
    assert not re.search(rb"\x1b\[[\d;]*m", shown.received.replace(b"\x1b[0m", b""))


def test_colours(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(f"127.0.0.1:{free_port()}")
    shown.until("refused")
    assert re.search(rb"\x1b\[1;31m[^\x1b]*refused", shown.received)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    return subprocess.run(
        [*COMMAND, "--interval", "0.1", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**known, **environment},
    )


def test_once(rmemcached_server: ServerFactory, tmp_path: Path) -> None:
    """--once is for pipes: every server with all its figures, without escape codes. Status 1: a server is missing."""
    path = str(tmp_path / "socket")
    users = tmp_path / "users"
    users.write_text("me:secret\n")
    password = tmp_path / "password"
    password.write_text("secret\n")
    first, _ = rmemcached_server(), rmemcached_server("-Y", str(users), path=path)
    load(first, 3, 1)
    done = run("--once", first.place)
    assert (done.returncode, done.stderr) == (0, "")
    done = run("--once", path, "--username", "me", "--password-file", str(password))
    assert done.returncode == 0 and re.search(rf"^> {path[:10]}\S+ +0 ", done.stdout, re.MULTILINE)
    done = run("--once", path)
    assert done.returncode == 1 and "authenticat" in done.stdout
    nobody = f"127.0.0.1:{free_port()}"
    done = run("--once", first.place, nobody, COLUMNS="80")
    assert done.returncode == 1 and "2 servers, 1 down" in done.stdout
    assert f"{nobody}: ConnectionRefusedError" in done.stdout and f"\n{first.place}: rmemcached" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_prefixes(rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]) -> None:
    """Prefixes are shown for servers that count them, and clients' keys cannot reach the terminal as commands."""
    counting, other = rmemcached_server("-D", ":"), rmemcached_server()
    with Client(counting.address, transport="tcp") as client:
        for line in ("get user:1", "get user:2", "get page:1", "get \x1b[2J:1"):
            client.raw_command(line, "END\r\n")
    shown = terminal(counting.place, other.place, "--prefixes")
    shown.until(r"^prefix +cmd/sv +commands ")
    shown.press("f")
    shown.until(r"commandsv .*\nuser +0 +2 ")
    shown.until(r"^page +0 +1 ")
    shown.until(r"^\\x1b\[2J +0 +1 ")
    shown.press("fff")
    shown.press("j")
    shown.until('not counted there: start it with -D, or send it "stats detail on"')
    assert "\nprefix" not in run("--once", counting.place).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 1, "rmemcached-top: stdout is no terminal: --once prints one screen"),
        (("--interval", "0.01"), 2, "rmemcached-top: error: argument --interval: it is 0.1 to 3600 seconds, not 0.01"),
        (("http://a",), 2, "rmemcached-top: error: http://a: "),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], status: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == status and done.stderr.splitlines()[-1].startswith(said)


def test_dumb_terminals(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(term="dumb")
    assert shown.rest() == 1 and "--once prints one screen" in shown.text().replace("\n", "")


def strange(lines: bytes, ends: bool = True) -> Callable[[bytes], Iterator[bytes]]:
    """The answers of a server whose `stats` has these lines, too. Without `ends` no answer ends: a line comes every 50
    ms."""

    def answers(line: bytes) -> Iterator[bytes]:
        if line == b"stats":
            yield b"STAT pid 1\r\nSTAT uptime 9\r\n" + lines
        elif line == b"stats slabs":
            yield b"STAT abc:chunk_size 1\r\nSTAT \x1b[2J:chunk_size 2\r\nSTAT 12345:chunk_size 3\r\n"
            yield b"STAT 1:chunk_size 96\r\n"
        while not ends:
            yield b"STAT again 1\r\n"
            time.sleep(0.05)  # less than the command's time-out of 0.3 s: lines come in time, and no answer ends
        yield b"END\r\n"

    return answers


STRANGE = {
    "huge": b"STAT curr_connections 1%s\r\nSTAT cmd_get 1%s\r\n" % (b"0" * 400, b"0" * 5000),
    "large": b"STAT curr_connections 1%s\r\nSTAT limit_maxbytes 1%s\r\nSTAT bytes -7\r\n" % (b"0" * 30, b"0" * 30),
    "no number": b"STAT curr_connections -inf\r\nSTAT cmd_get nan\r\nSTAT threads inf\r\nSTAT limit_maxbytes 0\r\n",
    "escapes": b"STAT version \x1b[2J\x1b]0;x\x07\r\nSTAT rmemcached_version \xc2\x9b2J\r\n",
}


def test_strange_servers(
    scripted: Callable[..., Scripted], rmemcached_server: ServerFactory, terminal: Callable[..., Terminal]
) -> None:
    """Each strange server has a line, does not end the view or another server's line, and writes to no terminal."""
    names = [scripted(strange(lines)).place for lines in STRANGE.values()]
    endless = scripted(strange(b"", ends=False)).place
    places = [*names, endless, rmemcached_server().place]
    shown = terminal(*places, "--timeout", "0.3")
    shown.until(rf"^[> ] {places[-1]} +0 ")
    shown.until(r"6 servers, 1 down")
    for name in names:
        shown.until(rf"^> {name} ")
        shown.until(rf"^{name}: .*memcached.* up 9 s")
        shown.until(r"^ *(get\s.*)?1 +96 ")
        shown.press("j")
    shown.until(rf"^{endless}: no end of its answers within 0.9 s")
    shown.press("q")
    assert shown.rest() == 0
    assert b"\x1b]0;" not in shown.received and b"\xc2\x9b" not in shown.received
    done = run("--once", "--timeout", "0.3", *places)
    assert done.returncode == 1 and done.stderr == "" and "\x1b" not in done.stdout
    # On a busy machine a line of the server may come too late.
    assert re.search(rf"^{endless}: (no end of its answers within 0.9 s|TimeoutError)", done.stdout, re.MULTILINE)
    assert "no number" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 120


def test_other_keys_do_nothing(terminal: Callable[..., Terminal]) -> None:
    """F4 and End do nothing, though their sequences have letters of commands."""
    shown = terminal(f"127.0.0.1:{free_port()}")
    shown.until("refused")
    shown.press("\x1bOS\x1b[F\x1b[1;5S\x1b[200~ ")
    shown.until("paused")
    assert not re.search(r"server[v^]", shown.text())
    shown.press("s")
    shown.until(r"server\^")


def test_ctrl_c_and_outputs_that_fail() -> None:
    """Ctrl-C and failed output of a single screen give a line at most, and no traceback."""
    nobody = f"127.0.0.1:{free_port()}"
    with subprocess.Popen(
        [*COMMAND, "--once", "--interval", "60", nobody], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        # With a second thread the command has begun, and waits for its second sample.
        while len(os.listdir(f"/proc/{process.pid}/task")) < 2:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "") and process.returncode == 130
    shell = f"{' '.join(COMMAND)} --interval 0.1 --once {nobody}"
    for output, said in (("/dev/full", "stdout: [Errno 28]"), ("&-", "stdout is closed")):
        done = subprocess.run(f"{shell} >{output}", shell=True, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith(f"rmemcached-top: {said}"), done.stderr
        assert done.stderr.count("\n") == 1
    done = run("--once", "/tmp/caf\u00e9", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 1 and "/tmp/caf\\xe9" in done.stdout


def sample(at: float, **statistics: object) -> Sample:
    return Sample(at, {"pid": 1, **statistics}, {}, {}, 1e-6, 2e-6)


def test_rates() -> None:
    """Rates are of a single process only, and not over a reset of the counters."""

    def general(one: Sample) -> dict[str, Any]:
        return one.general

    first = Reading("s").after(sample(10, uptime=5, cmd_get=100, get_hits=50, get_misses=50, total_connections=9))
    assert first.rate(general, "cmd_get") is None
    second = first.after(sample(12, uptime=7, cmd_get=300, get_hits=200, get_misses=100, total_connections=9))
    assert second.rate(general, "cmd_get") == 100 and second.ratio(general, "get_hits", "get_misses") == 0.75
    assert second.rate(general, "nothing") is None
    same = second.after(sample(13, uptime=8, cmd_get=300, get_hits=200, get_misses=100, total_connections=9))
    assert same.rate(general, "cmd_get") == 0 and same.ratio(general, "get_hits", "get_misses") is None
    for change in ({"uptime": 1}, {"pid": 2}, {"total_connections": 1}):
        found = {"uptime": 9, "cmd_get": 400, "total_connections": 9, **change}
        assert second.after(sample(14, **found)).rate(general, "cmd_get") is None
    assert second.failed("gone").after(sample(14, uptime=9, cmd_get=400)).rate(general, "cmd_get") is None


def test_numbers() -> None:
    assert [count(n) for n in (None, 0, 7, 7.5, 999, 999.6, 12_345, 123_456, 5e6)] == [
        *("-", "0", "7", "7.5", "999", "1.0k", "12.3k", "123k", "5.0M")
    ]
    assert [count(n) for n in (-7, -5e3, 9e14, 1e30)] == ["-7", "-5.0k", "900T", "?"] and size(1e30) == "?"
    assert [size(n) for n in (0, 100, 1536, 64 << 20, 5 << 40)] == ["0", "100", "1.5K", "64.0M", "5.0T"]


def test_unknown_values_are_last() -> None:
    from rmemcached.tools.screen import Column

    columns = [Column("name", lambda row: row[0], str, 1), Column("number", lambda row: row[1], str, 1)]
    rows = [("b", 1), ("a", None), ("c", 3)]
    assert Order().sort(rows, columns) == rows
    assert Order(0).sort(rows, columns) == [("a", None), ("b", 1), ("c", 3)]
    assert Order(1).sort(rows, columns) == [("c", 3), ("b", 1), ("a", None)]
    assert Order(1, True).sort(rows, columns) == [("b", 1), ("c", 3), ("a", None)]
