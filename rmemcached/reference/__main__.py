"""python -m rmemcached.reference FOLDER: writes manual pages and completion of all commands into FOLDER/share.

The build of a wheel does so. SOURCE_DATE_EPOCH says the date of the manual pages, for builds that can be repeated.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rmemcached.reference import completion, man
from rmemcached.reference.commands import PARSERS, describe, parsers

MANUALS = Path("share/man/man1")
BASH = Path("share/bash-completion/completions")
ZSH = Path("share/zsh/site-functions")


def files() -> dict[Path, str]:
    """Returns the files to install: {path: content}. Raises ImportError where the package is not built."""
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())))
    found = {}
    for name, parser in parsers().items():
        found[MANUALS / f"{name}.1"] = man.page(describe(parser), list(PARSERS), date)
    for name, parser in parsers().items():
        found[BASH / name] = completion.script("bash", parser)
    for name, parser in parsers().items():
        found[ZSH / f"_{name}"] = completion.script("zsh", parser)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rmemcached.reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    for path, text in files().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
