"""README, CONTRIBUTING and docs/ are right: code runs, links have targets, and named things exist."""

from __future__ import annotations

import html
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Server

from rmemcached.bench.command import make_parser
from rmemcached.reference import markdown
from rmemcached.reference.commands import describe, parsers

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
ServerFactory = Callable[..., Server]

FOLDERS = ("rmemcached", "client", "bench", "tests", "docs", "script")
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".pxi", ".md", ".tsv", ".toml", ".supp")
EXAMPLES = {"part.pxd", "part.pyx"}  # names for any other part
SOURCES = (".py", ".pyx", ".pxd", ".pyi", ".sh")
FENCE = re.compile(r"^( *)```([\w{}]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(r"(?<![\w/.-])\w[\w./*-]*\w")


def blocks(page: Path, language: str) -> list[str]:
    return [text for _, name, text in FENCE.findall(page.read_text()) if name == language]


def code(page: Path) -> Iterator[str]:
    """Each piece of code on a page: spans, and the lines of fenced blocks and of blocks indented by four spaces."""
    text = page.read_text()
    for _, _, block in FENCE.findall(text):
        yield from block.splitlines()
    for line in FENCE.sub("", text).splitlines():
        if line.startswith("    ") and not line.lstrip().startswith(("-", "*", "|")):
            yield line.strip()
        yield from CODE.findall(line)


def slug(heading: str) -> str:
    """GitHub's anchor for a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(line.lstrip("#").strip()) for line in page.read_text().splitlines() if line.startswith("#")}


def tree_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".so" and "__pycache__" not in path.parts
    }


FILES = tree_files()
BASENAMES = {file.rpartition("/")[2] for file in FILES} | {path.name for path in ROOT.iterdir()}


def missing(word: str) -> bool:
    """Whether a word in code has the form of a file name of this tree, without such a file."""
    if word in EXAMPLES:
        return False
    if word.partition("/")[0] in FOLDERS and "/" in word:
        # A module may be named without its suffix.
        return not any(ROOT.glob(word.rstrip("/"))) and not any(ROOT.glob(word + ".*"))
    return "/" not in word and "*" not in word and word.endswith(SUFFIXES) and word not in BASENAMES


@pytest.fixture
def readme_daemon(rmemcached_server: ServerFactory) -> Server:
    """The daemon with README's command, on a free port."""
    (command,) = {line.partition("#")[0] for line in code(README) if line.startswith("rmemcached -p ")}
    words = shlex.split(command)[1:]
    where = words.index("-p")
    return rmemcached_server(*words[:where], *words[where + 2 :])


@pytest.mark.parametrize("where", ["in the clone", "elsewhere"])
def test_readme_example(readme_daemon: Server, where: str, tmp_path: Path) -> None:
    """The example runs unchanged, but for the port, and prints the text of its comments."""
    built = any(ROOT.glob("rmemcached/store/store.*.so"))
    assert built or where == "elsewhere", "script/build builds the project in place, as README's commands do"
    (example,) = blocks(README, "python")
    assert "11211" in example
    done = subprocess.run(
        [sys.executable, "-"],
        input=example.replace("11211", str(readme_daemon.port)),
        cwd=ROOT if where == "in the clone" else tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.partition("  # ")[2] for line in example.splitlines() if line.strip().startswith("print(")]
    printed = done.stdout.splitlines()
    assert len(printed) == len(said)
    for line, comment in zip(printed, said, strict=True):
        assert comment.startswith(line)


# README's and the guide's blocks are run with their output. docs/soft-rnic.md shows two ends in a block, on two hosts:
# tests/verbs has such programs.
GUIDE = {name for name in NAMES if name.startswith("docs/client")}
ELSEWHERE = {*GUIDE, "README.md", "docs/frameworks.md", "docs/soft-rnic.md"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE and blocks(ROOT / name, "python")])
def test_python_blocks_run(rmemcached_server: ServerFactory, name: str) -> None:
    port = str(rmemcached_server("-I", "4m").port)
    for block in blocks(ROOT / name, "python"):
        done = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c", block.replace("11211", port)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), block


def paragraphs(text: str) -> Iterator[str]:
    """The text between blank lines, headings, rows of tables and beginnings of list items, without code."""
    paragraph: list[str] = []
    for line in [*FENCE.sub("\n", text).splitlines(), ""]:
        words = line.strip()
        if not words or words.startswith(("|", "#")) or re.match(r"(\d+\.|[-*]) ", words):
            if paragraph:
                yield " ".join(paragraph)
            paragraph = []
        if words and not words.startswith(("|", "#")):
            paragraph.append(words)


@pytest.mark.parametrize("name", NAMES)
def test_no_paragraph_is_long(name: str) -> None:
    """A paragraph has at most 120 words."""
    assert [text for text in paragraphs((ROOT / name).read_text()) if len(text.split()) > 120] == []


def test_long_paragraphs_are_found() -> None:
    assert [len(text.split()) for text in paragraphs("# a b\n" + "word " * 130 + "\nmore\n\n- one\n- two\n")] == [
        131,
        2,
        2,
    ]


def captions() -> dict[str, list[str]]:
    """The sections of the site and their pages, in the order of its menu."""
    menus = [text.splitlines() for text in blocks(ROOT / "docs" / "index.md", "{toctree}")]
    return {menu[1].removeprefix(":caption: "): menu[2:] for menu in menus}


def test_the_site_has_few_pages_in_six_sections() -> None:
    """The site has so few pages that a reader can look over all of them. The laboratory's notes are not on the site."""
    sections = captions()
    assert list(sections) == ["Start", "Guide", "Operators", "How it works", "Reference", "Performance"]
    pages = [page for listed in sections.values() for page in listed]
    assert sorted([*pages, "index"]) == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
    assert len(pages) < 25


def test_the_site_is_built_without_a_warning_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    built = {f"docs/{page.relative_to(tmp_path).with_suffix('.md')}" for page in pages}
    assert built & set(NAMES) == {name for name in NAMES if re.match("docs/[^/]+$", name)}
    commands = html.unescape(re.sub(r"<[^>]+>", "", (tmp_path / "commands.html").read_text()))
    for parser in parsers().values():
        said = markdown.page([describe(parser)])
        assert {name for name in re.findall(r"`(-[\w-]+|\w+(?==))", said) if name not in commands} == set()
        assert f"\n{parser.prog}" in commands
    for page, text in pages.items():
        # A link for readers may lead anywhere. Files loaded by a page are beside the page.
        loaded = re.findall(r"<(?:script|img|link|iframe)[^>]*?(?:src|href)=\"([^\"]+)\"", text)
        files = [each.partition("?")[0].partition("#")[0] for each in loaded]
        assert [each for each in files if "://" in each or each.startswith("//")] == []
        assert [
            each for each in files if each and not each.startswith("data:") and not (page.parent / each).exists()
        ] == []


@pytest.mark.parametrize("name", NAMES)
def test_python_blocks_are_python(name: str) -> None:
    for block in blocks(ROOT / name, "python"):
        compile(block, name, "exec")


@pytest.mark.parametrize("name", NAMES)
def test_links(name: str) -> None:
    page = ROOT / name
    wrong = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        other = page.parent / file if file else page
        if not other.exists() or (anchor and anchor not in anchors(other)):
            wrong.append(target)
    assert not wrong


@pytest.mark.parametrize("name", NAMES)
def test_files(name: str) -> None:
    """Files named by their path, or by a bare name with one of our suffixes, exist."""
    wrong = {word for piece in code(ROOT / name) for word in FILE.findall(piece) if missing(word)}
    assert not wrong


def unknown_to_bench(piece: str) -> set[str]:
    """The subcommand or options in a command line of rmemcached-bench that the command does not know."""
    found = re.search(r"(?<![\w/-])rmemcached-bench ([a-z]+)( .*)?", piece)
    if found is None:
        return set()
    (subcommands,) = [action.choices for action in make_parser()._actions if isinstance(action.choices, dict)]
    if found[1] not in subcommands:
        return {f"rmemcached-bench {found[1]}"}
    known = subcommands[found[1]]._option_string_actions
    return {word for word in re.findall(r"(?<!\S)--[a-z][\w-]*", found[2] or "") if word not in known}


def test_commands_of_bench_are_checked() -> None:
    assert unknown_to_bench("rmemcached-bench latency --sizes 1k --what 3") == {"--what"}
    assert unknown_to_bench("rmemcached-bench nothing --sizes 1k") == {"rmemcached-bench nothing"}


@pytest.mark.parametrize("name", NAMES)
def test_commands(name: str) -> None:
    """Commands of the package, options of scripts and benchmarks, and options of -o exist."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    page = (ROOT / "docs" / "compatibility.md").read_text()
    options = set(re.findall(r"^\| `(\w+)(?:=[^`]*)?` \|", page.partition("## Options of `-o`")[2], re.MULTILINE))
    wrong = set()
    for piece in code(ROOT / name):
        wrong |= {word for word in re.findall(r"(?<![\w./-])rmemcached-\w+", piece) if word not in scripts}
        wrong |= {word for word in re.findall(r"(?<![\w-])-o (\w+)", piece) if word not in options}
        wrong |= unknown_to_bench(piece)
        found = re.search(r"(?<![\w/])((?:bench/\w+\.py|script/(?:vm|sanitize|peer-suite)))( .*)?", piece)
        if found and (ROOT / found[1]).exists():
            file = "tests/peer/peer_suite.py" if found[1].endswith("peer-suite") else found[1]
            source = (ROOT / file).read_text()
            # What follows such a word belongs to another program.
            own = re.split(r" -c | -- | \.venv/", found[2] or "")[0]
            given = re.findall(r"(?<!\S)--[a-z][\w-]*", own)
            wrong |= {f"{found[1]} {option}" for option in given if option not in source}
    assert not wrong


def test_first_commands_can_be_typed() -> None:
    """script/package types the first command of each page unchanged, but for exceptions with a reason."""
    first = runpy.run_path(str(ROOT / "tests" / "first_examples.py"), run_name="read")
    assert {*first["NOT_ONE_COMMAND"], *first["NOT_ONE_PROGRAM"], *first["EXTRAS"]} <= set(NAMES)
    readers_own = []
    for name in sorted(set(NAMES) - set(first["NOT_ONE_COMMAND"])):
        for line in first["COMMANDS"].findall((ROOT / name).read_text())[:1]:
            words = shlex.split(first["typed"](line))
            readers_own += [(name, word) for word in words if re.fullmatch(r"[A-Z][A-Z.:]+", word)]
    assert readers_own == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md", "docs/glossary.md"])
def test_identifiers(name: str) -> None:
    """A piece of code consisting of a word with an underscore or a capital occurs in the sources."""
    known = {word for file in FILES if file.endswith(SOURCES) for word in re.findall(r"\w+", (ROOT / file).read_text())}
    words = {piece.rstrip("()") for piece in code(ROOT / name)}
    unknown = {word for word in words if re.fullmatch(r"[^\W_]\w*[_A-Z]\w*[^\W_]", word)} - known
    assert not unknown


def test_glossary_is_in_order() -> None:
    lists = (ROOT / "docs" / "glossary.md").read_text().split("\n## ")[1:]
    assert len(lists) == 3
    for text in lists:
        words = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)[2:]
        assert words == sorted(words, key=str.lower)
