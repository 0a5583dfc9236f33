"""iWARP frames: constants, and the coding of MPA, DDP and RDMAP headers (RFC 5044, 6581, 5041, 5040, 7306).

The functions work on plain memory, without I/O, state or allocation. Integers on the wire are big-endian, except MPA's
CRC32c: the usual reflected value in little-endian order.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from rmemcached.sys.linux cimport be16toh, be32toh, be64toh, htobe16, htobe32, htobe64, htole32, le32toh


cdef extern from "<isa-l/crc.h>" nogil:
    unsigned int crc32_iscsi(unsigned char *buffer, int length, unsigned int crc) noexcept


# The frames of MPA's start-up.
cdef extern from *:
    """
    #define RMC_MPA_REQUEST_KEY "MPA ID Req Frame"
    #define RMC_MPA_REPLY_KEY "MPA ID Rep Frame"
    """
    const char *MPA_REQUEST_KEY "RMC_MPA_REQUEST_KEY"
    const char *MPA_REPLY_KEY "RMC_MPA_REPLY_KEY"

cdef enum:
    MPA_KEY_SIZE = 16
    MPA_START_SIZE = 20              # key, flags, revision, PD_Length
    MPA_PRIVATE_MAX = 512
    MPA_FLAG_MARKERS = 0x80
    MPA_FLAG_CRC = 0x40
    MPA_FLAG_REJECT = 0x20
    MPA_FLAG_ENHANCED = 0x10
    MPA_ENHANCED_SIZE = 4            # the IRD and ORD words before the ULP's private data
    MPA_P2P = 0x8000                 # A, of the IRD word
    MPA_RTR_SEND = 0x4000            # B, of the IRD word
    MPA_RTR_WRITE = 0x8000           # C, of the ORD word
    MPA_RTR_READ = 0x4000            # D, of the ORD word
    MPA_DEPTH_MASK = 0x3fff          # as a value: no negotiation of this depth
    RTR_STAG = 1                     # STag of the ready-to-receive frame, a zero-length WRITE; nobody looks it up

# Sizes of FPDUs. The sizes of headers include the two octets of MPA's ULPDU_Length.
cdef enum:
    ULPDU_MAX = 65535
    MULPDU_MIN = 128                 # RFC 5044 section 6.1
    TAGGED_HEADER = 16
    UNTAGGED_HEADER = 20
    HEADER_MAX = 20
    READ_REQUEST_PAYLOAD = 28
    IMMEDIATE_PAYLOAD = 8            # verbs' immediate, 4 octets, then zeros
    ATOMIC_REQUEST_PAYLOAD = 52
    ATOMIC_RESPONSE_PAYLOAD = 12
    FPDU_TRAILER_MAX = 7             # pad and CRC
    TERMINATE_PAYLOAD_MAX = 4 + UNTAGGED_HEADER + READ_REQUEST_PAYLOAD

cdef enum:
    DDP_TAGGED = 0x80
    DDP_LAST = 0x40
    DDP_VERSION = 0x01
    DDP_VERSION_MASK = 0x03
    RDMAP_VERSION = 0x40
    RDMAP_VERSION_MASK = 0xc0
    RDMAP_OPCODE_MASK = 0x0f

cdef enum:                           # DDP queue numbers
    QN_SEND = 0
    QN_READ_REQUEST = 1
    QN_TERMINATE = 2
    QN_ATOMIC_RESPONSE = 3

cdef enum:                           # RDMAP opcodes
    OP_WRITE = 0
    OP_READ_REQUEST = 1
    OP_READ_RESPONSE = 2
    OP_SEND = 3
    OP_SEND_INVALIDATE = 4
    OP_SEND_SE = 5
    OP_SEND_SE_INVALIDATE = 6
    OP_TERMINATE = 7
    OP_IMMEDIATE = 8                 # RFC 7306, as the next three
    OP_IMMEDIATE_SE = 9
    OP_ATOMIC_REQUEST = 10           # in the queue of READ requests, with their message numbers
    OP_ATOMIC_RESPONSE = 11
    # Our own: a SEND with verbs' immediate in the place of the STag to invalidate. RFC 7306 has no such message.
    OP_SEND_IMMEDIATE = 12
    OP_SEND_SE_IMMEDIATE = 13

cdef enum:                           # the code of an atomic request; with a compare mask of 0 a CmpSwap is a Swap
    ATOMIC_FETCH_ADD = 0
    ATOMIC_CMP_SWAP = 2

# Terminate errors: layer << 12 | type << 8 | code (RFC 5040 4.8, RFC 5041 8.2, RFC 5044 8, RFC 6581 8).
cdef enum:
    TERM_LOCAL_CATASTROPHIC = 0x0000
    TERM_PROTECTION_STAG = 0x0100
    TERM_PROTECTION_BOUNDS = 0x0101
    TERM_PROTECTION_ACCESS = 0x0102
    TERM_PROTECTION_STREAM = 0x0103
    TERM_PROTECTION_WRAP = 0x0104
    TERM_CANNOT_INVALIDATE = 0x0109
    TERM_RDMAP_VERSION = 0x0205
    TERM_UNEXPECTED_OPCODE = 0x0206
    TERM_STREAM_CATASTROPHIC = 0x0207
    TERM_DDP_CATASTROPHIC = 0x1000
    TERM_TAGGED_STAG = 0x1100
    TERM_TAGGED_BOUNDS = 0x1101
    TERM_TAGGED_STREAM = 0x1102
    TERM_TAGGED_WRAP = 0x1103
    TERM_TAGGED_VERSION = 0x1104
    TERM_UNTAGGED_QN = 0x1201
    TERM_UNTAGGED_NO_BUFFER = 0x1202
    TERM_UNTAGGED_MSN = 0x1203
    TERM_UNTAGGED_MO = 0x1204
    TERM_UNTAGGED_TOO_LONG = 0x1205
    TERM_UNTAGGED_VERSION = 0x1206
    TERM_MPA_CRC = 0x2002
    TERM_MPA_INSUFFICIENT_IRD = 0x2006
    TERM_MPA_NO_RTR = 0x2007

cdef enum:                           # third octet of a Terminate
    TERM_HAS_LENGTH = 0x80           # M
    TERM_HAS_DDP = 0x40              # D
    TERM_HAS_RDMAP = 0x20            # R

cdef struct ddp_header:              # a tagged or untagged header, decoded
    uint16_t ulpdu                   # octets behind ULPDU_Length
    uint16_t payload                 # octets behind the DDP header; valid when ulpdu is long enough for the header
    uint8_t control
    uint8_t rdmap
    uint8_t opcode
    bint tagged
    bint last
    uint32_t stag                    # tagged: the STag; untagged: the STag to invalidate
    uint64_t to                      # tagged
    uint32_t qn                      # untagged
    uint32_t msn
    uint32_t mo

cdef struct read_request:
    uint32_t sink_stag
    uint64_t sink_to
    uint32_t length
    uint32_t source_stag
    uint64_t source_to

cdef struct atomic_request:
    uint8_t code
    uint32_t id                      # chosen by the requester, and repeated by the response
    uint32_t stag
    uint64_t to                      # a multiple of 8
    uint64_t data                    # to add, or to swap in
    uint64_t mask
    uint64_t compare
    uint64_t compare_mask

cdef struct atomic_response:
    uint32_t id
    uint64_t original                # the value before the operation

cdef struct terminate_error:
    uint32_t error                   # layer << 12 | type << 8 | code
    bint about_read                  # the offending segment was a Read Request
    bint swapped                     # in the bit order of siw on little-endian machines


cdef inline void put16(uint8_t *p, uint16_t value) noexcept nogil:
    cdef uint16_t wire = htobe16(value)
    memcpy(p, &wire, 2)


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    cdef uint32_t wire = htobe32(value)
    memcpy(p, &wire, 4)


cdef inline void put64(uint8_t *p, uint64_t value) noexcept nogil:
    cdef uint64_t wire = htobe64(value)
    memcpy(p, &wire, 8)


cdef inline uint16_t get16(const uint8_t *p) noexcept nogil:
    cdef uint16_t wire
    memcpy(&wire, p, 2)
    return be16toh(wire)


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    cdef uint32_t wire
    memcpy(&wire, p, 4)
    return be32toh(wire)


cdef inline uint64_t get64(const uint8_t *p) noexcept nogil:
    cdef uint64_t wire
    memcpy(&wire, p, 8)
    return be64toh(wire)


cdef inline uint32_t crc32c_add(uint32_t state, const void *data, size_t length) noexcept nogil:
    """The CRC32c state after more octets, at most 2**31 - 1. The state starts as 0xffffffff."""
    return crc32_iscsi(<unsigned char *> data, <int> length, state)


cdef inline void put_crc(uint8_t *p, uint32_t state) noexcept nogil:
    cdef uint32_t wire = htole32(state ^ 0xffffffffU)
    memcpy(p, &wire, 4)


cdef inline bint crc_matches(const uint8_t *p, uint32_t state) noexcept nogil:
    cdef uint32_t wire
    memcpy(&wire, p, 4)
    return le32toh(wire) == (state ^ 0xffffffffU)


cdef inline uint32_t fpdu_pad(uint32_t ulpdu) noexcept nogil:
    """The octets of padding that make length field and ULPDU a multiple of four."""
    return (0 - (2 + ulpdu)) & 3


cdef inline uint32_t fpdu_size(uint32_t ulpdu) noexcept nogil:
    return 2 + ulpdu + fpdu_pad(ulpdu) + 4


cdef inline uint32_t mulpdu_of(uint32_t segment) noexcept nogil:
    """The longest ULPDU whose FPDU, without markers, fits one TCP segment of this size (RFC 5044 section 4.4)."""
    if segment < MULPDU_MIN + 6:
        return MULPDU_MIN
    segment -= 6 + segment % 4
    return segment if segment <= ULPDU_MAX else ULPDU_MAX


cdef inline void put_tagged(uint8_t *p, uint8_t opcode, bint last, uint32_t payload, uint32_t stag,
                            uint64_t to) noexcept nogil:
    put16(p, <uint16_t> (TAGGED_HEADER - 2 + payload))
    p[2] = DDP_TAGGED | (DDP_LAST if last else 0) | DDP_VERSION
    p[3] = RDMAP_VERSION | opcode
    put32(p + 4, stag)
    put64(p + 8, to)


cdef inline void put_untagged(uint8_t *p, uint8_t opcode, bint last, uint32_t payload, uint32_t invalidate, uint32_t qn,
                              uint32_t msn, uint32_t mo) noexcept nogil:
    """Parameters: the header's fields, in their order."""
    put16(p, <uint16_t> (UNTAGGED_HEADER - 2 + payload))
    p[2] = (DDP_LAST if last else 0) | DDP_VERSION
    p[3] = RDMAP_VERSION | opcode
    put32(p + 4, invalidate)
    put32(p + 8, qn)
    put32(p + 12, msn)
    put32(p + 16, mo)


