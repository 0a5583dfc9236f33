"""Parts of one C unit keep to their headers.

A C unit made of parts: `module.pyx` includes the `part.pyx` files, `module.pxd` the headers `part.pxd`. A function
declared in a header, or in the module's own .pxd, is for the other parts; all other functions of a part are private.
Cython does not see the difference. These checks do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

INCLUDE = re.compile(r'^include "([^"]+)"', re.MULTILINE)
# A string or a comment. C character literals (c'"') have to be found first.
NOT_CODE = re.compile(
    r"""c'(?:\\.|[^'])'|\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\n])*"|'(?:\\.|[^'\n])*'|\#[^\n]*""", re.DOTALL
)
# The name of the function defined or declared in a line.
FUNCTION = re.compile(r"^cdef (?:inline )?[^(\n=]*?(\w+)\(")
NAME = re.compile(r"(?<![\w.])\w+")


def code(text: str) -> str:
    """The text without strings and comments, its lines where they were."""
    return NOT_CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


def functions(text: str) -> dict[str, int]:
    """The cdef functions defined or declared in the text, with their lines."""
    return {m[1]: n for n, line in enumerate(text.splitlines(), 1) if (m := FUNCTION.match(line))}


@dataclass
class Part:
    """A source file of a C unit, and its header."""

    source: Path
    header: Path
    defined: dict[str, int] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        text = code(self.source.read_text())
        self.defined = functions(text)
        # A definition or declaration does not count as a use of the function.
        self.used = set(NAME.findall("\n".join(FUNCTION.sub("", line) for line in text.splitlines())))
        if self.header.exists():
            text = code(self.header.read_text())
            # The header defines inline functions, and declares the others.
            self.declared = functions(re.sub(r"^cdef inline ", "", text, flags=re.MULTILINE))


def parts_of(module: Path) -> list[Part]:
    """The parts included by a module, in their order, and the module itself. Empty: the module includes no parts."""
    included = [module.parent / name for name in INCLUDE.findall(module.read_text()) if name.endswith(".pyx")]
    return [Part(path, path.with_suffix(".pxd")) for path in [*included, module]] if included else []


def violations(folder: Path, layered: bool = False) -> list[str]:
    """The faults in a folder's modules made of parts, a line each.

    The module's .pxd includes the header of each part. A part uses functions of another part only if a header declares
    them. A header declares only functions of its part, and only if they have users elsewhere. layered: a part uses no
    function of a later part.
    """
    found = []
    for module in sorted(folder.glob("*.pyx")):
        units = parts_of(module)
        if not units:
            continue
        *parts, whole = units
        included = INCLUDE.findall(whole.header.read_text()) if whole.header.exists() else []
        everywhere = [*parts, *(Part(path, path.with_suffix(".pxd")) for path in folder.glob("*.pyx"))]
        home = {name: number for number, part in enumerate(units) for name in part.defined}
        for name, line in whole.declared.items():
            if name not in home:
                found.append(f"{whole.header}:{line}: {name} is not defined")
        for number, part in enumerate(parts):
            if str(part.header.relative_to(folder)) not in included:
                found.append(f"{part.source}: {whole.header.name} does not include its header")
            for name, line in part.declared.items():
                if name not in part.defined:
                    found.append(f"{part.header}:{line}: {name} is not defined in {part.source.name}")
                elif not any(name in other.used for other in everywhere if other.source != part.source):
                    found.append(f"{part.header}:{line}: nobody else uses {name}")
            for name in sorted(part.used & home.keys()):
                other = units[home[name]]
                if name not in other.declared and name not in whole.declared and other is not part:
                    found.append(f"{part.source}: {name} of {other.source.name} is in no header")
                elif layered and home[name] > number:
                    found.append(f"{part.source}: {name} of {other.source.name}, a part that is included later")
    return found
