"""rmemcached-top: the work of rmemcached and memcached servers at the moment, in the terminal.

Each server has a line with rates, hit ratio, memory, and the latency of a probe. Below are the commands, slab classes,
lanes and queue pairs of the selected server, and with --prefixes its prefixes of keys. "-" is a missing statistic.
Rates are of the last interval. The probe is the command `version`, which counts in no statistic; the columns show the
median and the largest time of ten.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from rmemcached import __version__, import_error

try:
    from rmemcached.tools import targets
except ModuleNotFoundError as error:
    raise SystemExit(str(import_error(error))) if __name__ == "__main__" else import_error(error) from None

LEAST_INTERVAL, MOST_INTERVAL = 0.1, 3600.0


def interval(text: str) -> float:
    """Returns the seconds of the command line. Raises ArgumentTypeError."""
    seconds = targets.positive(text)
    if not LEAST_INTERVAL <= seconds <= MOST_INTERVAL:
        raise argparse.ArgumentTypeError(f"it is {LEAST_INTERVAL:g} to {MOST_INTERVAL:g} seconds, not {text}")
    return seconds


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmemcached-top",
        description=__doc__,
        epilog="Keys: q quits, space pauses, up and down (k and j) select a server, s, c and f sort servers, classes"
        " and prefixes by the next column, S, C and F turn the order round.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "servers",
        nargs="*",
        default=[targets.DEFAULT],
        metavar="SERVER",
        help=f"{targets.SERVER_HELP} ({targets.DEFAULT})",
    )
    parser.add_argument(
        "--interval", type=interval, default=1.0, metavar="SECONDS", help="between two samples (%(default)g)"
    )
    parser.add_argument(
        "--once",
        action="store_true",
        help="print one screen, after one interval, and end: with status 1 when a server did not answer",
    )
    parser.add_argument(
        "--prefixes",
        action="store_true",
        help="commands by prefix of the keys, of servers that count them (-D); the answer can be long. Meta commands,"
        " as rmemcached.client sends them, are not counted, as with memcached",
    )
    parser.add_argument("-V", "--version", action="version", version=f"rmemcached-top {__version__}")
    targets.add_options(parser, 2.0)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns its exit status."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    settings = targets.settings(parser, given)
    targets.check(parser, given.servers, settings)
    servers = list(dict.fromkeys(given.servers))
    try:
        from rmemcached.tools import live

        show = live.print_once if given.once else live.watch
        status = show(servers, settings, given.interval, given.prefixes)
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        raise SystemExit(f"rmemcached-top: {error}: pip install 'rmemcached[top]'") from None
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except OSError as error:
        print(f"rmemcached-top: stdout: {error}", file=sys.stderr, flush=True)
        status = 1
    # Threads waiting for a server would delay the interpreter's end.
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
