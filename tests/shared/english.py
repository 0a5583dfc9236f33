"""How plain the English of comments, docstrings and pages is: how many of its words stand in for a noun.

    python tests/shared/english.py [FILE ...]      # the files with too many, or the lines of FILE with such words

Such words make a reader look back for their meaning. uvloop's comments have 2.0 % of them, asyncpg's 1.8 %.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

STAND_INS = {"that", "those", "what", "which", "one", "ones", "it", "other"}
SHARE = 0.03
# A short file may have so many anyway: of three sentences a share would say nothing.
FREE = 2

WORD = re.compile(r"[A-Za-z][A-Za-z'_]*")
CODE = re.compile(r"``[^`]*``|`[^`]*`")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
# A docstring, any other string, or a comment: the first of them to begin. A docstring is alone on its line.
CYTHON = re.compile(
    r"^[ \t]*[rb]?\"\"\"(?P<doc>[\s\S]*?)\"\"\"|\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#(?P<comment>[^\n]*)",
    re.MULTILINE,
)

Piece = tuple[int, str]


def of_python(text: str) -> Iterator[Piece]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string[1:]
    # A string alone on its line documents the module, class or function around it, or the attribute before it.
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str(doc))):
                yield node.lineno, doc


def of_cython(text: str) -> Iterator[Piece]:
    for match in CYTHON.finditer(text):
        found = match["doc"] if match["doc"] is not None else match["comment"]
        if found is not None:
            yield text.count("\n", 0, match.start()) + 1, found


def of_shell(text: str) -> Iterator[Piece]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") and not line.startswith("#!"):
            yield number, line.lstrip()[1:]


def of_page(text: str) -> Iterator[Piece]:
    """Of a page all but its code: blocks that are fenced or indented by four spaces, and spans."""
    blank = FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for number, line in enumerate(blank.splitlines(), 1):
        if not line.startswith("    ") or line.lstrip().startswith(("-", "*", "|")):
            yield number, line


READERS = {
    ".md": of_page,
    ".py": of_python,
    ".pyi": of_python,
    ".pyx": of_cython,
    ".pxd": of_cython,
    ".sh": of_shell,
    "": of_shell,
}


def lines(file: Path) -> Iterator[Piece]:
    """The lines of the file's comments, docstrings or text, with their numbers."""
    for number, piece in READERS[file.suffix](file.read_text()):
        # A span may end on the next line.
        whole = CODE.sub(lambda match: "x" + "\n" * match[0].count("\n"), piece)
        for offset, line in enumerate(whole.splitlines()):
            yield number + offset, line


def stand_ins(text: str) -> tuple[int, int]:
    """How many of the words of a text stand in for a noun, and how many words there are."""
    words = [word.lower() for word in WORD.findall(text)]
    return sum(word in STAND_INS for word in words), len(words)


def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [
        file
        for file in listed
        if Path(file).suffix in READERS and (Path(file).suffix or file.startswith(("script/", ".ci/")))
    ]


def too_many(file: str) -> str | None:
    """Returns a line with the file's share of stand-in words, if the share is too large."""
    found, words = stand_ins("\n".join(line for _, line in lines(ROOT / file)))
    if found <= max(FREE, SHARE * words):
        return None
    return f"{file}: {found} of {words} words, {found / words:.1%}; {int(max(FREE, SHARE * words))} at most"


def main(named: list[str]) -> int:
    unread = [file for file in named if Path(file).suffix not in READERS]
    if unread:
        print(f"no reader for {' '.join(unread)}: only {' '.join(filter(None, READERS))} and scripts", file=sys.stderr)
        return 2
    wrong = [line for file in named or files() if (line := too_many(file))]
    for file in named:
        for number, line in lines(Path(file).resolve()):
            if stand_ins(line)[0]:
                print(f"{file}:{number}:{line}")
    print(*wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
