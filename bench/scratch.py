"""Folders for a round's files: sockets, traces, logs of servers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rmcbench-"


def lock(folder: str) -> int | None:
    """A descriptor with the lock of a folder of this user. None: the folder is locked, has gone, or belongs to somebody
    else. Raises OSError when it is no folder, or there can be no lock.
    """
    with contextlib.suppress(BlockingIOError, FileNotFoundError), contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have replaced the folder before this process had the lock.
            if os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
                stack.pop_all()
                return descriptor
    return None


def remove_left(parent: str | None = None) -> None:
    """Removes the folders of this user's killed rounds: nobody holds their lock. parent: where, if not in TMPDIR."""
    for path in Path(parent or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = lock(str(path))
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


@contextlib.contextmanager
def scratch(parent: str | None = None) -> Iterator[str]:
    """A folder of this process in `parent` (by default TMPDIR), removed at the end; first the function removes the
    folders of killed rounds there.

    The folder is locked meanwhile, also by forked processes. Making and removing folders has no further lock, so
    another process may take a new folder for an abandoned folder: then the function makes another. Raises OSError.
    """
    remove_left(parent)
    descriptor = None
    while descriptor is None:
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        try:
            descriptor = lock(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
