"""One epoll set of a worker has connections, UDP sockets, software devices and completion channels of other devices."""

from __future__ import annotations

from rmemcached.server._testing import EVENT_TAGS, channel_events, is_channel_event


def test_a_completion_channel_is_no_software_device() -> None:
    """Wherever the worker's structure is in memory. Taken for one, the channel would be read as a queue pair."""
    events = channel_events()
    assert [bit for _, bit in events] == [1 << device for device in range(len(events))]
    for data, _ in events:
        assert data != 0 and not data & EVENT_TAGS
        assert is_channel_event(data)


def test_an_address_is_no_completion_channel() -> None:
    """The lowest address that a process has memory at is 4096 on most systems, and 65536 by default."""
    assert not is_channel_event(4096)
    assert not is_channel_event(2**47 - 16)
