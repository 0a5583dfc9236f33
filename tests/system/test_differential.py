"""Random conversations: how the input is cut into writes makes no difference. differential.py makes the
conversations up; run by hand, the program compares the daemon with memcached."""

from __future__ import annotations

from collections.abc import Callable

from differential import Speaker, said, same
from servers import Server

CONVERSATIONS = 80


def test_cuts_make_no_difference(rmemcached_server: Callable[..., Server]) -> None:
    # The daemons have no maintainer, whose progress would show in a dump of a queue, whatever the cuts are.
    whole, cut = (rmemcached_server("-t", "1", "-o", "no_lru_maintainer") for _ in range(2))
    for number in range(CONVERSATIONS):
        speaker = Speaker(number)
        stream = b"".join(speaker.conversation(binary=number % 4 == 3))
        cuts = speaker.cuts(len(stream), often=True)
        one, other = said(whole.port, stream, []), said(cut.port, stream, cuts)
        assert same(one, other), (number, stream, cuts, one, other)
