"""Sphinx's settings for the documentation's site; script/docs builds it.

MyST reads the pages as GitHub shows them: the same lists, tables and anchors. A link to a file outside of docs/ becomes
a copy of that file in the site. Theme and search take nothing from the network, so the site opens from a disk.
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

html_theme = "furo"
html_title = f"rmemcached {release}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
pygments_style = "default"


def add_commands(app, name, source):
    """Puts the options of all commands into their page. They are read from the commands, which must be built."""
    if name == "commands":
        source[0] += "\n" + markdown.page([describe(parser) for parser in parsers().values()])


def setup(app):
    app.connect("source-read", add_commands)
