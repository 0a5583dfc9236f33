"""What ends a benchmark with one line."""

from __future__ import annotations


class BenchError(RuntimeError):
    """What is wrong, and the way out."""