cdef inline void put_read_request(uint8_t *p, const read_request *request) noexcept nogil:
    put32(p, request.sink_stag)
    put64(p + 4, request.sink_to)
    put32(p + 12, request.length)
    put32(p + 16, request.source_stag)
    put64(p + 20, request.source_to)


cdef inline void get_read_request(const uint8_t *p, read_request *out) noexcept nogil:
    out.sink_stag = get32(p)
    out.sink_to = get64(p + 4)
    out.length = get32(p + 12)
    out.source_stag = get32(p + 16)
    out.source_to = get64(p + 20)


cdef inline int get_header(const uint8_t *p, size_t received, ddp_header *out) noexcept nogil:
    """Decodes an FPDU's header. 1: done; 0: more octets are needed; -1: ULPDU_Length is too small for the header."""
    cdef uint32_t size
    if received < 4:
        return 0
    memset(out, 0, sizeof(out[0]))
    out.ulpdu = get16(p)
    out.control = p[2]
    out.rdmap = p[3]
    out.opcode = p[3] & RDMAP_OPCODE_MASK
    out.tagged = (p[2] & DDP_TAGGED) != 0
    out.last = (p[2] & DDP_LAST) != 0
    size = TAGGED_HEADER if out.tagged else UNTAGGED_HEADER
    if out.ulpdu + 2U < size:
        return -1
    if received < size:
        return 0
    out.payload = <uint16_t> (out.ulpdu + 2 - size)
    out.stag = get32(p + 4)
    if out.tagged:
        out.to = get64(p + 8)
    else:
        out.qn = get32(p + 8)
        out.msn = get32(p + 12)
        out.mo = get32(p + 16)
    return 1


