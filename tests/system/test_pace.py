"""How long a worker polls: through the usual gaps between a connection's requests, and not through long gaps."""

from __future__ import annotations

from itertools import accumulate, pairwise

from rmemcached.server._testing import Pace

US = 1000
LIMIT = 50 * US
HELD = LIMIT + LIMIT // 2
TRY_FIRST = 16


def polled(gaps: list[int], pace: Pace | None = None) -> list[int | None]:
    """The gap to poll through after each request; None: no polling. The first request comes at once, the others after
    these gaps."""
    pace = pace or Pace()
    return [pace.note(now, LIMIT) for now in accumulate(gaps, initial=1)]


def test_the_first_requests_say_nothing() -> None:
    assert polled([10 * US] * 4) == [None, None, None, 10 * US, 10 * US]


def test_one_pause_says_nothing() -> None:
    """After a pause the worker polls from the first request of the next burst on, for a client that works in bursts."""
    expected = polled([10 * US] * 4 + [10**7] + [10 * US] * 4)
    assert expected[4:] == [10 * US] * 6


def test_two_pauses_end_it() -> None:
    expected = polled([10 * US] * 4 + [10**7, 10**7])
    assert expected[-2:] == [10 * US, None]


def test_gaps_that_are_polled_through_may_get_a_little_longer() -> None:
    assert polled([LIMIT] * 4 + [HELD] * 100)[4:] == [LIMIT] + [LIMIT] + [HELD] * 99
    assert polled([LIMIT] * 4 + [HELD + 1] * 2)[-1] is None
    # The worker polls through such gaps only after it has tried them.
    assert polled([HELD] * (TRY_FIRST + 1)) == [None] * (TRY_FIRST + 2)


def test_long_gaps_are_never_polled_through() -> None:
    for gap in (3 * LIMIT + 1, 10**6, 2**32, 2**40):
        assert set(polled([gap] * 10_000)) == {None}


def test_gaps_beyond_the_limit_are_tried_ever_more_seldom() -> None:
    expected = polled([HELD + 1] * 2000)
    tries = [at for at, gap in enumerate(expected) if gap is not None]
    begins = [at for at in tries if at - 1 not in tries]
    assert len(tries) == 4 * len(begins)
    distances = [later - earlier - 4 for earlier, later in pairwise(begins)]
    assert distances == [2 * TRY_FIRST * 2**n - 1 for n in range(len(begins) - 1)]


def test_a_try_that_pays_goes_on() -> None:
    """Without polling a client's gaps are long. When the worker tries to poll all the same, the gaps get short, so the
    worker goes on polling."""
    pace = Pace()
    now, gap = 1, 80 * US
    expected = []
    for _ in range(100):
        expected.append(pace.note(now, LIMIT))
        gap = 80 * US if expected[-1] is None else 2 * US
        now += gap
    begin = next(at for at, found in enumerate(expected) if found is not None)
    assert begin < 2 * TRY_FIRST
    assert None not in expected[begin:]


def test_the_gap_is_the_longest_wait_of_a_request() -> None:
    """The gap is the longest wait among the parts of a large value, not their sum, and not the worker's own time."""
    pace = Pace()
    now, expected = 1, []
    for _ in range(6):
        expected.append(pace.note(now, LIMIT))
        for _ in range(10):
            now += 100 * US
            again = pace.end(now)
            assert again == expected[-1]
            now += 20 * US
            pace.begin(now)
    assert expected == [None, None, None, *[20 * US] * 3]


def test_a_long_wait_for_a_part_is_a_long_gap() -> None:
    pace = Pace()
    now = 1
    for _ in range(10):
        assert pace.note(now, LIMIT) is None
        for wait in (LIMIT * 4, 10 * US):
            assert pace.end(now) is None
            now += wait
            pace.begin(now)


def test_nothing_is_expected_of_whom_nobody_has_asked() -> None:
    pace = Pace()
    pace.begin(5)
    assert pace.end(10) is None


def test_a_limit_of_nothing() -> None:
    pace = Pace()
    assert [pace.note(now, 0) for now in range(1, 1000)] == [None] * 999
