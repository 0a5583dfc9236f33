"""The verbs interface for Python; see docs/soft-rnic.md.

    with Context("soft_iw0") as context:
        pd = PD(context)
        cq = CQ(context, 64)
        qp = QP(pd, cq)
        qp.ready()
        qp.connect(sock)

Importing it opens no device.
"""

from rmemcached.verbs.objects.base import VerbsError
from rmemcached.verbs.objects.completion import CQ, WC, CompChannel, Status, WCOpcode, status_text
from rmemcached.verbs.objects.device import Context, EventType, devices, event_text
from rmemcached.verbs.objects.memory import MR, PD, Access
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