cdef inline uint32_t put_terminate(uint8_t *p, uint32_t error, const uint8_t *segment,
                                   uint32_t received) noexcept nogil:
    """Writes a Terminate payload (at most TERMINATE_PAYLOAD_MAX octets) and gives its length.

    `segment` is the offending FPDU from its ULPDU_Length on, or NULL; `received` octets of the FPDU are there.
    """
    cdef uint32_t used = 4
    cdef uint32_t header
    p[0] = <uint8_t> (error >> 8)
    p[1] = <uint8_t> error
    p[2] = 0
    p[3] = 0
    # A local catastrophe and errors of the LLP are reported without a header (RFC 5040 figure 10).
    if segment == NULL or received < HEADER_MAX or error >> 8 == 0 or error >> 12 == 2:
        return used
    header = TAGGED_HEADER if segment[2] & DDP_TAGGED else UNTAGGED_HEADER
    p[2] = TERM_HAS_LENGTH | TERM_HAS_DDP
    memcpy(p + used, segment, header)
    used += header
    if (error >> 8 == 1 and not segment[2] & DDP_TAGGED and (segment[3] & RDMAP_OPCODE_MASK) == OP_READ_REQUEST
            and received >= UNTAGGED_HEADER + READ_REQUEST_PAYLOAD):
        p[2] |= TERM_HAS_RDMAP
        memcpy(p + used, segment + UNTAGGED_HEADER, READ_REQUEST_PAYLOAD)
        used += READ_REQUEST_PAYLOAD
    return used


