"""Random conversations: how the input is cut into writes makes no difference. (differential.py, by which memcached is
compared with, makes them up.)"""

from __future__ import annotations

from collections.abc import Callable

from differential import Speaker, said, same
from servers import Server

CONVERSATIONS = 80


def test_cuts_make_no_difference(rmemcached_server: Callable[..., Server]) -> None:
    # Without the maintainer: a dump of a queue would show its progress, which has nothing to do with cuts.
    whole, cut = (rmemcached_server("-t", "1", "-o", "no_lru_maintainer") for _ in range(2))
    for number in range(CONVERSATIONS):
        speaker = Speaker(number)
        stream = b"".join(speaker.conversation(binary=number % 4 == 3))
        cuts = speaker.cuts(len(stream), often=True)
        one, other = said(whole.port, stream, []), said(cut.port, stream, cuts)
        assert same(one, other), (number, stream, cuts, one, other)
