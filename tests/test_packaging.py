"""A wheel has the modules, without the tests' own. A source distribution has every tracked file, once.

script/package builds both in full, and tries them; the cheap checks are here.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email.parser import HeaderParser
from pathlib import Path

import pytest
import wheel_content

from rmemcached import __version__
from rmemcached.cli import UsageError, check_page_size

ROOT = Path(__file__).resolve().parent.parent

LIST = """
import runpy
for extension in runpy.run_path("setup.py", run_name="list")["extensions"]():
    print(extension.name)
"""


def setup(*arguments: str, testing: bool, tree: Path = ROOT) -> str:
    """Runs Python in a source tree like a build. Returns the output."""
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
    assert "rmemcached.store.store" in modules and "rmemcached.client.api._client" in modules
    ours = {name for name in modules if "_testing" in name}
    assert ours >= {"rmemcached.store._testing", "rmemcached.protocol._testing"} if testing else not ours


@pytest.mark.parametrize("testing", [False, True])
def test_files_of_modules_for_tests(testing: bool, tmp_path: Path) -> None:
    setup("setup.py", "-q", "build_py", "--build-lib", str(tmp_path), testing=testing)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")}
    assert {"rmemcached/store/store.pxd", "rmemcached/client/serde.py", "rmemcached/client/api/_client.pyi"} <= files
    assert {"rmemcached/cli.py", "rmemcached/py.typed", "rmemcached/client/py.typed"} <= files
    assert any("_testing" in name for name in files) == testing
    assert not [name for name in files if name.endswith((".c", ".so", ".pyx", ".pxi")) or name.startswith("tests")]


def test_every_command_is_in_the_wheel(tmp_path: Path) -> None:
    """The wheel has the module of every command: setup.py lists each folder of modules as a package."""
    setup("setup.py", "-q", "build_py", "--build-lib", str(tmp_path), testing=False)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = {place.partition(":")[0].replace(".", "/") + ".py" for place in scripts.values()}
    assert not [module for module in modules if not (tmp_path / module).is_file()]


LINKS = {"rmemcached/client": "client", "rmemcached/bench": "bench"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], Path]:
    """The tracked files, and the folder of an unpacked source distribution made of them."""
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
    # tar unpacks: Python 3.12 wants a `filter` of extractall, unknown to the 3.11 of Debian 12.
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


def test_metadata(unpacked: tuple[set[str], Path]) -> None:
    """The metadata are complete, and name no site."""
    found = HeaderParser().parsestr((unpacked[1] / "PKG-INFO").read_text())
    assert (found["Name"], found["Version"], found["License-Expression"]) == ("rmemcached", __version__, "BSD-3-Clause")
    assert found["Author"] == "the rmemcached authors" and found["Requires-Python"] == ">=3.11"
    assert "rdma" in found["Keywords"].split(",") and found["Description-Content-Type"] == "text/markdown"
    assert found.get_all("License-File") == ["LICENSE", "LICENSE.third-party"]
    classifiers = found.get_all("Classifier") or []
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.11"} <= set(classifiers)
    assert not (found.get_all("Project-URL") or found["Home-page"])


def test_what_is_looked_for_in_a_wheel() -> None:
    """The check of script/package finds missing and superfluous files."""
    right = ["rmemcached/py.typed", "rmemcached/client/api/_client.pyi", "rmemcached/sys/clock.cpython-311-x.so"]
    right += ["rmemcached/verbs/plain/libibverbs.so.1"]
    right += ["rmemcached/sys/clock.pxd", "rmemcached-1.dist-info/RECORD", "rmemcached.libs/libisal-1.so.2"]
    assert wheel_content.faults(right, {"rmemcached.sys.clock"}) == []
    for missing in right[:4]:
        (fault,) = wheel_content.faults([name for name in right if name != missing], {"rmemcached.sys.clock"})
        assert fault.endswith("is missing")
    for extra in (
        "rmemcached/a.pyx",
        "rmemcached/a.pxi",
        "rmemcached/a.c",
        "rmemcached/store/_testing.pyi",
        "tests/a.py",
    ):
        assert wheel_content.faults([*right, extra], {"rmemcached.sys.clock"}) == [f"{extra} is not to be in it"]
    built = "rmemcached/store/other.cpython-311-x.so"
    assert wheel_content.faults([*right, built], {"rmemcached.sys.clock"}) == [
        "rmemcached.store.other is not to be built"
    ]


@pytest.mark.parametrize("folder", ["the source tree", "elsewhere"])
def test_the_environment_of_readme_works(folder: str, tmp_path: Path) -> None:
    """import, python -m and the commands work in the clone's root as elsewhere, with set and get without a device."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-"],
        cwd=ROOT if folder == "the source tree" else tmp_path,
        env=environment,
        input=(ROOT / "tests" / "smoke.py").read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"rmemcached {__version__} in {ROOT / 'rmemcached'} works")


