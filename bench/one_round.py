"""The process of a round; rounds.py starts it, and says what it reads and writes."""

from __future__ import annotations

import json
import sys
from typing import Any

from rmemcached.bench import command
from rmemcached.bench.measure import Round
from rmemcached.bench.rounds import EXPECTED


def measure(orders: dict[str, Any]) -> int:
    """Raises BrokenPipeError when who has started it has gone; by then its servers have ended."""
    with open(orders["to"], "w") as lines:

        def tell(*what: Any) -> None:
            print(json.dumps(what), file=lines, flush=True)

        now = Round(orders["round"], orders["turns"], orders["seed"])
        try:
            tell("done", command.measure_round(orders["words"], now, lambda part, what: tell("step", part, what)))
        except EXPECTED as error:
            tell("wrong", str(error))
            return 1
        except KeyboardInterrupt:
            return 130
    return 0


def main() -> int:
    try:
        return measure(json.load(sys.stdin))
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
