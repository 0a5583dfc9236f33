"""Type hints, as a program of a user's has them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Server

PROGRAM = Path(__file__).with_name("everything.py")
WRONG = {
    "client.get(5)": 'has incompatible type "int"',
    "client.set('key')": "Missing positional argument",
    "client.meta_set('key', b'', mode='other')": "incompatible type",
    "client.incr('key', 'one')": 'has incompatible type "str"',
    "client.nothing()": 'no attribute "nothing"',
    "x: str = client.version()": 'type "bytes"',
}


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_that_uses_everything(rmemcached_server: Callable[..., Server]) -> None:
    checked = mypy(str(PROGRAM))
    assert checked.returncode == 0, checked.stdout
    server = rmemcached_server()
    command = [sys.executable, "-W", "error::ResourceWarning", str(PROGRAM), server.host, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_programs_are_told(tmp_path: Path) -> None:
    """The hints refuse wrong programs."""
    program = tmp_path / "wrong.py"
    lines = ["from rmemcached.client import Client", "client = Client('localhost')", *WRONG]
    program.write_text("\n".join(lines) + "\n")
    told = mypy(str(program)).stdout.splitlines()
    for number, (line, message) in enumerate(WRONG.items(), start=3):
        assert any(f":{number}: error:" in text and message in text for text in told), (line, told)


@pytest.mark.parametrize(
    "name",
    [
        *(f"api.{name}" for name in ("_client", "_async", "_pipeline", "_fan_out", "_rendezvous")),
        *(f"transport.{name}" for name in ("_buffers", "_gathered")),
    ],
)
def test_hints_have_every_public_method(name: str) -> None:
    """The hints have every public method, and no other."""
    import ast
    import importlib

    module = importlib.import_module(f"rmemcached.client.{name}")
    hints = ast.parse(Path(module.__file__ or "").with_name(f"{name.rpartition('.')[2]}.pyi").read_text())
    for node in hints.body:
        if not isinstance(node, ast.ClassDef) or not hasattr(module, node.name):
            continue
        told = set()
        for inner in node.body:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                told.add(inner.name)
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                told.add(inner.target.id)
        real = {attribute for attribute in dir(getattr(module, node.name)) if not attribute.startswith("_")}
        assert {attribute for attribute in told if not attribute.startswith("_")} == real, node.name
