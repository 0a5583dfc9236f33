"""Imports point downward only: docs/layers.tsv has the layers, and every import in the tree is checked."""

from __future__ import annotations

import re
from pathlib import Path

import layers as source
import pytest
from layers import Tree, cycles, draw, layer_of, read_layers, upward, without_text
from parts import violations

ROOT = source.ROOT
LAYERS = read_layers()

# Folders of modules whose parts call only earlier parts.
LAYERED = {"rmemcached", "rmemcached/store"}

# Modules that import each other in a circle, with the reason.
CIRCLES: dict[frozenset[str], str] = {}

# The daemon's code for all transports: a transport is a row of a table, and this code knows no transport by name.
SHARED = ("rmemcached/rdma/", "rmemcached/rdma_conn", "rmemcached/server/")
# The table with the functions of each transport, the wire format, and a part for tests.
NAMING = ("rmemcached/rdma/transport.p", "rmemcached/rdma/wire.", "rmemcached/server/_testing.")
# Numbers, requests and calls of a transport; the name of a transport or of its device; names of properties.
NAMES = re.compile(
    r"\b(TRANSPORT_(SOFT_\w+|VERBS)|(SHM|MPA)_\w*KEY|soft_(iw|shm|tcp)_\w+)\b"
    r"|[\"'](soft_\w+|verbs)[\"']|\.(software|same_host)\b"
)


def described(tree: Tree) -> list[str]:
    """Returns a line for each import of each circle without a reason."""
    return [
        f"{entry.file}:{entry.line}: imports {entry.target}, which imports {entry.module}, directly or not"
        for group in cycles(tree)
        if frozenset(entry.module for entry in group) not in CIRCLES
        for entry in group
    ]


def test_imports_point_downward() -> None:
    wrong = upward(Tree(), LAYERS)
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_through_others() -> None:
    wrong = described(Tree())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", sorted({str(Path(owner).parent) for owner in set().union(*Tree().owners.values())}))
def test_parts_keep_to_their_headers(folder: str) -> None:
    wrong = violations(ROOT / folder, layered=folder in LAYERED)
    assert not wrong, "\n".join(wrong)


def test_shared_code_knows_no_transport() -> None:
    named = [
        f"{file}:{number}: {match[0]}"
        for file in Tree().files
        if file.startswith(SHARED) and not file.startswith(NAMING)
        for number, line in enumerate(without_text((ROOT / file).read_text()).splitlines(), 1)
        for match in NAMES.finditer(line)
    ]
    assert not named, "\n".join(named)


@pytest.mark.parametrize(
    "line",
    [
        "    if transport == TRANSPORT_SOFT_IW:",
        "    key = SHM_REQUEST_KEY if near else MPA_REQUEST_KEY",
        "        soft_shm_query(dev.port.context, &usage)",
        '    spec.device = b"soft_shm0"',
        "    if name == 'verbs':",
        "    if t.dev.software:",
    ],
)
def test_name_of_a_transport_is_found(line: str) -> None:
    assert NAMES.search(line)


def test_architecture_shows_these_layers() -> None:
    page = (ROOT / source.PAGE).read_text()
    assert page == draw(page, LAYERS), "script/layers draws the picture anew"


# A possible line of a file of this tree, the file, and the line of the report; None: no report.
LINES = {
    "python": ("from rmemcached.cli import main", "rmemcached/store/wrong.py", "cli"),
    "python, of a package": ("from rmemcached import cli", "rmemcached/store/wrong.py", "cli"),
    "python, in a function": ("def f():\n    import rmemcached.server.server", "rmemcached/settings.py", "server"),
    "python, relative": ("from ..cli import main", "rmemcached/verbs/wrong.py", "cli"),
    "python, relative package": ("from .. import cli", "rmemcached/verbs/wrong.py", "cli"),
    "python, several lines": ("from rmemcached.cli import (\n    main,\n)", "rmemcached/sys/wrong.py", "cli"),
    "python, bare": ("import servers", "rmemcached/cli.py", "bench"),
    "cython": ("cimport rmemcached.store.store as store", "rmemcached/verbs/wrong.pyx", "store"),
    "cython, from": ("from rmemcached.store.store cimport item", "rmemcached/logger.pxd", "store"),
    "cython, from a package": ("from rmemcached.store cimport store", "rmemcached/logger.pyx", "store"),
    "cython, all names": ("from rmemcached.rdma_conn cimport *", "rmemcached/protocol/wrong.pyx", "rdma_conn"),
    "client": ("from rmemcached.client import Client", "rmemcached/cli.py", "client"),
    "client's module": ("from rmemcached.client.transport._x cimport X", "rmemcached/logger.pxd", "client_transport"),
    "client's floor": ("from ..api import _client", "client/wire/wrong.py", "client"),
    "client's public module": ("from ..exceptions import MemcacheError", "client/wire/wrong.py", None),
    "beside": ("from rmemcached.verbs.verbs cimport ibv_qp", "rmemcached/store/wrong.pxd", "verbs"),
    "a part": ("from rmemcached.cli import main", "rmemcached/store/part/part.pyx", "cli"),
    "downward": ("from rmemcached.store.store cimport item", "rmemcached/protocol/wrong.pyx", None),
    "a comment": ("# from rmemcached.cli import main", "rmemcached/store/wrong.py", None),
    "a docstring": ('"""For programs:\n\nfrom rmemcached.cli import main\n"""', "rmemcached/store/wrong.py", None),
    "no layer": ("", "rmemcached/new/wrong.py", "no layer"),
}


