"""Style, types, and the rules of the house, checked as tests."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import english
import pytest
from cython_lint.cython_lint import PYCODESTYLE_CODES
from layers import QUOTED, ROOT, Tree, without_text

from rmemcached.client.transport.transports import ROWS

RUFF = {"check": ["ruff", "check", "."], "format": ["ruff", "format", "--check", "."]}
CYTHON = ["rmemcached", "client", "bench"]
CHECKS = {
    "mypy": ["mypy"],
    # pycodestyle runs by itself, because cython-lint would start the program for each file.
    "cython-lint": ["cython-lint", "--no-pycodestyle", *CYTHON],
    "pycodestyle": [
        *("pycodestyle", f"--ignore={','.join(sorted(PYCODESTYLE_CODES))}", "--max-line-length=120"),
        *("--filename=*.pyx,*.pxd", *CYTHON),
    ],
}

# cython-lint's warning of inline functions offered by a part of a C unit to the other parts, which inline them.
INLINE_IN_UNIT = re.compile(r".* implemented and marked inline in .*\n")

FUNCTION_LINES = 60
FILE_LINES = 800
REASON = "Long: "
# Parameters of a function, without self and keyword-only parameters.
PARAMETERS = 7
PARAMETERS_REASON = "Parameters: "
# Functions with more parameters, each with the reason here. The table only shrinks: no name is added, and a mended
# function leaves the table.
MANY_PARAMETERS = {
    "client/api/_client.pyx": ["__init__"],  # pymemcache's parameters, in its order
    "client/api/_request.pyx": ["store_request"],  # a program's arguments, unchecked: set, add, cas, ... have the same
    "client/api/_session.pyx": ["configure"],  # the options of Client and of AsyncClient, checked together
    "client/api/_storage.pyx": ["store"],  # as store_request, without a request object, which a set need not make
    "client/api/servers.py": ["__init__"],  # pymemcache's parameters, in its order, and their like
    "client/wire/_classic.pyx": ["put_classic_store"],  # the words of the command's line, each a parameter
    "client/wire/_commands.pyx": ["put_store"],  # the same of two protocols; a structure would be filled for each set
}

TREE = Tree()
FILES, OWNERS = TREE.files, TREE.owners
OURS = [file for file in FILES if file.startswith(("rmemcached/", "client/"))]

CYTHON_FUNCTION = re.compile(r"^([ \t]*)(?:async )?(?:cdef|cpdef|def) (?!class |struct |enum|union |packed |extern )")
EXTERN = re.compile(r"cdef extern from [\"'](<[^>]*>)[\"']")
# Headers of libraries, declared by their users.
LIBRARIES = re.compile(r"<(infiniband|rdma|isa-l|openssl)/|<Python\.h>")


def check(program: str, *arguments: str) -> None:
    module = {"cython-lint": "cython_lint.cython_lint"}.get(program, program)
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True)
    output = done.stdout + done.stderr
    wrong = INLINE_IN_UNIT.sub("", output)
    assert done.returncode == 0 or (wrong != output and not wrong), wrong


@pytest.mark.parametrize("name", RUFF)
def test_ruff_is_content(name: str) -> None:
    check(*RUFF[name])


@pytest.mark.parametrize("name", CHECKS)
def test_linter_is_content(name: str) -> None:
    check(*CHECKS[name])


class Function(NamedTuple):
    name: str
    line: int
    length: int
    text: str
    parameters: int


def python_functions(text: str) -> Iterator[Function]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            body = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            names = [argument.arg for argument in node.args.posonlyargs + node.args.args]
            count = sum(name not in ("self", "cls") for name in names)
            yield Function(node.name, node.lineno, node.end_lineno - node.lineno + 1, body, count)


def cython_parameters(head: str) -> int:
    """Counts the parameters in a function's first lines, without self and keyword-only parameters."""
    depth, parameters = 0, [""]
    for letter in head[head.index("(") + 1 :]:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if depth < 0:
            break
        if letter == "," and depth == 0:
            parameters.append("")
        else:
            parameters[-1] += letter
    texts = [text.strip() for text in parameters]
    keywords = next((i for i, text in enumerate(texts) if text.startswith("*")), len(texts))
    return sum(text not in ("", "self", "cls") for text in texts[:keywords])


