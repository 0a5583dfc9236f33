"""Tables of requests and replies: a line for each, with tabs between the columns, and comments behind a #.

In requests a | is the end of a line, {x*3} is xxx, {x#*3} is x0x1x2, and octets have Python's escapes. In the patterns
of replies a | is the end of a line, too, and \\| separates alternatives.
"""

from __future__ import annotations

import re
from pathlib import Path


def rows(name: str) -> list[list[str]]:
    lines = Path(__file__).with_name(name).read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def octets(text: str) -> bytes:
    text = re.sub(r"\{(.+?)\*(\d+)\}", lambda m: "".join(m[1].replace("#", str(i)) for i in range(int(m[2]))), text)
    return text.replace("|", r"\r\n").encode("latin-1").decode("unicode_escape").encode("latin-1")


def pattern(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\r\\n", text).replace(r"\|", "|")
