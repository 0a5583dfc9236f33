"""Every test body of this folder runs over each fabric, except those about the wire of one (marker once)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import verbs_ends
from verbs_ends import FABRICS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fabric" in metafunc.fixturenames:
        once = metafunc.definition.get_closest_marker("once") is not None
        metafunc.parametrize("fabric", FABRICS[:1] if once else FABRICS, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """CRC and segment size are matters of TCP."""
    kept = []
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        of_tcp = params.get("crc") is True or params.get("pair", "plain") != "plain"
        if params.get("fabric", FABRICS[0]) == FABRICS[0] or not of_tcp:
            kept.append(item)
    items[:] = kept


@pytest.fixture(scope="module", autouse=True)
def fabric(request: pytest.FixtureRequest) -> Iterator[str]:
    """The fabric of all ends that the test makes: "soft_shm shared" has their buffers in shared memory."""
    verbs_ends.FABRIC = request.param
    yield request.param
    verbs_ends.FABRIC = FABRICS[0]