def cython_functions(text: str) -> Iterator[Function]:
    """Finds functions: each ends before the next line that is not indented further than its first line."""
    lines = text.splitlines()
    code = [re.sub(r"\"[^\"]*\"|'[^']*'", "", line).rstrip() for line in without_text(text).split("\n")]
    for first, line in enumerate(code):
        start = CYTHON_FUNCTION.match(line)
        if start is None:
            continue
        head = line
        last = first
        while head.count("(") > head.count(")"):
            last += 1
            head += code[last]
        name = re.search(r"(\w+)\(", head)
        if name is None or not head.endswith(":"):
            continue
        for number in range(last + 1, len(code)):
            if code[number]:
                if len(code[number]) - len(code[number].lstrip()) <= len(start[1]):
                    break
                last = number
        text = "\n".join(lines[first : last + 1])
        yield Function(name[1], first + 1, last - first + 1, text, cython_parameters(head))


def functions(file: str) -> Iterator[Function]:
    text = (ROOT / file).read_text()
    return python_functions(text) if file.endswith((".py", ".pyi")) else cython_functions(text)


def test_functions_are_of_readable_length() -> None:
    long = [
        f"{file}:{function.line}: {function.name} has {function.length} lines"
        for file in OURS
        for function in functions(file)
        if function.length > FUNCTION_LINES and REASON not in function.text
    ]
    advice = f"{FUNCTION_LINES} at most, or a line of the docstring that begins with {REASON!r} and gives the reason"
    assert not long, "\n".join([advice, *long])


def test_length_of_functions_is_found() -> None:
    cython = '''
cdef int one(int a,
             int b) noexcept nogil:
    """Text:

def nothing():
    """
    cdef int (*f)(int)

    return 0

cdef class Two(One):
    cdef int g(self)
    def two(self): # (
        pass


    # The last line.
    cdef inline void three(self) except *:
        pass
'''
    found = [(function.name, function.line, function.length) for function in cython_functions(cython)]
    assert found == [("one", 2, 9), ("two", 14, 2), ("three", 19, 2)]
    python = "class A:\n    def f(self):\n        def g():\n            pass\n\n        return g\n"
    assert [(f.name, f.line, f.length) for f in python_functions(python)] == [("f", 2, 5), ("g", 3, 2)]


def comment_above(text: str, line: int) -> str:
    """The comment that ends before this line."""
    above = [line.strip() for line in text.split("\n")[: line - 1]]
    return "\n".join(itertools.takewhile(lambda text: text.startswith("#"), reversed(above)))


def has_parameters_reason(file: str, function: Function) -> bool:
    """Looks into the docstring, and into the comments above the function and above its declaration in the header."""
    places = [function.text, comment_above((ROOT / file).read_text(), function.line)]
    header = (ROOT / file).with_suffix(".pxd")
    if header.exists():
        text = header.read_text()
        found = re.finditer(rf"^cdef .*\b{function.name}\(", text, re.MULTILINE)
        places += [comment_above(text, text.count("\n", 0, declared.start()) + 1) for declared in found]
    return any(re.search(rf"^\W*{PARAMETERS_REASON}", place, re.MULTILINE) for place in places)


def test_functions_have_few_parameters() -> None:
    many: dict[str, list[str]] = {}
    for file in FILES:
        if file.startswith(("rmemcached/", "client/", "bench/")) and not file.endswith(".pyi"):
            for function in functions(file):
                if function.parameters > PARAMETERS and not has_parameters_reason(file, function):
                    many.setdefault(file, []).append(function.name)
    advice = (
        f"{PARAMETERS} at most besides self and keyword-only parameters: a structure has the rest; or a line of the "
        f"docstring or the comment above begins with {PARAMETERS_REASON!r} and gives the reason. The table only shrinks"
    )
    assert many == MANY_PARAMETERS, advice
    assert sum(map(len, MANY_PARAMETERS.values())) <= 7


def test_parameters_are_counted() -> None:
    cython = """
cdef int one(const char *p, void *(*start)(void *, int) noexcept nogil,
             int (*f)(), size_t n) noexcept nogil:
    pass
def two(self, int a=max(1, 2), (int, int) b=(3, 4), *, c=None, d=None):
    pass
cdef void three() noexcept:
    pass
def four(a, *more, b=None, **rest):
    pass
"""
    assert [(function.name, function.parameters) for function in cython_functions(cython)] == [
        ("one", 4),
        ("two", 2),
        ("three", 0),
        ("four", 1),
    ]
    python = "class A:\n    def f(self, a, /, b, *c, d, **e):\n        def g():\n            pass\n"
    assert [(function.name, function.parameters) for function in python_functions(python)] == [("f", 2), ("g", 0)]
    text = "# One.\n\n# Parameters: two.\n# Three.\ncdef f()\n"
    assert comment_above(text, 5) == "# Three.\n# Parameters: two."


