"""The layers of the source tree as docs/layers.tsv lists them, and the imports of the files.

    python tests/shared/layers.py          # draws the picture in docs/architecture.md anew

A module is a C unit or a Python file: a .pyx with its .pxd, its .pyi and its included parts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = "docs/layers.tsv"
PAGE = "docs/architecture.md"
BEGIN, END = "<!-- layers: script/layers draws this from layers.tsv -->\n", "<!-- end of layers -->\n"
EVERYTHING = "everything below"

FOLDERS = ("rmemcached", "client", "bench", "tests")
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".pxi")
# Packages whose source folders have another name.
RENAMED = {"rmemcached/client": "client", "rmemcached/bench": "bench"}
# Folders whose modules are imported by bare names, in the order of sys.path.
BARE = ("bench", "tests/shared")

# A triple-quoted string, an ordinary string, or a comment, whichever begins first.
QUOTED = re.compile(r"(\"\"\"|''')[\s\S]*?\1|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*")
REST = r"(?:\([^)]*\)|(?:\\\n|[^\n;])*)"
IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+(?P<source>[\w.]+)[ \t]+c?import[ \t]*(?P<names>{REST})"
    rf"|c?import[ \t]+(?P<modules>{REST})"
    r"|include[ \t]+[\"'](?P<part>[^\"']+)[\"'])",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Layer:
    """A row of the table. `below`: the layers from which its modules may import."""

    name: str
    patterns: tuple[str, ...]
    below: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Import:
    """`file`, line `line`, imports the module of `target`; both modules are paths without a suffix."""

    module: str
    target: str
    file: str
    line: int


def read_layers(root: Path = ROOT) -> list[Layer]:
    """The table, from the top down. A layer may only name layers below itself: no import points upward."""
    rows = [line.split("\t") for line in (root / TABLE).read_text().splitlines()[1:]]
    names = [name for name, *_ in rows]
    layers = []
    for i, (name, patterns, below, text) in enumerate(rows):
        under = tuple(names[i + 1 :])
        chosen = under if below == EVERYTHING else tuple(below.split()) if below != "nothing" else ()
        for other in chosen:
            if other not in under:
                raise ValueError(f"{TABLE}: {name} may import {other}, which is not a layer below it")
        layers.append(Layer(name, tuple(patterns.split()), chosen, text))
    return layers


def without_text(source: str) -> str:
    """The source without comments and triple-quoted strings; its lines keep their numbers."""

    def blank(match: re.Match[str]) -> str:
        if match[1]:
            return "\n" * match[0].count("\n")
        return "" if match[0].startswith("#") else match[0]

    return QUOTED.sub(blank, source)


def layer_of(module: str, layers: list[Layer]) -> Layer:
    """The layer with the most specific pattern: the most characters before the first wildcard."""
    found: dict[int, list[Layer]] = {}
    for layer in layers:
        for pattern in layer.patterns:
            if fnmatchcase(module, pattern):
                length = len(module) + 1 if "*" not in pattern else pattern.index("*")
                found.setdefault(length, []).append(layer)
    if not found:
        raise ValueError(f"in no layer of {TABLE}")
    best = found[max(found)]
    if len(set(best)) > 1:
        raise ValueError(f"in the layers {' and '.join(layer.name for layer in best)} of {TABLE}")
    return best[0]


class Tree:
    """The source files below a root, by module, and their imports."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.files = sorted(
            str(path.relative_to(root))
            for folder in FOLDERS
            for path in (root / folder).rglob("*")
            if path.suffix in SUFFIXES
        )
        self.stems = {str(Path(file).with_suffix("")) for file in self.files}
        statements = {file: list(self._statements(file)) for file in self.files}
        self.owners: dict[str, set[str]] = {}
        for file, found in statements.items():
            for _, match in found:
                if match["part"]:
                    part = (Path(file).parent / match["part"]).with_suffix("")
                    self.owners.setdefault(str(part), set()).add(str(Path(file).with_suffix("")))
        self.imports = [
            Import(self.module(file), target, file, line)
            for file, found in statements.items()
            for line, match in found
            for target in self._targets(file, match)
        ]

    def module(self, file: str) -> str:
        """The module of a file. The module of a part is the module that includes the part."""
        stem = str(Path(file).with_suffix(""))
        while owners := self.owners.get(stem, set()) - {stem}:
            stem = min(owners)
        return stem

    def _statements(self, file: str) -> Iterator[tuple[int, re.Match[str]]]:
        text = without_text((self.root / file).read_text())
        for match in IMPORT.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match

    def _targets(self, file: str, match: re.Match[str]) -> set[str]:
        if match["part"]:
            return set()
        if match["modules"]:
            names = [name.split()[0] for name in match["modules"].strip("()").split(",") if name.strip()]
            return {target for name in names if (target := self._resolve(file, name))}
        names = [name.split()[0] for name in match["names"].replace("\\\n", " ").strip("()").split(",") if name.strip()]
        joint = "" if match["source"].endswith(".") else "."
        found = {self._resolve(file, f"{match['source']}{joint}{name}") or "" for name in names if name != "*"}
        if "" in found or not found:
            found.add(self._resolve(file, match["source"]) or "")
        return found - {""}

    def _resolve(self, file: str, name: str) -> str | None:
        """The module of a dotted name. None: the name is of no module of this tree."""
        dots = len(name) - len(name.lstrip("."))
        tail = name[dots:].replace(".", "/")
        if dots:
            folder = Path(file).parent
            for _ in range(dots - 1):
                folder = folder.parent
            candidates = [str(folder / tail)]
        else:
            bare = BARE if not file.startswith("tests/") else (str(Path(file).parent), *BARE)
            candidates = [tail] if "/" in tail else [f"{folder}/{tail}" for folder in bare]
            for package, source in RENAMED.items():
                if tail == package or tail.startswith(f"{package}/"):
                    candidates = [source + tail.removeprefix(package)]
        for candidate in candidates:
            for stem in (candidate, f"{candidate}/__init__"):
                if stem in self.stems:
                    return self.module(stem)
        return None


