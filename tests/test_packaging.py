"""What a wheel has: the modules, without those of tests. What a source distribution has: every tracked file, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LIST = """
import runpy
for extension in runpy.run_path("setup.py", run_name="list")["extensions"]():
    print(extension.name)
"""


def setup(*arguments: str, testing: bool, tree: Path = ROOT) -> str:
    """Runs Python in a source tree as a build does, and gives what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RMEMCACHED_")}
    if testing:
        environment["RMEMCACHED_TESTING"] = "1"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False
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
    assert not [name for name in files if name.endswith((".c", ".so", ".pyx", ".pxi")) or name.startswith("tests")]


LINKS = {"rmemcached/client": "client", "rmemcached/bench": "bench"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], Path]:
    """The tracked files, and the folder of an unpacked source distribution that was made of them."""
    if not (ROOT / ".git").exists():
        pytest.skip("only in a clone")
    folder = tmp_path_factory.mktemp("sdist")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = set(listed.stdout.splitlines())
    for name in filter(lambda name: (ROOT / name).exists(), tracked):
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "tree" / name, follow_symlinks=False)
    setup("setup.py", "-q", "sdist", "--dist-dir", str(folder), testing=False, tree=folder / "tree")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        assert not [member.name for member in content if not (member.isfile() or member.isdir())]
    # By tar: Python 3.12 wants a `filter` of extractall, which the 3.11 of Debian 12 does not have.
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    return tracked, folder / archive.name.removesuffix(".tar.gz")


def test_source_distribution_has_every_file_once(unpacked: tuple[set[str], Path]) -> None:
    tracked, root = unpacked
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    made = {name for name in files if name in ("PKG-INFO", "setup.cfg") or name.startswith("rmemcached.egg-info/")}
    settings = {name for name in tracked if Path(name).name.startswith(".")}
    assert files - made == tracked - settings - set(LINKS)


def test_source_distribution_lists_the_same_modules(unpacked: tuple[set[str], Path]) -> None:
    _, root = unpacked
    assert not any((root / link).exists() for link in LINKS)
    setup("setup.py", "-q", "build_py", "--build-lib", str(root / "lib"), testing=False, tree=root)
    assert setup("-c", LIST, testing=False, tree=root) == setup("-c", LIST, testing=False)
    assert (root / "lib/rmemcached/client/py.typed").is_file()
    assert (root / "lib/rmemcached/bench/command.py").is_file()


@pytest.mark.parametrize("in_its_place", ["a file", "a link to nothing"])
def test_tree_without_links(in_its_place: str, unpacked: tuple[set[str], Path], tmp_path: Path) -> None:
    """Archives and file systems without links have a file that names the target."""
    tree = tmp_path / "tree"
    shutil.copytree(unpacked[1], tree, symlinks=True)
    for name, folder in LINKS.items():
        link = tree / name
        link.unlink(missing_ok=True)
        if in_its_place == "a file":
            link.write_text(f"../{folder}")
        else:
            link.symlink_to(tmp_path / "nothing")
    setup("setup.py", "-q", "build_py", "--build-lib", str(tree / "lib"), testing=False, tree=tree)
    for name, folder in LINKS.items():
        assert (tree / name / "__init__.py").samefile(tree / folder / "__init__.py")


@pytest.mark.parametrize(
    "code", ["import rmemcached.client", "import rmemcached.cli as cli; print(cli.main(['-u', 'root']))"]
)
def test_tree_without_a_build_says_so(code: str, unpacked: tuple[set[str], Path], tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(unpacked[1], tree, symlinks=True)
    setup(
        "-c", "import runpy; runpy.run_path('setup.py', run_name='link')['link_packages']()", testing=False, tree=tree
    )
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stderr.splitlines()[-1]
    assert f"rmemcached in {tree / 'rmemcached'} is not built" in said and "script/build" in said, done.stderr


def test_unknown_module_is_not_built_in_silence() -> None:
    environment = {**os.environ, "RMEMCACHED_EXTENSIONS": "rmemcached.sys.debug,rmemcached.nosuch"}
    done = subprocess.run(
        [sys.executable, "-c", LIST], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr == "rmemcached: no such extension module: rmemcached.nosuch\n"
