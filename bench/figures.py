"""The output of the benchmarks: a table, a JSON file, a picture."""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds the option --json."""
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - for stdout, without the table")


def add_plot(parser: argparse.ArgumentParser, drawn: str) -> None:
    """Adds the option --plot; `drawn` says what the picture shows."""
    parser.add_argument("--plot", metavar="FILE", help=f"draw {drawn}; the format follows the name (.svg, .png)")


def check_plot(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program, before it has measured anything, when --plot is given and matplotlib is missing."""
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: pip install matplotlib")


def put_out(options: argparse.Namespace, figures: Mapping[str, object], table: str) -> None:
    """Writes the figures to the file of --json, and the table to stdout unless --json took stdout. Raises OSError."""
    text = json.dumps(figures, indent=2)
    if options.json and options.json != "-":
        Path(options.json).write_text(text + "\n")
    print(text if options.json == "-" else table)
