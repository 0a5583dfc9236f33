#!/usr/bin/env python3
"""A demonstration: starts the daemon, sets and gets values by RDMA, and prints the tables of `rmemcached-bench paced`,
with pauses of 0 to 10 ms, and of `rmemcached-bench latency`.

It draws the medians into build/demo.svg, or where --plot says. The daemon uses its software RDMA devices,
over loopback and shared memory; nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rmemcached.bench import command
from rmemcached.bench.servers import start_rmemcached
from rmemcached.client import Client

# Options of the benchmark, which must end in less than a minute.
SHORT = ("--sizes", "100,64k,1m", "--rounds", "5", "--seconds", "0.05")
PAUSES = ("--think", "0,100,1000,10000", "--rounds", "3", "--seconds", "0.05")
CONTENDERS = ("--contenders", "auto,memcached,memcached+pymemcache")
PLOT = Path("build", "demo.svg")
SIZES = {"8 B": 8, "1 KB": 1024, "64 KB": 64 * 1024, "1 MB": 1024 * 1024}


def show_values(transport: str) -> None:
    """Sets and gets a value of each size by RDMA, and ends the program when a value comes back changed."""
    with start_rmemcached("-I", "8m") as server, Client(server.address, transport=transport) as client:
        print(f"rmemcached is up on {server.host}:{server.port} after {server.started_after * 1000:.0f} ms")
        with Client(server.address, transport="tcp") as other:
            for name, size in SIZES.items():
                value = os.urandom(size)
                client.set(name.replace(" ", ""), value, noreply=False)
                got = client.get(name.replace(" ", ""))
                if got != value or other.get(name.replace(" ", "")) != value:
                    raise SystemExit(f"{name}: what came back is not what was set")
                how = "set by RDMA, read where it lies" if client.direct else "set and got by RDMA"
                print(f"{name} {how} ({transport}): equal, byte for byte; read back over TCP: equal")
        # The statistics count all WRITEs of these gets: their request comes over the same queue pair, and the daemon
        # takes the completions of its WRITEs before the next request there.
        counters = {key.decode(): value for key, value in client.stats("rdma").items()}
        print(
            f"the daemon fetched {counters['rdma_read_bytes']} bytes by RDMA READ and delivered"
            f" {counters['rdma_write_bytes']} by RDMA WRITE; the rest came in SENDs"
            + (", and gets asked nobody\n" if client.direct else "\n")
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", metavar="FILE.svg", default=str(PLOT), help=f"default: {PLOT}")
    options, rest = parser.parse_known_args()
    Path(options.plot).parent.mkdir(parents=True, exist_ok=True)
    for transport in ("soft_iw", "soft_shm"):
        show_values(transport)
    sys.stdout.flush()
    status = command.main(["paced", *PAUSES, *CONTENDERS]) or command.main(
        ["latency", *SHORT, "--plot", options.plot, *rest]
    )
    if not status:
        print(f"\nthe same as a picture: {options.plot}")
    return status


if __name__ == "__main__":
    sys.exit(main())