def test_files_are_of_readable_size() -> None:
    """A file has at most FILE_LINES lines, for one subject."""
    long = {file: count for file in FILES if (count := len((ROOT / file).read_text().splitlines())) > FILE_LINES}
    assert not long


def test_every_part_has_a_header() -> None:
    """Each included file is a .pyx with a .pxd that explains the part."""
    parts = {part for part in OWNERS if not (ROOT / f"{part}.pxd").exists()}
    assert not [file for file in FILES if file.endswith(".pxi")]
    assert not parts


def test_system_headers_are_declared_once() -> None:
    """System headers are declared in rmemcached/sys, and each name in one file."""
    elsewhere = [
        f"{file}:{text.count(chr(10), 0, match.start()) + 1}: {match[1]}"
        for file in OURS
        if not file.startswith("rmemcached/sys/")
        for text in [(ROOT / file).read_text()]
        for match in EXTERN.finditer(text)
        if not LIBRARIES.match(match[1])
    ]
    assert not elsewhere, "\n".join(elsewhere)


# The names of functions entered with a lock held tell so, and the functions first check the lock.
CALLED_WITH_A_LOCK = re.compile(r"(^|_)do_|_locked$")
LOOKS = re.compile(r"assert_held|assert_item_lock|assert_(read|write)_held|assert_owner|assert_(cq|domain)")
# Functions with such a name that want no lock, each with the reason.
WITHOUT_A_LOCK = {
    "do_item_remove": "memcached's name; the reference count is atomic",
    "do_item_unref": "the same",
    "item_get_locked": "takes the lock, and leaves it to the caller",
    "header_find_locked": "the same",
}


def test_functions_that_want_a_lock_look_for_it() -> None:
    wrong = [
        f"{file}:{function.line}: {function.name}"
        for file in OURS
        if file.endswith((".pyx", ".pxd")) and "/_testing" not in file
        for function in functions(file)
        if CALLED_WITH_A_LOCK.search(function.name)
        and function.name not in WITHOUT_A_LOCK
        and not LOOKS.search(function.text)
    ]
    assert not wrong, "\n".join(wrong)


# Cython evaluates a condition with "and" or "or" into a variable, before the macro can remove the condition.
ASSERTION = re.compile(r"\bassert_that(\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\))")
CALLS = re.compile(r"(?!(?:and|or|not|sizeof)\b)\b\w+\(")


def costly_conditions(text: str) -> list[str]:
    return [
        found[1]
        for found in ASSERTION.finditer(text)
        if re.search(r"\b(and|or|if)\b", found[1]) and CALLS.search(found[1])
    ]


def test_conditions_of_assertions_cost_nothing_in_a_release_build() -> None:
    """A condition that calls a function has no "and" and no "or": every build would evaluate the condition."""
    free = "assert_that(f(a))\nassert_that(a and\n    (b - sizeof(c)))\n"
    assert costly_conditions(f"{free}assert_that(a or f(b))\n{free}assert_that(a\n and f(b(c)))\n") == [
        "(a or f(b))",
        "(a\n and f(b(c)))",
    ]
    costly = {file: conditions for file in OURS if (conditions := costly_conditions((ROOT / file).read_text()))}
    assert not costly


# Functions whose results glibc wants used in a build with checks (-D_FORTIFY_SOURCE, set by Ubuntu's compiler).
WANTED_RESULT = re.compile(
    r"^[ \t]*((?:read|write|pread|pwrite|readv|writev|fread|fwrite|fgets|ftruncate|truncate|dup|pipe2?|chdir|fchdir|"
    r"getcwd|chown|fchown|lockf|nice|realpath|system|asprintf|posix_memalign|realloc|set[ug]id)\(.*)$",
    re.MULTILINE,
)


def unused_results(text: str) -> list[str]:
    found: list[str] = WANTED_RESULT.findall(without_text(text))
    return found


