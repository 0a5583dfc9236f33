"""The daemon registers its growing item memory with the devices, which takes long on devices that pin pages."""

from __future__ import annotations

from threading import Event, Thread

from daemon_tools import TIMEOUT

from rmemcached.server._testing import INDEX_EXTENTS, INDEX_PARTS, Devices


def test_statistics_do_not_wait_for_a_registration() -> None:
    devices = Devices()
    told = Event()
    found = []

    def ask() -> None:
        found.append(devices.stats())
        told.set()

    growing, asking = Thread(target=devices.add_extent), Thread(target=ask)
    growing.start()
    devices.await_registration()
    try:
        asking.start()
        assert told.wait(TIMEOUT)
    finally:
        devices.proceed()
        growing.join()
        asking.join()
    assert b"STAT rdma_arena_registrations 0\r\n" in found[0]
    assert b"STAT rdma_arena_registrations 1\r\n" in devices.stats()


def test_all_of_the_largest_index_can_be_registered() -> None:
    """The first extent is six parts, of 2 MB and then twice as much each; the last may be shorter."""
    assert INDEX_EXTENTS - 1 + 6 + 1 <= INDEX_PARTS
