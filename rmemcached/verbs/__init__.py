"""The verbs interface for Python; see docs/soft-rnic.md.

    with Context("soft_iw0") as context:
        pd = PD(context)
        cq = CQ(context, 64)
        qp = QP(pd, cq)
        qp.ready()
        qp.connect(sock)

Importing the package opens no device. An attribute is imported at its first use, because these objects need the GIL:
the client, which uses none of them, can run on a free-threaded Python without the GIL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rmemcached import import_error

if TYPE_CHECKING:
    from rmemcached.verbs.objects.base import VerbsError
    from rmemcached.verbs.objects.completion import CQ, WC, CompChannel, Status, WCOpcode, status_text
    from rmemcached.verbs.objects.device import Context, EventType, devices, event_text
    from rmemcached.verbs.objects.memory import MR, MW, PD, Access
    from rmemcached.verbs.objects.queue_pair import (
        QP,
        SRQ,
        Opcode,
        SendFlag,
        SendWR,
        State,
        StreamState,
        parse_request,
        reject,
    )

__all__ = [
    "CQ",
    "MR",
    "MW",
    "PD",
    "QP",
    "SRQ",
    "WC",
    "Access",
    "CompChannel",
    "Context",
    "EventType",
    "Opcode",
    "SendFlag",
    "SendWR",
    "State",
    "Status",
    "StreamState",
    "VerbsError",
    "WCOpcode",
    "devices",
    "event_text",
    "parse_request",
    "reject",
    "status_text",
]

_MODULES = {
    "base": ("VerbsError",),
    "completion": ("CQ", "WC", "CompChannel", "Status", "WCOpcode", "status_text"),
    "device": ("Context", "EventType", "devices", "event_text"),
    "memory": ("MR", "MW", "PD", "Access"),
    "queue_pair": ("QP", "SRQ", "Opcode", "SendFlag", "SendWR", "State", "StreamState", "parse_request", "reject"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            try:
                found = import_module(f"{__name__}.objects.{module}")
            except ModuleNotFoundError as error:
                raise import_error(error) from None
            return globals().setdefault(name, getattr(found, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
