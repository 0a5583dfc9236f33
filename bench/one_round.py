"""The process of a round; rounds.py starts it, and says what it reads and writes."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from rmemcached.bench import command
from rmemcached.bench.errors import EXPECTED, text_of
from rmemcached.bench.measure import Round
from rmemcached.bench.processes import end_with, raise_descriptors

# Whatever asks it to end: Ctrl-C, kill, a terminal that is closed.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def once(number: int, frame: object) -> None:
    """A handler that interrupts. Who presses Ctrl-C again does not interrupt the ending of servers."""
    for each in ENDING:
        signal.signal(each, unheard)
    raise KeyboardInterrupt


def unheard(number: int, frame: object) -> None:
    """A handler that does nothing."""


def measure(orders: dict[str, Any]) -> int:
    """Raises BrokenPipeError when who has started it has gone; by then its servers have ended."""
    with open(orders["to"], "w") as lines:

        def tell(*what: Any) -> None:
            print(json.dumps(what), file=lines, flush=True)

        end_with(orders["parent"], signal.SIGINT)
        now = Round(orders["round"], orders["turns"], orders["seed"])
        try:
            tell("done", command.measure_round(orders["words"], now, lambda part, what: tell("step", part, what)))
        except EXPECTED as error:
            tell("wrong", text_of(error))
            return 1
    return 0


def main() -> int:
    for each in ENDING:
        signal.signal(each, once)
    try:
        # It was started with SIGINT blocked, so that no import is interrupted.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise_descriptors()
        orders = sys.stdin.read()
        if not orders:
            return 1  # who has started it has gone
        return measure(json.loads(orders))
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
