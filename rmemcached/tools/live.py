"""The live view of rmemcached-top: terminal, keys and signals; and its one screen for a pipe."""

from __future__ import annotations

import contextlib
import curses
import io
import os
import re
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from rmemcached.tools import screen
from rmemcached.tools.rates import Poller, Reading

LONGEST_WAIT = 1.0  # seconds without a new screen
GATHERING = 0.05  # seconds for further samples
WIDTH = 120  # without a terminal's width
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A letter, an arrow, or another key's sequence. Letters inside a sequence are no keys.
KEY = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1bO.|[^\x1b]", re.DOTALL)


def colourless() -> bool:
    """Returns whether the terminal has no colours, or is unknown."""
    try:
        curses.setupterm()
    except curses.error:
        return True
    return curses.tigetnum("colors") < 8


class Live:
    """The live view: the terminal, the choices of the keys, and the times to draw. Used by the main thread."""

    def __init__(self, servers: Sequence[str], arguments: dict[str, Any], view: screen.View, console: Console) -> None:
        self.view = view
        self.console = console
        self.stdin = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self.readings: list[Reading] = []
        self.clock = 0.0
        self.ended = self.stopped = False
        self.woken, self.waker = os.pipe()
        for end in (self.woken, self.waker):
            os.set_blocking(end, False)
        self.pollers = [Poller(server, arguments, view.interval, view.prefixes, self.wake) for server in servers]

    def wake(self) -> None:
        """Asks for a new screen. Threads: any."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.waker, b"\0")

    def draw(self) -> None:
        if not self.view.paused:
            self.readings = [poller.now() for poller in self.pollers]
            self.clock = time.time()
        width, height = self.console.size
        self.console.update_screen(screen.live(self.readings, self.view, self.clock, width, height))

    @contextlib.contextmanager
    def terminal(self) -> Iterator[None]:
        """Shows the alternate screen, without a cursor and an echo of the keys; restores the terminal at the end."""
        before = None if self.stdin is None else termios.tcgetattr(self.stdin)
        try:
            if self.stdin is not None:
                tty.setcbreak(self.stdin)
            self.console.set_alt_screen(True)
            self.console.show_cursor(False)
            yield
        finally:
            # The terminal may be gone.
            with contextlib.suppress(OSError):
                self.console.show_cursor(True)
                self.console.set_alt_screen(False)
            if self.stdin is not None and before is not None:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self.stdin, termios.TCSADRAIN, before)

    def end(self, *_: object) -> None:
        self.ended = True

    def stop(self, *_: object) -> None:
        self.stopped = True

    def move(self, by: int) -> None:
        """Selects the next server in the shown order."""
        names = [reading.name for reading in self.view.servers.sort(self.readings, screen.SERVERS)]
        at = names.index(screen.selection(self.readings, self.view).name)
        self.view.selected = names[min(max(at + by, 0), len(names) - 1)]

    def press(self, key: bytes) -> None:
        view = self.view
        orders = {
            b"s": (view.servers, screen.SERVERS),
            b"c": (view.classes, screen.CLASSES),
            b"f": (view.by_prefix, screen.PREFIXES),
        }
        if key == b"q":
            self.ended = True
        elif key == b" ":
            view.paused = not view.paused
        elif key in (b"k", b"j") or (key[:1] == b"\x1b" and key[-1:] in (b"A", b"B")):
            self.move(-1 if key[-1:] in b"kA" else 1)
        elif key in orders:
            order, columns = orders[key]
            order.next(len(columns))
        elif key.lower() in orders:
            order, _ = orders[key.lower()]
            order.upward = not order.upward

    def wait(self) -> None:
        """Waits for a sample, a key or a signal; LONGEST_WAIT at most, since a server may go on answering for ever."""
        keys = [] if self.stdin is None else [self.stdin]
        ready, _, _ = select.select([self.woken, *keys], [], [], LONGEST_WAIT)
        if self.woken in ready and self.stdin not in ready and not self.ended:
            # Many servers answer within a moment: one screen for all answers.
            ready += select.select(keys, [], [], GATHERING)[0]
        if self.woken in ready:
            os.read(self.woken, 4096)
        if self.stdin in ready:
            assert self.stdin is not None
            pressed = os.read(self.stdin, 4096)
            self.ended |= not pressed
            for key in KEY.findall(pressed):
                self.press(key)

    def watch(self) -> None:
        """Draws until the end, or until the process stops (Ctrl-Z)."""
        while not self.ended and not self.stopped:
            self.draw()
            self.wait()

    def run(self) -> None:
        """Runs until q or a signal. Raises OSError when the terminal is gone."""
        signal.set_wakeup_fd(self.waker, warn_on_full_buffer=False)
        for number in END_SIGNALS:
            signal.signal(number, self.end)
        signal.signal(signal.SIGTSTP, self.stop)
        signal.signal(signal.SIGWINCH, lambda *_: None)  # wakes select
        for poller in self.pollers:
            poller.thread.start()
        while not self.ended:
            with self.terminal():
                self.watch()
            if self.stopped:
                self.stopped = False
                os.kill(os.getpid(), signal.SIGSTOP)


def make_console(once: bool) -> Console:
    """Returns the place to print. Ends the command where a live view is impossible."""
    if sys.stdout is None:
        raise SystemExit("rmemcached-top: stdout is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The path of a UNIX socket may have letters unknown to the terminal.
        sys.stdout.reconfigure(errors="backslashreplace")
    live_terminal = sys.stdout.isatty()
    if not once and not live_terminal:
        raise SystemExit("rmemcached-top: stdout is no terminal: --once prints one screen")
    console = Console(
        color_system="auto" if live_terminal and not colourless() else None,
        width=None if live_terminal or "COLUMNS" in os.environ else WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
    if not once and console.is_dumb_terminal:
        raise SystemExit("rmemcached-top: TERM=dumb: such a terminal cannot be drawn anew: --once prints one screen")
    return console


def print_once(servers: Sequence[str], arguments: dict[str, Any], interval: float, prefixes: bool) -> int:
    """Prints one screen, after two samples of each server. Returns the exit status. Leaves its threads behind."""
    console = make_console(True)
    pollers = [Poller(server, arguments, interval, prefixes, lambda: None) for server in servers]
    threads = [threading.Thread(target=poller.ask_twice, daemon=True) for poller in pollers]
    for thread in threads:
        thread.start()
    end = time.monotonic() + interval + sum(2 * poller.patience for poller in pollers[:1])
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    readings = [poller.now() for poller in pollers]
    console.print(screen.once(readings, screen.View(interval, prefixes), time.time(), console.width))
    return 1 if any(reading.error for reading in readings) else 0


def watch(servers: Sequence[str], arguments: dict[str, Any], interval: float, prefixes: bool) -> int:
    """Shows the live view, until q, a signal, or the loss of the terminal. Leaves its threads behind. Returns 0."""
    console = make_console(False)
    with contextlib.suppress(OSError):
        Live(servers, arguments, screen.View(interval, prefixes), console).run()
    return 0
