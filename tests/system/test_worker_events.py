"""The epoll set of a worker has its queue, connections, UDP sockets, software devices and completion channels."""

from __future__ import annotations

from rmemcached.server._testing import EVENT_KINDS, QUEUE, TAGS, channel_events, event_kind_of

ADDRESSES = (4096, 65536, 2**47 - 16)
"""The lowest address of a process's memory, where the system's limit (vm.mmap_min_addr) is 4096 or 65536; and the
highest."""


def kind(data: int) -> str:
    (found,) = (name for name, number in EVENT_KINDS.items() if number == event_kind_of(data))
    return found


def test_the_workers_queue() -> None:
    assert kind(QUEUE) == "queue"


def test_a_completion_channel_is_no_software_device() -> None:
    """The event of a completion channel is not taken for a queue pair's, wherever the worker's structure is in
    memory."""
    events = channel_events()
    assert [bit for _, bit in events] == [1 << device for device in range(len(events))]
    assert all(kind(data) == "channel" for data, _ in events)


def test_what_has_an_address() -> None:
    """The tag of an address gives its kind."""
    for address in ADDRESSES:
        assert kind(address) == "connection"
        assert {name: kind(address | tag) for name, tag in TAGS.items()} == {name: name for name in TAGS}
