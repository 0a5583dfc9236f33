"""Old folders of rounds are removed soon, but no folder in use, and none of another owner."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmemcached.bench.scratch import PREFIX, remove_left, scratch

ROUND = """
import os, sys
from rmemcached.bench.scratch import scratch
with scratch() as folder:
    open(f"{folder}/socket", "w").close()
    if sys.argv[1:]:
        # A process of the round, which the end of the other one does not end.
        if os.fork():
            os._exit(0)
    print(folder, flush=True)
    sys.stdin.read()
"""
TURNS = """
import os, sys
from rmemcached.bench.scratch import scratch
for number in range(200):
    with scratch() as folder:
        path = f"{folder}/{os.getpid()}-{number}"
        open(path, "w").close()
        assert os.listdir(folder) == [os.path.basename(path)]
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which the folders of rounds are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield tmp_path


def begin(*arguments: str) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", ROUND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_round_has_left_is_removed(folders: Path) -> None:
    killed, left = begin()
    living, used = begin()
    killed.kill()
    killed.communicate()
    assert sorted(folders.iterdir()) == sorted([left, used])
    with scratch() as folder:
        assert sorted(map(str, folders.iterdir())) == sorted([folder, str(used)])
        assert (used / "socket").exists()
    living.communicate("")
    assert living.returncode == 0 and not list(folders.iterdir())


def test_another_place_than_tmpdir(folders: Path) -> None:
    """The folder of a killed round there is removed, and no folder in TMPDIR."""
    other = folders / "other"
    for parent in (folders, other):
        (parent / f"{PREFIX}left").mkdir(parents=True)
    with scratch(str(other)) as folder:
        assert list(map(str, other.iterdir())) == [folder]
    assert not list(other.iterdir()) and (folders / f"{PREFIX}left").exists()


def test_a_folder_is_used_as_long_as_a_process_of_its_round_lives(folders: Path) -> None:
    killed, used = begin("forks")
    killed.wait()
    remove_left()
    assert (used / "socket").exists()
    # The child process reads the end of the pipe now.
    killed.communicate("")
    assert not used.exists()


def test_what_is_not_a_rounds_stays(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, files, foreign names, and folders of other users stay: everybody can make them in /tmp."""
    precious = folders / "precious"
    precious.mkdir()
    (precious / "file").write_text("text")
    (folders / f"{PREFIX}link").symlink_to(precious)
    (folders / f"{PREFIX}file").write_text("text")
    left = folders / f"{PREFIX}left"
    left.mkdir()
    (left / "link").symlink_to(precious)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        remove_left()
        assert left.exists()
    remove_left()
    assert not left.exists()
    assert (precious / "file").read_text() == (folders / f"{PREFIX}file").read_text() == "text"
    assert (folders / f"{PREFIX}link").is_symlink()


def test_a_file_system_without_locks(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without locks scratch() raises an error, does not make folder after folder, and leaves old
    folders."""
    (folders / f"{PREFIX}left").mkdir()
    tries: list[int] = []

    def flock(descriptor: int, operation: int) -> None:
        tries.append(descriptor)
        assert len(tries) < 5
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No locks available"), scratch():
        pass
    assert len(tries) == 2 and os.listdir(folders) == [f"{PREFIX}left"]
    assert os.listdir("/proc/self/fd") == before


def test_many_at_once(folders: Path) -> None:
    """No process takes another's new folder."""
    processes = [subprocess.Popen([sys.executable, "-P", "-c", TURNS]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert not list(folders.iterdir())
