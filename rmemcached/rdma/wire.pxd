"""The wire of docs/rdma-protocol.md, versions 1 and 2: its constants, and one codec for both of its ends.

It covers messages (section 5), the request that begins a second connection (section 3), and rdma_cm's private data
(section 9). Functions on borrowed memory: no I/O, no state, no allocation. Integers on the wire are big-endian.
Exchange lines are text: rdma/exchange has the daemon's side of them, client/transport/_exchange the client's.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

from rmemcached.sys.linux cimport be16toh, be32toh, htobe16, htobe32

cdef extern from *:
    """
    #define RMC_RDMA_REQUEST "rdma"
    #define RMC_RDMA_REPLY "RDMA"
    #define RMC_SHM_REQUEST_KEY "SHM ID Req Frame"
    #define RMC_SHM_REPLY_KEY "SHM ID Rep Frame"
    """
    # The first word of an exchange line, and the first octets of rdma_cm's private data.
    const char *EXCHANGE_REQUEST "RMC_RDMA_REQUEST"
    const char *EXCHANGE_REPLY "RMC_RDMA_REPLY"
    # How a soft_shm connection begins. An iWARP stream begins with MPA's own frames.
    const char *SHM_REQUEST_KEY "RMC_SHM_REQUEST_KEY"
    const char *SHM_REPLY_KEY "RMC_SHM_REPLY_KEY"

cdef enum:
    EXCHANGE_WORD_LENGTH = 4     # octets of EXCHANGE_REQUEST, and of EXCHANGE_REPLY
    RDMA_VERSION_1 = 1           # without OPEN and CLOSE; the only one over rdma_cm
    RDMA_VERSION_2 = 2           # the newest
    RDMA_LANES_1 = 64            # lanes of one queue pair in version 1: ids from 0 on
    RDMA_LANES_MAX = 65536       # in version 2

# Limits of the values in an exchange.
cdef enum:
    RDMA_LINE_MAX = 1024         # octets of an exchange line, without \r\n
    RDMA_HOST_MAX = 64           # octets of a host identity
    RDMA_TOKEN_LENGTH = 16
    RDMA_QPN_MAX = 0xffffff      # queue pair and packet sequence numbers have 24 bits
    RDMA_CREDITS_MIN = 2         # DATA needs one besides the last, which is kept for CREDIT
    RDMA_CREDITS_MAX = 1024
    RDMA_MSGSIZE_MIN = 512
    RDMA_MSGSIZE_MAX = 65536
    RDMA_READS_MAX = 128         # ird and ord
    RDMA_MTU_MIN = 256
    RDMA_MTU_MAX = 4096
    RDMA_LANE_BYTES_MIN = 512
    RDMA_LANE_BYTES_MAX = 1 << 20
    RDMA_CREDITS_HELD_MAX = 65535    # a peer that gives an end more than these is broken

ctypedef unsigned int rdma_transport

# The transports of the exchange. A daemon has at most one device for each, at this index of its tables.
cdef enum:
    TRANSPORT_SOFT_IW
    TRANSPORT_SOFT_SHM
    TRANSPORT_VERBS
    RDMA_TRANSPORTS


cdef inline const char *transport_name(rdma_transport transport) noexcept nogil:
    if transport == TRANSPORT_SOFT_IW:
        return b"soft_iw"
    return b"soft_shm" if transport == TRANSPORT_SOFT_SHM else b"verbs"


# ---- section 5: messages ---------------------------------------------------------------------------------------------

cdef enum:
    MESSAGE_HEADER = 8

cdef enum:                       # types of messages
    MESSAGE_DATA = 0
    MESSAGE_CREDIT = 1
    MESSAGE_READY = 2
    MESSAGE_OPEN = 3             # this one and the next: version 2
    MESSAGE_CLOSE = 4
    MESSAGE_USED_MAX = 0xffff

cdef struct message_header:
    uint8_t kind
    uint16_t credits             # receives posted anew since the sender's last message
    uint32_t lane                # in version 2: and what has been used of its payload, see lane_word


cdef inline uint32_t lane_word(uint32_t lane, uint32_t used) noexcept nogil:
    """The field `lane` of version 2: `used` in its upper 16 bits, the lane in its lower."""
    return used << 16 | lane


cdef inline uint32_t word_lane(uint32_t word) noexcept nogil:
    return word & 0xffff


cdef inline uint32_t word_used(uint32_t word) noexcept nogil:
    return word >> 16


cdef inline void put_message_header(char *out, uint8_t kind, uint16_t credits, uint32_t lane) noexcept nogil:
    cdef uint16_t wire_credits = htobe16(credits)
    cdef uint32_t wire_lane = htobe32(lane)
    out[0] = <char>kind
    out[1] = 0
    memcpy(out + 2, &wire_credits, 2)
    memcpy(out + 4, &wire_lane, 4)


cdef inline bint get_message_header(const char *message, size_t length, message_header *out) noexcept nogil:
    """False: the message is shorter than a header."""
    cdef uint16_t credits
    cdef uint32_t lane
    if length < MESSAGE_HEADER:
        return False
    memcpy(&credits, message + 2, 2)
    memcpy(&lane, message + 4, 4)
    out.kind = <uint8_t>message[0]
    out.credits = be16toh(credits)
    out.lane = be32toh(lane)
    return True


# ---- section 3: the second connection --------------------------------------------------------------------------------

cdef enum:
    ATTACH_LENGTH = 4 + RDMA_TOKEN_LENGTH    # which queue pair the connection is for. soft_iw: MPA's private data
    SHM_KEY_LENGTH = 16
    SHM_MEMORY_PARTS = 2         # descriptors with the reply: of the index, and of the arena
    SHM_REQUEST_LENGTH = SHM_KEY_LENGTH + ATTACH_LENGTH

cdef struct attach_request:
    uint32_t qpn
    const uint8_t *token         # RDMA_TOKEN_LENGTH octets in the buffer that was read


cdef inline void put_attach(char *out, uint32_t qpn, const void *token) noexcept nogil:
    """Writes ATTACH_LENGTH octets."""
    cdef uint32_t wire_qpn = htobe32(qpn)
    memcpy(out, &wire_qpn, 4)
    memcpy(out + 4, token, RDMA_TOKEN_LENGTH)


cdef inline void get_attach(const void *data, attach_request *out) noexcept nogil:
    """Reads ATTACH_LENGTH octets."""
    cdef uint32_t qpn
    memcpy(&qpn, data, 4)
    out.qpn = be32toh(qpn)
    out.token = <const uint8_t *>data + 4


cdef inline void put_shm_request(char *out, uint32_t qpn, const void *token) noexcept nogil:
    """Writes SHM_REQUEST_LENGTH octets."""
    memcpy(out, SHM_REQUEST_KEY, SHM_KEY_LENGTH)
    put_attach(out + SHM_KEY_LENGTH, qpn, token)


cdef inline int get_shm_request(const char *data, size_t length, attach_request *out) noexcept nogil:
    """1: whole; 0: more octets are needed; -1: it is no request, or there is something behind it."""
    if memcmp(data, SHM_REQUEST_KEY, min(length, <size_t>SHM_KEY_LENGTH)) != 0 or length > SHM_REQUEST_LENGTH:
        return -1
    if length < SHM_REQUEST_LENGTH:
        return 0
    get_attach(data + SHM_KEY_LENGTH, out)
    return 1


# ---- section 9: the private data of rdma_cm --------------------------------------------------------------------------

cdef enum:
    HELLO_LENGTH = 12            # the client's
    WELCOME_LENGTH = 16          # the server's

cdef struct rdma_hello:
    uint16_t version
    uint16_t credits
    uint32_t msgsize

cdef struct rdma_welcome:
    uint16_t version
    uint16_t credits
    uint32_t msgsize
    uint32_t eager


cdef inline void put_words(char *out, const char *word, uint16_t version, uint16_t credits,
                           uint32_t msgsize) noexcept nogil:
    """What hello and welcome have in common."""
    cdef uint16_t wire_version = htobe16(version)
    cdef uint16_t wire_credits = htobe16(credits)
    cdef uint32_t wire_msgsize = htobe32(msgsize)
    memcpy(out, word, EXCHANGE_WORD_LENGTH)
    memcpy(out + 4, &wire_version, 2)
    memcpy(out + 6, &wire_credits, 2)
    memcpy(out + 8, &wire_msgsize, 4)


cdef inline void get_words(const char *data, uint16_t *version, uint16_t *credits, uint32_t *msgsize) noexcept nogil:
    memcpy(version, data + 4, 2)
    memcpy(credits, data + 6, 2)
    memcpy(msgsize, data + 8, 4)
    version[0] = be16toh(version[0])
    credits[0] = be16toh(credits[0])
    msgsize[0] = be32toh(msgsize[0])


cdef inline void put_hello(char *out, const rdma_hello *hello) noexcept nogil:
    """Writes HELLO_LENGTH octets."""
    put_words(out, EXCHANGE_REQUEST, hello.version, hello.credits, hello.msgsize)


cdef inline bint get_hello(const char *data, size_t length, rdma_hello *out) noexcept nogil:
    """False: it is none. The version may be any."""
    if length < HELLO_LENGTH or memcmp(data, EXCHANGE_REQUEST, EXCHANGE_WORD_LENGTH) != 0:
        return False
    get_words(data, &out.version, &out.credits, &out.msgsize)
    return True


cdef inline void put_welcome(char *out, const rdma_welcome *welcome) noexcept nogil:
    """Writes WELCOME_LENGTH octets."""
    cdef uint32_t eager = htobe32(welcome.eager)
    put_words(out, EXCHANGE_REPLY, welcome.version, welcome.credits, welcome.msgsize)
    memcpy(out + 12, &eager, 4)


cdef inline bint get_welcome(const char *data, size_t length, rdma_welcome *out) noexcept nogil:
    """False: it is none."""
    cdef uint32_t eager
    if length < WELCOME_LENGTH or memcmp(data, EXCHANGE_REPLY, EXCHANGE_WORD_LENGTH) != 0:
        return False
    get_words(data, &out.version, &out.credits, &out.msgsize)
    memcpy(&eager, data + 12, 4)
    out.eager = be32toh(eager)
    return True