def upward(tree: Tree, layers: list[Layer]) -> list[str]:
    """Returns a line for each import forbidden by the table, and for each file outside of the table."""
    wrong = []
    for file in tree.files:
        try:
            layer_of(tree.module(file), layers)
        except ValueError as error:
            wrong.append(f"{file}: {error}")
    for part, owners in tree.owners.items():
        if len(owners) > 1:
            wrong.append(f"{part}: a part of {' and '.join(sorted(owners))}; a part has one module")
    for entry in tree.imports:
        try:
            own, other = layer_of(entry.module, layers), layer_of(entry.target, layers)
        except ValueError:
            continue
        if own != other and other.name not in own.below:
            wrong.append(f"{entry.file}:{entry.line}: layer {own.name} imports {entry.target} of layer {other.name}")
    return wrong


def cycles(tree: Tree) -> list[list[Import]]:
    """The groups of modules that import each other in a circle, each as the imports within the group."""
    graph: dict[str, set[str]] = {}
    for entry in tree.imports:
        if entry.module != entry.target:
            graph.setdefault(entry.module, set()).add(entry.target)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        rest = [start]
        while rest:
            for target in graph.get(rest.pop(), set()) - seen:
                seen.add(target)
                rest.append(target)
        return seen

    reach = {module: reachable(module) for module in graph}
    groups = {
        frozenset(other for other in reach[module] if module in reach.get(other, ()))
        for module in graph
        if module in reach[module]
    }
    return [
        [entry for entry in tree.imports if {entry.module, entry.target} <= group and entry.module != entry.target]
        for group in sorted(groups, key=sorted)
    ]


def picture(layers: list[Layer]) -> str:
    """The layers from the top down: place, purpose, and permitted imports of each."""
    rows = ["| | | may import |", "|---|---|---|"]
    for i, layer in enumerate(layers):
        under = tuple(other.name for other in layers[i + 1 :])
        may = EVERYTHING if len(under) > 1 and layer.below == under else ", ".join(layer.below) or "nothing"
        rows.append(f"| `{layer.patterns[0].removesuffix('*')}` | {layer.text} | {may} |")
    return "\n".join(rows)


def draw(page: str, layers: list[Layer]) -> str:
    """The page with the picture between its markers made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} lacks the markers {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{picture(layers)}\n\n{END}{after}"


if __name__ == "__main__":
    path = ROOT / PAGE
    path.write_text(draw(path.read_text(), read_layers()))
    sys.exit()
