"""rmemcached-verbs: runs a program of libibverbs on the software devices, which need no RDMA hardware.

    rmemcached-verbs ibv_devinfo
    rmemcached-verbs -v ibv_devices

The program runs unchanged, beside the system's RDMA devices: a library with libibverbs' functions is preloaded.
Programs find the software devices, and make their objects; the queue pairs cannot be connected by libibverbs so far.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from rmemcached import __version__

SONAME = "libibverbs.so.1"
OURS = Path(__file__).resolve().parent / "plain" / SONAME
# The library writes a line for each device at the first call, and then the program ends.
LIST = f"import ctypes; ctypes.CDLL('{SONAME}').ibv_get_device_list(None)"
# The octets of an ELF file that name the kind of machine: the class (32 or 64 bits), the octets' order, the machine.
KIND = (slice(4, 6), slice(18, 20))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmemcached-verbs",
        usage="%(prog)s [-h] [-V] [--devices] [--only] [-v] [PROGRAM] [ARGUMENT ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", action="store_true", help="list a program's devices with their libraries")
    parser.add_argument("--only", action="store_true", help="without the system's devices")
    parser.add_argument(
        "-v", dest="verbose", action="store_true", help="write the list to stderr when the program asks for devices"
    )
    parser.add_argument("-V", "--version", action="version", version=f"rmemcached-verbs {__version__}")
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="the program, and behind it the program's arguments",
    )
    return parser


def mapped() -> list[Path]:
    """The libraries of libibverbs' name in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(path for path in paths if path.name.startswith("libibverbs.so"))


def real_library() -> Path:
    """The machine's libibverbs, as the dynamic linker finds it. Raises SystemExit with one line."""
    # Under rmemcached-verbs our library has taken the name, and the real library is in the process, too.
    with contextlib.suppress(OSError):
        ctypes.CDLL(SONAME)
    for path in mapped():
        if path.resolve() != OURS:
            return path
    raise SystemExit(f"rmemcached-verbs: {SONAME} is not installed: apt-get install libibverbs1")


def check(path: str) -> None:
    """Raises SystemExit, with one line, for a program without use of preloaded libraries."""
    with open(OURS, "rb") as ours, open(path, "rb") as program:
        mine, head = ours.read(20), program.read(20)
    # Another file is a script, whose interpreter is not known here.
    if head.startswith(b"\x7fELF") and any(head[part] != mine[part] for part in KIND):
        raise SystemExit(f"rmemcached-verbs: {path} is for another kind of machine than this rmemcached")
    found = os.stat(path)
    if (found.st_mode & stat.S_ISUID and found.st_uid != os.getuid()) or (
        found.st_mode & stat.S_ISGID and found.st_gid != os.getgid()
    ):
        raise SystemExit(
            f"rmemcached-verbs: {path} is set-user-id, so the dynamic linker preloads nothing: run a copy of the file"
        )


def environment(given: argparse.Namespace, real: Path) -> dict[str, str]:
    """The program's environment."""
    preload = [str(OURS), str(real), *filter(None, [os.environ.get("LD_PRELOAD")])]
    if any(character in path for path in preload[:2] for character in " :"):
        raise SystemExit(f"rmemcached-verbs: a path with a space or a colon cannot be preloaded: {OURS}, {real}")
    found = {**os.environ, "LD_PRELOAD": ":".join(preload)}
    if given.only:
        found["RMEMCACHED_VERBS_ONLY"] = "1"
    if given.verbose or given.devices:
        # The descriptor for the list.
        found["RMEMCACHED_VERBS_VERBOSE"] = "1" if given.devices else "2"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Does not return if the program starts: the program has this process's place."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    words = given.program[1:] if given.program[:1] == ["--"] else given.program
    if given.devices:
        words = [sys.executable, "-I", "-S", "-c", LIST]
    elif not words:
        parser.error("a program is needed")
    path = shutil.which(words[0])
    if path is None:
        print(f"rmemcached-verbs: {words[0]}: there is no such program", file=sys.stderr)
        return 127
    if not OURS.exists():
        raise SystemExit(f"rmemcached-verbs: {OURS} is missing: rmemcached is not built")
    check(path)
    try:
        os.execve(path, words, environment(given, real_library()))
    except OSError as error:
        print(f"rmemcached-verbs: {path}: {error.strerror}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main())