@pytest.mark.parametrize(
    ("machine", "what"),
    [
        (("big", 8, 4096), "a little-endian machine, and this one is big-endian"),
        (("little", 4, 4096), "a 64-bit machine, and here pointers have 32 bits"),
        (("little", 8, 65536), "memory pages of 4 KB, and this kernel's have 64 KB: boot one with 4 KB"),
    ],
)
def test_machines_that_the_code_is_not_made_for(machine: tuple[str, int, int], what: str) -> None:
    """A build on a foreign machine ends with a line, and so does a daemon on a kernel with pages of another size."""
    check = runpy.run_path(str(ROOT / "setup.py"), run_name="list")["check_machine"]
    check("little", 8, 4096)
    with pytest.raises(SystemExit) as refused:
        check(*machine)
    assert refused.value.code == f"rmemcached: it needs {what}"
    check_page_size(4096)
    if machine[2] != 4096:
        with pytest.raises(UsageError, match="memory pages of 4 KB, and this kernel's have 64 KB"):
            check_page_size(machine[2])


@pytest.mark.parametrize("in_its_place", ["a file", "a link to nothing"])
def test_tree_without_links(in_its_place: str, unpacked: tuple[set[str], Path], tmp_path: Path) -> None:
    """A build makes the links missing in its tree: archives and file systems without links have other files there."""
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


@pytest.fixture(scope="module")
def without_a_build(unpacked: tuple[set[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("unbuilt") / "tree"
    shutil.copytree(unpacked[1], tree, symlinks=True)
    setup(
        "-c", "import runpy; runpy.run_path('setup.py', run_name='link')['link_packages']()", testing=False, tree=tree
    )
    return tree


COMMANDS = ["-m rmemcached -u root", "-m rmemcached.devices", "-m rmemcached.perftest send lat --local"]


@pytest.mark.parametrize(
    "command",
    ["-c import rmemcached.client", "-c import rmemcached.verbs as verbs; verbs.devices()", *COMMANDS],
)
def test_tree_without_a_build_says_so(command: str, without_a_build: Path) -> None:
    """Python started in a tree without a build names the ways out: the sources hide an installed package there."""
    option, words = command.split(maxsplit=1)
    arguments = [words] if option == "-c" else words.split()
    done = subprocess.run(
        [sys.executable, option, *arguments], cwd=without_a_build, capture_output=True, text=True, check=False
    )
    said = done.stderr.splitlines()
    assert done.returncode != 0 and f"rmemcached in {without_a_build / 'rmemcached'} is not built" in said[-1], said
    assert all(way in said[-1] for way in ("script/build", "pip install -e .", "-P"))
    assert len(said) == 1 or command not in COMMANDS


def test_unknown_module_is_not_built_in_silence() -> None:
    environment = {**os.environ, "RMEMCACHED_EXTENSIONS": "rmemcached.sys.debug,rmemcached.nosuch"}
    done = subprocess.run(
        [sys.executable, "-c", LIST], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr == "rmemcached: no such extension module: rmemcached.nosuch\n"
