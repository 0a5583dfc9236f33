"""The verbs interface for Python; see docs/soft-rnic.md.

    with Context("soft_iw0") as context:
        pd = PD(context)
        cq = CQ(context, 64)
        qp = QP(pd, cq)
        qp.ready()
        qp.connect(sock)

Importing it opens no device.
"""

from rmemcached.verbs.objects import (
    CQ,
    MR,
    PD,
    QP,
    SRQ,
    WC,
    Access,
    CompChannel,
    Context,
    EventType,
    Opcode,
    SendFlag,
    SendWR,
    State,
    Status,
    StreamState,
    VerbsError,
    WCOpcode,
    devices,
    event_text,
    parse_request,
    reject,
    status_text,
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
