"""rmemcached-devices: the RDMA devices of this machine, and which one the daemon and the client would take.

The system's devices are listed by pyverbs, which asks libibverbs without any code of this project.
"""

from __future__ import annotations

import ipaddress
import sys
from pathlib import Path
from typing import Any

from rmemcached import verbs
from rmemcached.verbs import port as ports

STATES = ("no state", "down", "init", "armed", "active", "active, deferred")
LAYERS = {0: "unspecified", 1: "InfiniBand", 2: "Ethernet"}
NODES = {1: "InfiniBand or RoCE", 4: "iWARP"}
MISSING = (
    "rmemcached-devices needs pyverbs to ask libibverbs: apt-get install python3-pyverbs, and a virtual environment of"
    " the system's python3 with --system-site-packages; or pip install 'rmemcached[pyverbs]', see docs/real-devices.md"
)
UNUSABLE = (
    "rmemcached-devices cannot load pyverbs; it needs the libibverbs of its own release of rdma-core, see"
    " docs/real-devices.md"
)


def gid_text(gid: bytes) -> str:
    """A GID as an IPv6 address, or as the IPv4 address that it stands for."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def gid_kind(device: str, port: int, index: int) -> str:
    try:
        return Path(f"/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}").read_text().strip()
    except OSError:
        return "unknown type"


def show_port(context: Any, device: str, number: int) -> None:
    attributes = context.query_port(number)
    mtu, largest = 128 << attributes.active_mtu, 128 << attributes.max_mtu
    print(
        f"  port {number}: {STATES[attributes.state]}, {LAYERS.get(attributes.link_layer, 'unknown')},"
        f" LID {attributes.lid}, MTU {mtu} of {largest}"
    )
    for index in range(attributes.gid_tbl_len):
        raw = bytes.fromhex(context.query_gid(number, index).gid.replace(":", ""))
        if any(raw):
            print(f"    GID {index}: {gid_text(raw)} ({gid_kind(device, number, index)})")


def show_system() -> None:
    """Every device that libibverbs has. Raises ImportError; ModuleNotFoundError is without pyverbs."""
    from pyverbs.device import Context, get_device_list
    from pyverbs.pyverbs_error import PyverbsRDMAError

    try:
        found = get_device_list()
    except PyverbsRDMAError:
        # So says pyverbs where the kernel has no RDMA.
        found = []
    for entry in found:
        name = entry.name.decode()
        print(f"{name}: system, {NODES.get(entry.node_type, 'other')}")
        with Context(name=name) as context:
            limits = context.query_device()
            print(
                f"  queue pairs {limits.max_qp}, work requests {limits.max_qp_wr}, completions {limits.max_cqe},"
                f" memory regions {limits.max_mr}, scatter entries {limits.max_sge},"
                f" RDMA READs {limits.max_qp_rd_atom} answered and {limits.max_qp_init_rd_atom} outstanding"
            )
            for number in range(1, limits.phys_port_cnt + 1):
                show_port(context, name, number)
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
    else:
        kind = gid_kind(chosen["device"], chosen["port"], chosen["gid_index"])
        print(
            f"verbs: {chosen['device']}, port {chosen['port']}, GID {chosen['gid_index']} ({gid_text(chosen['gid'])},"
            f" {kind}): the first device with an active port, and of its GIDs the first of RoCE v2 before others, of"
            " IPv4 addresses before others"
        )
    print(f"soft_iw: {ports.choose('soft', 'soft_iw0')['device']}: there is always one")


def main() -> int:
    """The console script. Status 1 without a pyverbs that can be loaded."""
    try:
        show_system()
    except ImportError as error:
        advice = MISSING if isinstance(error, ModuleNotFoundError) else UNUSABLE
        print(f"{advice} ({error})", file=sys.stderr)
        return 1
    show_soft()
    show_choice()
    return 0


if __name__ == "__main__":
    sys.exit(main())
