"""The code of the guide to the client: docs/client.md, and the pages beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import Server

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.glob("client*.md") if page.name != "client-api.md")
SECTIONS = [
    (f"{page.stem}: {section.partition(chr(10))[0]}", re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    for page in PAGES
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
]
TASKS = [(title, code) for title, blocks in SECTIONS for code in blocks]
WITHOUT_CODE = {
    "client: Where to go",
    "client-errors: When it does not work",
    "client-values: Large values, again and again",
    "client-values: Which calls ask nobody",
}


def test_each_section_has_code() -> None:
    assert {title for title, blocks in SECTIONS if len(blocks) != 1} == WITHOUT_CODE
    assert len(TASKS) == sum(page.read_text().count("```python\n") for page in PAGES)


def test_the_guide_begins_with_all_of_its_pages() -> None:
    begin = (DOCS / "client.md").read_text()
    assert [page.name for page in PAGES if page.name != "client.md" and f"({page.name})" not in begin] == []


@pytest.mark.parametrize(("title", "code"), TASKS, ids=[title for title, _ in TASKS])
def test_a_task(rmemcached_server: Callable[..., Server], title: str, code: str) -> None:
    server = rmemcached_server("-I", "4m", "-o", "no_lru_maintainer")
    code = code.replace("11211", str(server.port))
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), title
    for printed, expected in zip(done.stdout.splitlines(), re.findall(r"print\(\w+\)  # (.*)", code), strict=False):
        if "as many" not in expected:
            assert printed == expected


def test_the_reference_is_that_of_the_docstrings() -> None:
    command = [sys.executable, "script/api-reference", "--check"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
