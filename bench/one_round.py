"""The process of a round; rounds.py starts the process, and describes its input and output."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from rmemcached.bench import command
from rmemcached.bench.errors import EXPECTED, text_of
from rmemcached.bench.measure import Round
from rmemcached.bench.processes import end_with, kill_children, raise_descriptors

# Signals to end the process: Ctrl-C, kill, a closed terminal.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def once(number: int, frame: object) -> None:
    """Interrupts the round at the first signal. Later signals do not interrupt the ending of servers."""
    for each in ENDING:
        signal.signal(each, unheard)
    raise KeyboardInterrupt


def unheard(number: int, frame: object) -> None:
    """A handler without effect."""


def measure(orders: dict[str, Any]) -> int:
    """Raises BrokenPipeError when the starter has gone; by then the round's servers have ended."""
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
        # The process was started with SIGINT blocked, so no import is interrupted.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        raise_descriptors()
        orders = sys.stdin.read()
        if not orders:
            return 1  # the starter has gone
        return measure(json.loads(orders))
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        kill_children()


if __name__ == "__main__":
    sys.exit(main())
