"""The wire of docs/rdma-protocol.md: its constants, and one codec for the daemon and the client.

The codec covers messages (section 5), the request at the beginning of a second connection (section 3), and rdma_cm's
private data (section 9). Functions on borrowed memory: no I/O, no state, no allocation. Integers on the wire are
big-endian. Exchange lines are text: see rdma/exchange for the daemon, client/transport/_exchange for the client.
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
    # The first 16 octets on the second connection of soft_shm, from the client and from the daemon. A stream of soft_iw
    # begins with MPA's own frames.
    const char *SHM_REQUEST_KEY "RMC_SHM_REQUEST_KEY"
    const char *SHM_REPLY_KEY "RMC_SHM_REPLY_KEY"

cdef enum:
    EXCHANGE_WORD_LENGTH = 4     # octets of EXCHANGE_REQUEST, and of EXCHANGE_REPLY
    RDMA_VERSION = 2
    RDMA_LANES_MAX = 65536       # lanes of one queue pair: ids are 16 bits

# Limits of the values in an exchange.
cdef enum:
    RDMA_LINE_MAX = 1024         # octets of an exchange line, without \r\n
    RDMA_HOST_MAX = 64           # octets of a host identity
    RDMA_TOKEN_LENGTH = 16
    RDMA_QPN_MAX = 0xffffff      # queue pair and packet sequence numbers have 24 bits
    RDMA_CREDITS_MIN = 2         # a credit for DATA, and the last credit, which is kept for CREDIT
    RDMA_CREDITS_MAX = 1024
    RDMA_MSGSIZE_MIN = 512
    RDMA_MSGSIZE_MAX = 65536
    RDMA_READS_MAX = 128         # ird and ord
    RDMA_MTU_MIN = 256
    RDMA_MTU_MAX = 4096
    RDMA_LANE_BYTES_MIN = 512
    RDMA_LANE_BYTES_MAX = 1 << 20
    RDMA_CREDITS_HELD_MAX = 65535    # a peer that gives an end more credits is broken

ctypedef unsigned int rdma_transport

# The transports of the exchange. A daemon has at most one device for a transport, at this index of its tables.
cdef enum:
    TRANSPORT_SOFT_IW
    TRANSPORT_SOFT_SHM
    TRANSPORT_VERBS
    RDMA_TRANSPORTS


cdef extern from *:
    """
    static inline const char *rmc_transport_name(unsigned int transport) {
        static const char *const names[] = {"soft_iw", "soft_shm", "verbs"};
        return transport < sizeof(names) / sizeof(names[0]) ? names[transport] : "";
    }
    """
    # The names are in the order of the numbers. A number without a name has an empty name.
    const char *transport_name "rmc_transport_name"(rdma_transport transport) nogil


# ---- section 5: messages ---------------------------------------------------------------------------------------------

cdef enum:
    MESSAGE_HEADER = 8

cdef enum:                       # types of messages
    MESSAGE_DATA = 0
    MESSAGE_CREDIT = 1
    MESSAGE_READY = 2
    MESSAGE_OPEN = 3
    MESSAGE_CLOSE = 4
    MESSAGE_USED_MAX = 0xffff

cdef struct message_header:
    uint8_t kind
    uint16_t credits             # receives posted anew since the sender's last message
    uint16_t used                # bytes of the lane's payload used by the sender since its last DATA message
    uint16_t lane


cdef inline void put_message_header(char *out, uint8_t kind, uint16_t credits, uint16_t used,
                                    uint16_t lane) noexcept nogil:
    cdef uint16_t wire_credits = htobe16(credits)
    cdef uint16_t wire_used = htobe16(used)
    cdef uint16_t wire_lane = htobe16(lane)
    out[0] = <char>kind
    out[1] = 0
    memcpy(out + 2, &wire_credits, 2)
    memcpy(out + 4, &wire_used, 2)
    memcpy(out + 6, &wire_lane, 2)


cdef inline bint get_message_header(const char *message, size_t length, message_header *out) noexcept nogil:
    """Reads a header. False: the message is shorter than a header."""
    cdef uint16_t credits, used, lane
    if length < MESSAGE_HEADER:
        return False
    memcpy(&credits, message + 2, 2)
    memcpy(&used, message + 4, 2)
    memcpy(&lane, message + 6, 2)
    out.kind = <uint8_t>message[0]
    out.credits = be16toh(credits)
    out.used = be16toh(used)
    out.lane = be16toh(lane)
    return True


# ---- section 3: the second connection --------------------------------------------------------------------------------

cdef enum:
    ATTACH_LENGTH = 4 + RDMA_TOKEN_LENGTH    # number and token of the queue pair. soft_iw: MPA's private data
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
    """Reads a request. 1: whole; 0: more octets are needed; -1: the data is no request, or more than a request."""
    if memcmp(data, SHM_REQUEST_KEY, min(length, <size_t>SHM_KEY_LENGTH)) != 0 or length > SHM_REQUEST_LENGTH:
        return -1
    if length < SHM_REQUEST_LENGTH:
        return 0
    get_attach(data + SHM_KEY_LENGTH, out)
    return 1


# ---- section 9: the private data of rdma_cm --------------------------------------------------------------------------

cdef enum:
    HELLO_LENGTH = 16            # the client's
    WELCOME_LENGTH = 36          # the server's

cdef struct rdma_hello:
    uint16_t version
    uint16_t credits
    uint32_t msgsize
    uint32_t lane_bytes

cdef struct rdma_welcome:
    rdma_hello both              # the fields of a hello
    uint32_t eager
    uint32_t lanes
    uint32_t workers
    uint32_t worker
    uint32_t direct              # 1: the client can READ items (docs/direct-reads.md)


cdef inline void put_number(char *out, uint32_t number) noexcept nogil:
    cdef uint32_t wire = htobe32(number)
    memcpy(out, &wire, 4)


cdef inline uint32_t get_number(const char *data) noexcept nogil:
    cdef uint32_t wire
    memcpy(&wire, data, 4)
    return be32toh(wire)


cdef inline void put_first(char *out, const char *word, const rdma_hello *hello) noexcept nogil:
    """Writes the first HELLO_LENGTH octets of a hello or a welcome."""
    memcpy(out, word, EXCHANGE_WORD_LENGTH)
    put_number(out + 4, <uint32_t>hello.version << 16 | hello.credits)
    put_number(out + 8, hello.msgsize)
    put_number(out + 12, hello.lane_bytes)


cdef inline bint get_first(const char *data, const char *word, rdma_hello *out) noexcept nogil:
    cdef uint32_t numbers = get_number(data + 4)
    out.version = <uint16_t>(numbers >> 16)
    out.credits = <uint16_t>numbers
    out.msgsize = get_number(data + 8)
    out.lane_bytes = get_number(data + 12)
    return memcmp(data, word, EXCHANGE_WORD_LENGTH) == 0


cdef inline void put_hello(char *out, const rdma_hello *hello) noexcept nogil:
    """Writes HELLO_LENGTH octets."""
    put_first(out, EXCHANGE_REQUEST, hello)


cdef inline bint get_hello(const char *data, size_t length, rdma_hello *out) noexcept nogil:
    """Reads a hello. False: the data is no hello. The caller checks the version."""
    return length >= HELLO_LENGTH and get_first(data, EXCHANGE_REQUEST, out)


cdef inline void put_welcome(char *out, const rdma_welcome *welcome) noexcept nogil:
    """Writes WELCOME_LENGTH octets."""
    put_first(out, EXCHANGE_REPLY, &welcome.both)
    put_number(out + 16, welcome.eager)
    put_number(out + 20, welcome.lanes)
    put_number(out + 24, welcome.workers)
    put_number(out + 28, welcome.worker)
    put_number(out + 32, welcome.direct)


cdef inline bint get_welcome(const char *data, size_t length, rdma_welcome *out) noexcept nogil:
    """Reads a welcome. False: the data is no welcome. The caller checks the version."""
    if length < WELCOME_LENGTH or not get_first(data, EXCHANGE_REPLY, &out.both):
        return False
    out.eager = get_number(data + 16)
    out.lanes = get_number(data + 20)
    out.workers = get_number(data + 24)
    out.worker = get_number(data + 28)
    out.direct = get_number(data + 32)
    return True
