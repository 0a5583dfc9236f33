"""What the tests of the tools share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from scripted import Scripted


@pytest.fixture
def scripted() -> Iterator[Callable[[Callable[[bytes], Iterator[bytes]]], Scripted]]:
    started: list[Scripted] = []

    def start(answers: Callable[[bytes], Iterator[bytes]]) -> Scripted:
        started.append(Scripted(answers))
        return started[-1]

    yield start
    for one in started:
        one.stop()