def test_results_that_the_system_wants_used_are_used() -> None:
    """No call ignores a result that glibc wants used: some compilers would warn, and the tests' build would fail."""
    used = "    n = read(fd, &a, 8)\n    while write(fd, &a, 8) < 0:\n    ssize_t read(int fd)\n"
    assert unused_results(f"{used}    read(fd, &a, 8)\n{used}") == ["read(fd, &a, 8)"]
    unused = {file: calls for file in OURS if (calls := unused_results((ROOT / file).read_text()))}
    assert not unused


def test_programs_can_be_run() -> None:
    """A file with an interpreter's name in its first line is executable."""
    files = [path for name in ("script", "bench", "tests") for path in (ROOT / name).rglob("*") if path.is_file()]
    programs = [path for path in files if path.read_bytes()[:2] == b"#!"]
    assert len(programs) > 10
    assert not [path for path in programs if not os.access(path, os.X_OK)]


def test_version_stands_once() -> None:
    """The package's and memcached's versions are in rmemcached/__init__.py."""
    text = (ROOT / "rmemcached/__init__.py").read_text()
    versions = re.findall(r'^\w*(?:VERSION|version\w*) = "([^"]+)"', text, re.MULTILINE)
    assert len(versions) == 2
    again = [
        file
        for file in OURS
        if file != "rmemcached/__init__.py" and "_testing" not in file
        for version in versions
        if re.search(rf"[\"']{re.escape(version)}", (ROOT / file).read_text())
    ]
    assert not again


# Only these files name transports: the tables of the client and of rmemcached-perftest, and the transports' own files.
NAMES_TRANSPORTS = (
    *(f"client/transport/{name}" for name in ("transports.py", "_attach.pyx", "_cm.pyx")),
    "rmemcached/perftest/ends.pyx",
)


def named_transports(text: str) -> list[str]:
    """The names of transports and their devices in code: words of a string, a constant, or a transport's own call."""
    names = "|".join(ROWS)
    software = "|".join(name for name, row in ROWS.items() if row.soft)
    strings = [match[0][1:-1] for match in QUOTED.finditer(text)]
    found = [string for string in strings if re.fullmatch(rf"(\s*({names})0?)+\s*", string)]
    pattern = rf"\b(?:(?:TRANSPORT_|DEVICE_OF_)?(?:{names.upper()})|(?:{software})_\w+)\b"
    return found + re.findall(pattern, QUOTED.sub("", text))


def test_the_client_asks_the_rows_of_its_transports() -> None:
    """No shared code of the client, rmemcached-perftest and the operators' commands knows a transport by its name."""
    right = "soft_qp_wakeups(qp)  # 'tcp'\nprint(\"over 'tcp' and TCP\", row.near)\n"
    wrong = "in (TRANSPORT_VERBS, SOFT_SHM) or x == 'tcp' or b\"soft_iw0\" or ' verbs rdma_cm' or soft_shm_rings(qp)"
    found = ["tcp", "soft_iw0", " verbs rdma_cm", "TRANSPORT_VERBS", "SOFT_SHM", "soft_shm_rings"]
    assert named_transports(right + wrong) == found
    named = {
        file: names
        for file in FILES
        if file.startswith(("client/", "rmemcached/perftest/", "rmemcached/tools/")) and file not in NAMES_TRANSPORTS
        if (names := named_transports((ROOT / file).read_text()))
    }
    assert not named, "rows tell the difference: client/transport/transports.py, rmemcached/perftest/ends.pyx"


def test_english_is_plain() -> None:
    """Few words of a file's comments, docstrings or text stand in for a noun (tests/shared/english.py)."""
    wrong = [line for file in english.files() if (line := english.too_many(file))]
    advice = (
        "name the thing in place of " + ", ".join(sorted(english.STAND_INS)) + "; python tests/shared/english.py FILE"
    )
    assert not wrong, "\n".join([f"{advice} lists the lines", *wrong])


def test_stand_ins_are_counted() -> None:
    cython = '''
cdef int first(int a):  # the one that is first
    """What it is: `that`."""
    call("# that", \"\"\"that
    # what\"\"\")
'''
    page = "Those `which`.\n\n```\nthat\n```\n\n    what\n- One\n"
    python = 'x = "that"  # it\n"""Those."""\nclass C:\n    if x:\n        y = 1\n        """One."""\n'
    counted = [
        english.stand_ins(english.CODE.sub("", " ".join(text for _, text in pieces)))
        for pieces in (english.of_cython(cython), english.of_page(page), english.of_python(python))
    ]
    assert counted == [(4, 8), (2, 2), (3, 3)]
