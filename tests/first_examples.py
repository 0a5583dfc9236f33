"""Runs the first example of each page, as a reader would who has installed the package and has read no further.

    python -P tests/first_examples.py [PAGE...]     # default: README.md and all of docs/

The examples of a page are its first block of Python, and its first command line if the command is the package's. Each
page has a daemon of its own, started by README's line. Further packages for a page, listed in EXTRAS and named by the
page, are installed by pip into this Python's environment. A line for each page lists the examples run. The status is 1
after a failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
SECONDS = 120
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^    (rmemcached(?:-\w+)?(?: .*)?)$", re.MULTILINE)
PORT = "11211"

# page -> packages installed by pip before its example
EXTRAS = {
    "docs/benchmarks.md": "rmemcached[bench]",
    "docs/frameworks.md": "rmemcached[django]",
    "docs/operators.md": "rmemcached[exporter]",
}

# page -> why its first block of Python is not run, or its first command
NOT_ONE_PROGRAM = {"docs/soft-rnic.md": "shows both ends, of two hosts"}
NOT_ONE_COMMAND = {
    "docs/performance.md": "takes an hour, and names a folder and a program of the reader's",
    "docs/soft-rnic.md": "waits for its client, on another host",
}

# a page's name for a place of the reader's own -> its replacement
NAMES = {"cache.example": "127.0.0.1", "/run/cache": "$XDG_RUNTIME_DIR"}


class Failed(Exception):
    """An example that does not work as its page says."""


def environment(folder: str, **more: str) -> dict[str, str]:
    """The environment of a logged-in user's shell, with this Python's virtual environment activated."""
    return {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": folder, **more}


def run(command: list[str], folder: str, what: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        raise Failed(f"{what}: status {done.returncode}\n{done.stdout}{done.stderr}")


def words_of(line: str, port: int, folder: str) -> list[str]:
    """A command line as the shell takes the line, without its comment, with variables, but with a free port."""
    for name, own in NAMES.items():
        line = line.replace(name, own)
    words = shlex.split(line.replace("$XDG_RUNTIME_DIR", folder), comments=True)
    root = ["-u", "root"] if words[0] == "rmemcached" and os.geteuid() == 0 else []
    return [str(SCRIPTS / words[0]), *(word.replace(PORT, str(port)) for word in words[1:]), *root]


@contextlib.contextmanager
def daemon(line: str, port: int, folder: str) -> Iterator[None]:
    """The daemon of this line, from its report of serving to its end by SIGTERM."""
    with contextlib.ExitStack() as stack:
        notified = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notified.bind(f"{folder}/notify")
        own = environment(folder, NOTIFY_SOCKET=f"{folder}/notify")
        process = stack.enter_context(subprocess.Popen(words_of(line, port, folder), cwd=folder, env=own))
        stack.callback(process.terminate)
        ended = os.pidfd_open(process.pid)
        stack.callback(os.close, ended)
        seen = select.select([notified.fileno(), ended], [], [], SECONDS)[0]
        if notified.fileno() not in seen or b"READY=1" not in notified.recv(4096):
            raise Failed(f"{line}: it does not serve")
        yield
        if process.poll() is not None:
            raise Failed(f"{line}: it has ended with status {process.returncode}")


def exporter(line: str, port: int, folder: str) -> None:
    """Starts the exporter of this line, asks for the metrics once, and ends the exporter."""
    words = [*words_of(line, port, folder), f"127.0.0.1:{port}", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(words, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            where = re.search(r"http://\S+", process.stderr.readline())
            if where is None or b"memcached_up" not in urllib.request.urlopen(where[0], timeout=SECONDS).read():
                raise Failed(f"{line}: it does not serve")
        finally:
            process.terminate()


def command(line: str, port: int, folder: str) -> None:
    """Runs the command of a line to its end, or until the daemon serves."""
    if line.startswith("rmemcached-exporter"):
        exporter(line, port, folder)
    elif line.startswith("rmemcached-"):
        run(words_of(line, port, folder), folder, line)
    else:
        with tempfile.TemporaryDirectory() as other, daemon(line, free_port(), other):
            pass


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def readme_daemon() -> str:
    (line,) = [line for line in COMMANDS.findall((ROOT / "README.md").read_text()) if line.startswith("rmemcached -p")]
    return typed(line)


def typed(line: str) -> str:
    return line.partition("#")[0].strip()


def examples(page: str, folder: str) -> list[str]:
    """Runs a page's first examples, and names them."""
    text = (ROOT / page).read_text()
    found = []
    if page in EXTRAS:
        if EXTRAS[page] not in text:
            raise Failed(f"its example needs {EXTRAS[page]}, which it does not name")
        run([sys.executable, "-m", "pip", "install", "--quiet", EXTRAS[page]], folder, f"pip install {EXTRAS[page]}")
        found.append(EXTRAS[page])
    port = free_port()
    with daemon(readme_daemon(), port, folder):
        block = FENCE.search(text)
        if block and page not in NOT_ONE_PROGRAM:
            code = block[1].replace(PORT, str(port))
            run([sys.executable, "-W", "error::ResourceWarning", "-c", code], folder, block[1])
            found.append("its first block of Python")
        for line in [] if page in NOT_ONE_COMMAND else COMMANDS.findall(text)[:1]:
            command(line, port, folder)
            found.append(typed(line))
    return found


def main(pages: list[str]) -> int:
    every = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
    wrong = 0
    for page in pages or every:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = examples(page, folder)
                print(f"{page}: {'; '.join(found) + ': works' if found else 'nothing to type'}", flush=True)
            except (Failed, OSError, subprocess.TimeoutExpired) as failure:
                wrong += 1
                print(f"{page}: FAILED: {failure}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
