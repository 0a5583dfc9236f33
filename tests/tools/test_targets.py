"""Servers named to the operators' commands: a line tells the fault of a name, before any request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from rmemcached.bench.command import main as bench
from rmemcached.tools.doctor import main as doctor
from rmemcached.tools.exporter import main as exporter
from rmemcached.tools.top import main as top

Main = Callable[[Sequence[str]], int]
COMMANDS: dict[str, Main] = {
    "exporter": exporter,
    "top": lambda words: top(["--once", *words]),
    "doctor": doctor,
    "bench load": lambda words: bench(["load", "--server", *words]),
    "bench latency": lambda words: bench(["latency", "--contenders", *words]),
}


def stderr_of(main: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("host:88616", "'host:88616': the port must be from 1 to 65535, not '88616'"),
        ("host:port", "'host:port': the port must be from 1 to 65535, not 'port'"),
        ("tcp://host:88616", "tcp://host:88616: the port must be from 1 to 65535, not '88616'"),
        (":-5", "':-5': it names no host: a server is 'host', 'host:port'"),
        ("unix:", "'unix:': it names no UNIX socket, as '/run/memcached.sock' does"),
        ("one two:5", "'one two:5': 'one two' is no host"),
    ],
)
def test_what_is_no_server(command: str, server: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = stderr_of(partial(COMMANDS[command], [server]), capsys)
    assert said in line and line.count(server) <= 2


@pytest.mark.parametrize("command", ["exporter", "top", "doctor", "bench load"])
def test_no_text_at_all(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An unset environment variable leaves an empty text."""
    assert "'': it names no host: a server is" in stderr_of(partial(COMMANDS[command], [""]), capsys)


@pytest.mark.parametrize("place", ["88616", ":88616", "host:-5", "host:\u00b2", "host"])
def test_where_the_exporter_cannot_listen(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = stderr_of(partial(exporter, ["--listen", place]), capsys)
    assert f"[HOST]:PORT is needed, not {place!r}: the port must be from 1 to 65535" in line
