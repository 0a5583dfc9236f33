"""Folders for what a round needs while it runs: sockets, traces, logs of servers."""

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
    """A descriptor that holds the lock of a folder of this user's. None: another has it, or it has gone, or is somebody
    else's. Raises OSError when it is no folder, or there can be no lock.
    """
    with contextlib.suppress(BlockingIOError, FileNotFoundError), contextlib.ExitStack() as stack:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have been removed before this process had the lock, and be another's now.
            if os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
                stack.pop_all()
                return descriptor
    return None


def remove_left() -> None:
    """Removes the folders of rounds of this user's that were killed: nobody has their lock."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = lock(str(path))
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A folder of this process's, which is removed at the end; first it removes those that killed rounds have left.

    It is locked meanwhile, also by processes that have been forked. What makes, or removes, folders beside this one
    has no other lock, so that a new one may be taken for one that was left: then there is another. Raises OSError.
    """
    remove_left()
    descriptor = None
    while descriptor is None:
        folder = tempfile.mkdtemp(prefix=PREFIX)
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
