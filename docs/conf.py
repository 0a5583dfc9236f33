"""Sphinx's settings for the documentation's site; script/docs builds it.

MyST reads the pages as GitHub shows them: the same lists, tables and anchors. A link to a file outside of docs/, or to
a note in docs/notes/, becomes a copy of that file in the site. Theme and search take nothing from the network: the site
opens from a disk.
"""

import re
from pathlib import Path

from rmemcached.reference import markdown
from rmemcached.reference.commands import describe, parsers

project = "rmemcached"
author = "the rmemcached authors"
release = re.findall(r'^__version__ = "(.+)"', Path("../rmemcached/__init__.py").resolve().read_text(), re.MULTILINE)[0]

extensions = ["myst_parser"]
myst_heading_anchors = 4
# Notes of the laboratory are for readers of the repository.
exclude_patterns = ["notes"]

html_theme = "furo"
html_title = f"rmemcached {release}"
html_copy_source = False
html_use_index = False
# A page opened from a disk may not fetch other pages, so the search cannot quote them.
html_show_search_summary = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"
# Without "D": -- is the beginning of an option.
smartquotes_action = "qe"
# Blocks without a language are commands and tables. The default would colour them as Python.
highlight_language = "none"
html_static_path = ["static"]
html_css_files = ["site.css"]

CELL = re.compile(r"<td.*?</td>", re.DOTALL)
CODE = re.compile(r'(?<=<span class="pre">)[^<]*')
BREAK = re.compile(r"(::|[/_=,|.])(?=[^/_=,|.:])")
NOTE = re.compile(r"\]\((notes/[\w-]+\.md)(?:#[\w-]+)?\)")
OPTION = re.compile(r"(?<![\w<>-])--?\w[\w-]*")


def add_commands(app, name, source):
    """Puts the options of all commands into their page. The commands must be built."""
    if name == "commands":
        source[0] += "\n" + markdown.page([describe(parser) for parser in parsers().values()])


def link_notes(app, name, source):
    """MyST takes a Markdown file below docs/ for a page, unless the link names it as a path."""
    source[0] = NOTE.sub(r"](path:\1)", source[0])


def with_breaks(name):
    """Returns the code of a cell with line breaks allowed after signs, but not within an option."""
    return OPTION.sub(r'<span class="option">\g<0></span>', BREAK.sub(r"\1<wbr/>", name[0]))


def let_names_break(app, name, template, context, tree):
    """Long names in tables would hide the columns beside them."""
    if "body" in context:
        context["body"] = CELL.sub(lambda cell: CODE.sub(with_breaks, cell[0]), context["body"])


def setup(app):
    app.connect("source-read", add_commands)
    app.connect("source-read", link_notes)
    app.connect("html-page-context", let_names_break)
