"""rmemcached-exporter: the statistics of rmemcached or memcached servers, for Prometheus.

/metrics has the statistics of the first SERVER, /scrape?target=SERVER of any SERVER, and of servers named by --allow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmemcached import __version__, import_error

try:
    from rmemcached.client.transport.arguments import as_port
    from rmemcached.tools import targets
except ModuleNotFoundError as error:
    raise SystemExit(str(import_error(error))) if __name__ == "__main__" else import_error(error) from None


def listening(place: str) -> tuple[str, int]:
    """Returns (host, port) for [HOST]:PORT or PORT. Raises ArgumentTypeError."""
    host, _, digits = place.rpartition(":")
    try:
        return host.strip("[]"), 0 if digits == "0" else as_port(digits)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"[HOST]:PORT is needed, not {place!r}: the port must be {error}") from None


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rmemcached-exporter", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "servers",
        nargs="*",
        default=[targets.DEFAULT],
        metavar="SERVER",
        help=f"{targets.SERVER_HELP} ({targets.DEFAULT})",
    )
    parser.add_argument(
        "--listen",
        type=listening,
        default=("", 9150),
        metavar="[HOST]:PORT",
        help="where Prometheus asks (:9150, on all addresses); port 0: any free one",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATTERN",
        help="further targets, such as '10.0.0.*:11211' (* is letters, digits and hyphens, ** anything);"
        " they are sent the user name and password; may be repeated",
    )
    parser.add_argument("-V", "--version", action="version", version=f"rmemcached-exporter {__version__}")
    targets.add_options(parser, 2.0)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script. Returns its exit status."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    settings = targets.settings(parser, given)
    targets.check(parser, given.servers, settings)
    try:
        from rmemcached.tools.metrics_server import Exporter, serve
    except ModuleNotFoundError as error:
        raise SystemExit(f"rmemcached-exporter: {error}: pip install 'rmemcached[exporter]'") from None
    exporter = Exporter(given.servers, given.allow, settings)
    try:
        serve(exporter, given.listen)
    except OSError as error:
        print(f"rmemcached-exporter: --listen {given.listen[0]}:{given.listen[1]}: {error}", file=sys.stderr)
        return 1
    finally:
        exporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
