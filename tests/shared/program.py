"""Programs that a test runs."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_program(words: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs a program in the project's folder. Kills a program that takes longer, with all its children.

    Raises subprocess.TimeoutExpired.
    """
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


def in_tmpfs(folder: Path, size: str) -> list[str]:
    """The first words of a command: its program alone sees a tmpfs of this size at a new folder."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size},mode=777,huge=never tmpfs {folder} && exec "$@"'
    user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", "--mount", *user, "sh", "-c", mount, "sh"]
