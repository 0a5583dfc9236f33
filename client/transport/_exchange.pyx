"""See _exchange.pxd."""

from rmemcached.rdma.wire cimport (
    EXCHANGE_REPLY,
    RDMA_CREDITS_HELD_MAX,
    RDMA_CREDITS_MIN,
    RDMA_LANE_BYTES_MAX,
    RDMA_LANE_BYTES_MIN,
    RDMA_LINE_MAX,
    RDMA_MSGSIZE_MIN,
    RDMA_LANES_MAX,
    RDMA_VERSION,
    RDMA_TOKEN_LENGTH,
)

from rmemcached.client.exceptions import ExchangeRefused, MemcacheServerError

cdef enum:
    DEFAULT_EAGER = 4096     # for a server without `eager` in its line

REPLY_LIMIT = RDMA_LINE_MAX + len(b"\r\n")
"""Bytes of an exchange line, with its end."""


cdef bint makes_sense(unsigned int version, unsigned int credits, size_t msgsize, size_t lane_bytes,
                      unsigned int lanes, unsigned int workers) noexcept:
    return (version == RDMA_VERSION and credits >= RDMA_CREDITS_MIN and msgsize >= RDMA_MSGSIZE_MIN
            and RDMA_LANE_BYTES_MIN <= lane_bytes <= RDMA_LANE_BYTES_MAX and lanes >= 1 and workers >= 1)


cdef int read_offer(Offer offer, dict tokens, bint attaches) except -1:
    # Fills the offer. KeyError, ValueError, OverflowError: a token is missing, malformed or out of range.
    offer.qpn = int(tokens["qpn"])
    offer.psn = int(tokens.get("psn", 0))
    offer.lid = int(tokens.get("lid", 0))
    offer.mtu = int(tokens.get("mtu", 0))
    offer.gid = bytes.fromhex(tokens.get("gid", "0" * 32))
    offer.token = bytes.fromhex(tokens["token"] if attaches else "")
    offer.key = bytes.fromhex(tokens.get("tls", ""))
    offer.path = tokens.get("path") or None
    offer.credits = min(int(tokens["credits"]), <int>RDMA_CREDITS_HELD_MAX)
    offer.msgsize = int(tokens["msgsize"])
    offer.eager = int(tokens.get("eager", <int>DEFAULT_EAGER))
    offer.reads = int(tokens.get("ord", 1))
    offer.answers = int(tokens.get("ird", 1))
    offer.crc = int(tokens.get("crc", 0))
    offer.direct = int(tokens.get("direct", 0)) == 1 and offer.answers > 0
    offer.memory = tokens.get("memory", "")
    offer.workers = int(tokens["workers"])
    offer.lanes = min(int(tokens["lanes"]), <int>RDMA_LANES_MAX)
    offer.lane_bytes = int(tokens["lanebytes"])
    if (not makes_sense(int(tokens["version"]), offer.credits, offer.msgsize, offer.lane_bytes, offer.lanes,
                        offer.workers)
            or len(offer.gid) != 16 or (attaches and len(offer.token) != RDMA_TOKEN_LENGTH)):
        raise ValueError
    return 0


cdef dict shown(dict tokens):
    # Without the secrets of the second connection.
    return {name: "***" if name in ("token", "tls") else text for name, text in tokens.items()}


cdef class Offer:
    """The server's end of a queue pair, described by its exchange line.

    line: without its end. attaches: there will be a second connection. ExchangeRefused: the server has refused.
    MemcacheServerError: the line makes no sense.
    """

    def __init__(self, bytes line, bint attaches):
        word, *words = line.decode("ascii", "replace").split(" ")
        if word != EXCHANGE_REPLY.decode():
            raise ExchangeRefused(f"the server answered {line.decode('ascii', 'replace')}")
        tokens = dict(token.partition("=")[::2] for token in words)
        try:
            read_offer(self, tokens, attaches)
        except (KeyError, ValueError, OverflowError):
            known = shown(tokens)
            raise MemcacheServerError(f"the server's answer to the RDMA exchange makes no sense: {known}") from None
