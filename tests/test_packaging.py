"""What a wheel has: the modules, and not those that only tests use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LIST = """
import runpy
for extension in runpy.run_path("setup.py", run_name="list")["extensions"]():
    print(extension.name)
"""


def setup(*arguments: str, testing: bool) -> str:
    """Runs Python in the source tree as a build does, and gives what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RMEMCACHED_")}
    if testing:
        environment["RMEMCACHED_TESTING"] = "1"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("testing", [False, True])
def test_modules_for_tests_are_built_for_tests_only(testing: bool) -> None:
    modules = setup("-c", LIST, testing=testing).split()
    assert "rmemcached.store.store" in modules and "rmemcached.client._client" in modules
    ours = {name for name in modules if "_testing" in name}
    assert ours >= {"rmemcached.store._testing", "rmemcached.protocol._testing"} if testing else not ours


@pytest.mark.parametrize("testing", [False, True])
def test_files_of_modules_for_tests(testing: bool, tmp_path: Path) -> None:
    setup("setup.py", "-q", "build_py", "--build-lib", str(tmp_path), testing=testing)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert {"rmemcached/store/store.pxd", "rmemcached/client/connection.py", "rmemcached/client/_client.pyi"} <= files
    assert {"rmemcached/cli.py", "rmemcached/client/py.typed"} <= files
    assert any("_testing" in name for name in files) == testing
    assert not [name for name in files if name.endswith((".c", ".so")) or name.startswith("tests")]