FILES = (
    *("rmemcached/__init__.py", "rmemcached/cli.py", "rmemcached/settings.py", "rmemcached/server/server.pyx"),
    *("rmemcached/rdma_conn.pxd", "rmemcached/rdma_conn.pyx", "rmemcached/logger.pxd", "rmemcached/logger.pyx"),
    *("rmemcached/store/__init__.py", "rmemcached/store/store.pxd", "rmemcached/store/store.pyx"),
    *("rmemcached/verbs/verbs.pxd", "client/__init__.py", "client/exceptions.py", "client/api/_client.pyx"),
    *("client/transport/_x.pxd", "bench/servers.py"),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree without a wrong import; rmemcached/store/store has the part rmemcached/store/part/part."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""A module."""\n')
    (tmp_path / "rmemcached/store/store.pyx").write_text('include "part/part.pyx"\n')
    assert upward(Tree(tmp_path), LAYERS) == described(Tree(tmp_path)) == []
    return tmp_path


@pytest.mark.parametrize("case", LINES)
def test_wrong_import_is_found(case: str, tree: Path) -> None:
    line, name, layer = LINES[case]
    file = tree / name
    file.parent.mkdir(exist_ok=True)
    text = file.read_text() if file.exists() else ""
    file.write_text(f"{text}{line}\n")
    found = upward(Tree(tree), LAYERS)
    if layer is None:
        assert found == []
    elif layer == "no layer":
        assert found == [f"{name}: in no layer of docs/layers.tsv"]
    else:
        number = text.count("\n") + 1 + ("def" in line)
        assert len(found) == 1
        assert found[0].startswith(f"{name}:{number}: layer ") and found[0].endswith(f" of layer {layer}")


def test_circle_is_found(tree: Path) -> None:
    for name, other in (("one", "two"), ("two", "three"), ("three", "one")):
        (tree / f"rmemcached/store/{name}.pxd").write_text(f"\nfrom rmemcached.store.{other} cimport x\n")
    assert [report.partition(", which")[0] for report in described(Tree(tree))] == [
        "rmemcached/store/one.pxd:2: imports rmemcached/store/two",
        "rmemcached/store/three.pxd:2: imports rmemcached/store/one",
        "rmemcached/store/two.pxd:2: imports rmemcached/store/three",
    ]


def test_table_points_downward(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / source.TABLE).write_text("layer\tmodules\tmay import\twhat\na\ta/*\tb\t\nb\tb/*\ta\t\n")
    with pytest.raises(ValueError, match="b may import a, which is not a layer below it"):
        read_layers(tmp_path)


def test_module_is_in_one_layer() -> None:
    assert layer_of("rmemcached/rdma/wire", LAYERS).name == "wire"
    assert layer_of("rmemcached/rdma/lane", LAYERS).name == "rdma"
    twice = [*LAYERS, source.Layer("again", ("client/*",), (), "")]
    with pytest.raises(ValueError, match="in the layers client and again"):
        layer_of("client/connection", twice)


# The faults of a unit's second part. The first part has `offered` in its header, but not `kept`.
UNITS = {
    "right": ("    return offered()", []),
    "wrong": ("    return kept()", ["unit/two.pyx: kept of one.pyx is in no header"]),
    "text": ('    """kept()"""\n    return offered()  # kept()', []),
    "upward": ("    return last()", ["unit/two.pyx: last of three.pyx, a part that is included later"]),
}


@pytest.mark.parametrize("case", UNITS)
def test_part_that_goes_past_a_header_is_found(case: str, tmp_path: Path) -> None:
    body, expected = UNITS[case]
    (tmp_path / "unit").mkdir()
    for suffix in ("pxd", "pyx"):
        includes = [f'include "unit/{part}.{suffix}"\n' for part in ("one", "two", "three")]
        (tmp_path / f"unit.{suffix}").write_text("".join(includes))
    (tmp_path / "unit/one.pxd").write_text("cdef int offered() noexcept nogil\n")
    (tmp_path / "unit/one.pyx").write_text(
        "cdef int kept() noexcept nogil:\n    return 1\n\n\ncdef int offered() noexcept nogil:\n    return kept()\n"
    )
    (tmp_path / "unit/two.pxd").write_text("cdef int second() noexcept nogil\n")
    (tmp_path / "unit/two.pyx").write_text(f"cdef int second() noexcept nogil:\n{body}\n")
    (tmp_path / "unit/three.pxd").write_text("cdef int last() noexcept nogil\n")
    (tmp_path / "unit/three.pyx").write_text(
        "cdef int last() noexcept nogil:\n    return second() + offered() if last() else 0\n"
    )
    found = [line.removeprefix(f"{tmp_path}/") for line in violations(tmp_path, layered=True)]
    assert [line for line in found if "nobody else uses" not in line] == expected
