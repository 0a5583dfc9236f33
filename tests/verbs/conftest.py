"""Every test body of this folder runs over each fabric, except for tests about a single wire (marker once).

The fabrics are the software device's; or libibverbs' first device, when the tests' transport is "verbs". Tests of
features of the software device have the marker soft, with the reason; the report lists the omissions. Tests for system
devices only have the marker system.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import verbs_ends
from verbs_ends import FABRICS

LEFT_OUT = pytest.StashKey[dict[str, str]]()
WIRE = "about the bytes of a software fabric"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fabric" in metafunc.fixturenames:
        once = metafunc.definition.get_closest_marker("once") is not None
        metafunc.parametrize("fabric", FABRICS[:1] if once else FABRICS, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out cases with CRC or a segment size over other fabrics than TCP, and tests that a fabric cannot run."""
    kept = []
    left_out = config.stash.setdefault(LEFT_OUT, {})
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        fabric = params.get("fabric", "soft_iw")
        soft, once = item.get_closest_marker("soft"), item.get_closest_marker("once")
        if not fabric.startswith("soft_iw") and (params.get("crc") is True or params.get("pair", "plain") != "plain"):
            continue
        if fabric == "verbs" and (soft or once):
            left_out[item.nodeid.partition("[")[0]] = soft.args[0] if soft else WIRE
            continue
        if fabric == "verbs" or not item.get_closest_marker("system"):
            kept.append(item)
    items[:] = kept


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    return [f"not over verbs: {test}: {why}" for test, why in config.stash.get(LEFT_OUT, {}).items()]


@pytest.fixture(scope="module", autouse=True)
def fabric(request: pytest.FixtureRequest) -> Iterator[str]:
    """The fabric of all ends made by the test.

    "soft_shm shared" has their buffers in shared memory. "shifted" has regions whose addresses are no pointers.
    """
    verbs_ends.FABRIC = request.param
    yield request.param
    verbs_ends.FABRIC = FABRICS[0]


@pytest.fixture
def soft_shm(fabric: str) -> Iterator[None]:
    """For tests that choose their memory themselves: the fabric is soft_shm, and buffers are in no shared memory."""
    verbs_ends.FABRIC = "soft_shm"
    yield
    verbs_ends.FABRIC = fabric
