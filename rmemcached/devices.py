"""rmemcached-devices: the RDMA devices of this machine, the daemon's and the client's choice of them, and the reasons.

pyverbs lists the system's devices: it asks libibverbs without any code of this project. Without a pyverbs that loads,
the code of the daemon and the client lists them.
"""

from __future__ import annotations

import argparse
import ipaddress
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rmemcached import import_error

try:
    import rmemcached.verbs.port as ports
    from rmemcached import verbs
except ModuleNotFoundError as error:
    raise SystemExit(str(import_error(error))) if __name__ == "__main__" else import_error(error) from None

STATES = ("no state", "down", "init", "armed", "active", "active, deferred")
LAYERS = {0: "unspecified", 1: "InfiniBand", 2: "Ethernet"}
NODES = {1: "InfiniBand or RoCE", 4: "iWARP"}
HELP = "pip install 'rmemcached[pyverbs]' or apt-get install python3-pyverbs, see docs/real-devices.md"
MISSING = f"rmemcached-devices: listed without pyverbs, which asks libibverbs independently of rmemcached ({HELP})"
UNUSABLE = (
    "rmemcached-devices: listed without pyverbs, which cannot be loaded; it needs the libibverbs of its own release of"
    " rdma-core, see docs/real-devices.md"
)


def gid_text(gid: bytes) -> str:
    """A GID as an IPv6 address, or as the IPv4 address within."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def gid_kind(device: str, port: int, index: int) -> str:
    try:
        return Path(f"/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}").read_text().strip()
    except OSError:
        return "unknown type"


def show_port(attributes: Any, gid: Callable[[int, int], bytes], device: str, number: int) -> None:
    mtu, largest = 128 << attributes.active_mtu, 128 << attributes.max_mtu
    print(
        f"  port {number}: {STATES[attributes.state]}, {LAYERS.get(attributes.link_layer, 'unknown')},"
        f" LID {attributes.lid}, MTU {mtu}" + (f" of {largest}" if attributes.max_mtu else "")
    )
    for index in range(attributes.gid_tbl_len):
        raw = gid(number, index)
        if any(raw):
            print(f"    GID {index}: {gid_text(raw)} ({gid_kind(device, number, index)})")


def show_device(
    name: str, node: int, limits: Any, port: Callable[[int], Any], gid: Callable[[int, int], bytes]
) -> None:
    print(f"{name}: system, {NODES.get(node, 'other')}")
    print(
        f"  queue pairs {limits.max_qp}, work requests {limits.max_qp_wr}, completions {limits.max_cqe},"
        f" memory regions {limits.max_mr}, scatter entries {limits.max_sge},"
        f" RDMA READs {limits.max_qp_rd_atom} answered and {limits.max_qp_init_rd_atom} outstanding"
    )
    for number in range(1, limits.phys_port_cnt + 1):
        show_port(port(number), gid, name, number)


def show_by_pyverbs() -> list[str]:
    """Shows every device of libibverbs, and returns their names. Raises ImportError if pyverbs cannot be loaded, and
    ModuleNotFoundError if pyverbs is not installed."""
    from pyverbs.device import Context, get_device_list
    from pyverbs.pyverbs_error import PyverbsRDMAError

    try:
        found = get_device_list()
    except PyverbsRDMAError:
        # pyverbs raises this error where the kernel has no RDMA.
        found = []
    for entry in found:
        name = entry.name.decode()
        with Context(name=name) as context:
            show_device(
                name,
                entry.node_type,
                context.query_device(),
                context.query_port,
                lambda port, index: bytes.fromhex(context.query_gid(port, index).gid.replace(":", "")),
            )
    return [entry.name.decode() for entry in found]


def show_by_ourselves() -> list[str]:
    found = verbs.devices("system")
    for name in found:
        with verbs.Context(name) as context:
            limits = SimpleNamespace(**context.query_device())
            show_device(
                name,
                limits.node_type,
                limits,
                lambda number: SimpleNamespace(max_mtu=0, **context.query_port(number)),
                context.query_gid,
            )
    return found


def show_system() -> None:
    try:
        found = show_by_pyverbs()
    except ImportError as error:
        advice = MISSING if isinstance(error, ModuleNotFoundError) else f"{UNUSABLE} ({error})"
        print(advice, file=sys.stderr)
        found = show_by_ourselves()
    if not found:
        print("libibverbs has no device")


def show_soft() -> None:
    for name in verbs.devices():
        with verbs.Context(name) as context:
            limits, port = context.query_device(), context.query_port()
            gid = bytes(context.query_gid())
            print(f"{name}: soft")
            print(
                f"  work requests {limits['max_qp_wr']}, completions {limits['max_cqe']}, scatter entries"
                f" {limits['max_sge']}, RDMA READs {limits['max_qp_rd_atom']}"
            )
            print(f"  port 1: {STATES[port['state']]}\n    GID 0: {gid_text(gid)}")


def show_choice() -> None:
    try:
        chosen = ports.choose("system")
    except OSError as error:
        print(f"verbs: none: {error}")
        served = ""
    else:
        kind = gid_kind(chosen["device"], chosen["port"], chosen["gid_index"])
        print(
            f"verbs: {chosen['device']}, port {chosen['port']}, GID {chosen['gid_index']} ({gid_text(chosen['gid'])},"
            f" {kind}): the first device with an active port, and of its GIDs the first of RoCE v2 before others, of"
            " IPv4 addresses before others"
        )
        served = f"{chosen['device']}, "
    soft = verbs.devices()
    for name in soft:
        print(f"{name.removesuffix('0')}: {name}: there is always one")
    print(
        f"The daemon serves on {served}{' and '.join(soft)}. -o rdma_device=, rdma_port= and rdma_gid_index= choose the"
        " system's device; rdma_device=none is without it, rdma_shm=none without soft_shm, and no_rdma without any."
    )
    print(
        "A client takes the first that both ends have: verbs, soft_shm (its server is on the same host), tcp."
        " transport= pins one, and soft_iw is taken only so. RMEMCACHED_RDMA_DEVICE names the system's device for it."
        " Over soft_shm its gets read items where they lie, where the daemon's rdma_direct lets them: by default those"
        " of its own user and of root."
    )


def make_parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog="rmemcached-devices", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script."""
    make_parser().parse_args(arguments)
    show_system()
    show_soft()
    show_choice()
    return 0


if __name__ == "__main__":
    sys.exit(main())