cdef inline int get_terminate(const uint8_t *p, uint32_t length, terminate_error *out) noexcept nogil:
    """Decodes a Terminate payload, in RFC 5040's bit order or in siw's on little-endian machines. -1: too short."""
    cdef uint32_t layer, etype, flags
    if length < 4:
        return -1
    layer = p[0] >> 4
    etype = p[0] & 15
    flags = p[2]
    # siw's order has the flags in the low bits. If no flag is set, siw's order shows only by a layer or type impossible
    # in RFC 5040's order.
    out.swapped = (flags & 0xe0) == 0 and (flags & 0x07) != 0
    if flags == 0 and (layer > 2 or (layer == 2 and etype != 0)) and etype <= 2:
        out.swapped = True
    if out.swapped:
        layer, etype = etype, layer
        flags = (0x80 if flags & 1 else 0) | (0x40 if flags & 2 else 0) | (0x20 if flags & 4 else 0)
    out.error = layer << 12 | etype << 8 | p[1]
    out.about_read = (flags & TERM_HAS_RDMAP) != 0
    if not out.about_read and flags & TERM_HAS_DDP and length >= 8:
        out.about_read = not p[6] & DDP_TAGGED and (p[7] & RDMAP_OPCODE_MASK) == OP_READ_REQUEST
    return 0
