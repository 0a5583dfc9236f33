"""A short run of the fuzzer; see fuzz.py."""

from __future__ import annotations

import fuzz
import pytest

pytestmark = pytest.mark.once


@pytest.mark.parametrize("name", ["soft_iw", "soft_shm"])
def test_mutated_conversations(name: str) -> None:
    fuzzer = fuzz.run(name, 60, seed=1, rounds=600)
    assert fuzzer.fed == 600 and len(fuzzer.signatures) > 100
