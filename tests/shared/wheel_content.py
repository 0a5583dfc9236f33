"""Checks the content of a wheel: python tests/shared/wheel_content.py WHEEL TREE (of the source distribution).

A wheel has all modules but the tests', the library for programs of libibverbs, the files for types and other Cython
code, and metadata, but no sources.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import zipfile
from pathlib import Path

COMMANDS = (
    "rmemcached",
    "rmemcached-bench",
    "rmemcached-devices",
    "rmemcached-doctor",
    "rmemcached-exporter",
    "rmemcached-perftest",
    "rmemcached-top",
    "rmemcached-verbs",
)


def expected(tree: Path) -> set[str]:
    """The names of the extension modules built by setup.py."""
    os.chdir(tree)
    build = runpy.run_path("setup.py", run_name="list")
    build["link_packages"]()
    return {extension.name for extension in build["extensions"]()}


def faults(names: list[str], wanted: set[str]) -> list[str]:
    """The faults in the files of a wheel, which should have these extension modules."""
    ours = [name for name in names if name.startswith("rmemcached/")]
    built = {name.partition(".")[0].replace("/", ".") for name in ours if name.endswith(".so")}
    found = [f"{name} is missing" for name in sorted(wanted - built)]
    found += [f"{name} is not to be built" for name in sorted(built - wanted)]
    strange = re.compile(r"_testing|\.(?!py$|pyi$|pxd$|typed$|so$)[a-z]+$")
    found += [f"{name} is not to be in it" for name in ours if strange.search(Path(name).name)]
    other = re.compile(r"rmemcached-[^/]+\.dist-info/|rmemcached\.libs/libisal|rmemcached-[^/]+\.data/data/share/")
    found += [f"{name} is not to be in it" for name in names if name not in ours and not other.match(name)]
    further = ("rmemcached/py.typed", "rmemcached/client/api/_client.pyi", "rmemcached/verbs/plain/libibverbs.so.1")
    found += [f"{name} is missing" for name in further if name not in ours]
    return found


def main(wheel: str, tree: str) -> int:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (points,) = (name for name in names if name.endswith("/entry_points.txt"))
        commands = re.findall(r"^(\S+) = ", archive.read(points).decode(), re.MULTILINE)
    found = faults(names, expected(Path(tree)))
    shared = {name.partition(".data/data/")[2] for name in names}
    for place in ("share/man/man1/{}.1", "share/bash-completion/completions/{}", "share/zsh/site-functions/_{}"):
        missing = [place.format(name) for name in COMMANDS if place.format(name) not in shared]
        found += [f"{name} is missing" for name in missing]
    found += [f"the command {name} is missing" for name in COMMANDS if name not in commands]
    for fault in found:
        print(f"{Path(wheel).name}: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).resolve()), sys.argv[2]))
