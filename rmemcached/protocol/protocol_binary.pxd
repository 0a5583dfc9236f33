"""The wire format of the binary protocol, from memcached's protocol_binary.h.

For readers and writers of packets (`binary`, `stats_text`), and for modules that tell the protocols apart by the first
byte (`drive_machine`, `server/udp`).
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    PROTOCOL_BINARY_REQ = 0x80       # magic of a request; a connection with this first byte speaks binary
    PROTOCOL_BINARY_RES = 0x81

cdef enum protocol_binary_response_status:
    PROTOCOL_BINARY_RESPONSE_SUCCESS = 0x00
    PROTOCOL_BINARY_RESPONSE_KEY_ENOENT = 0x01
    PROTOCOL_BINARY_RESPONSE_KEY_EEXISTS = 0x02
    PROTOCOL_BINARY_RESPONSE_E2BIG = 0x03
    PROTOCOL_BINARY_RESPONSE_EINVAL = 0x04
    PROTOCOL_BINARY_RESPONSE_NOT_STORED = 0x05
    PROTOCOL_BINARY_RESPONSE_DELTA_BADVAL = 0x06
    PROTOCOL_BINARY_RESPONSE_AUTH_ERROR = 0x20
    PROTOCOL_BINARY_RESPONSE_AUTH_CONTINUE = 0x21
    PROTOCOL_BINARY_RESPONSE_UNKNOWN_COMMAND = 0x81
    PROTOCOL_BINARY_RESPONSE_ENOMEM = 0x82

cdef enum protocol_binary_command:   # a quiet command's name ends in Q
    PROTOCOL_BINARY_CMD_GET = 0x00
    PROTOCOL_BINARY_CMD_SET = 0x01
    PROTOCOL_BINARY_CMD_ADD = 0x02
    PROTOCOL_BINARY_CMD_REPLACE = 0x03
    PROTOCOL_BINARY_CMD_DELETE = 0x04
    PROTOCOL_BINARY_CMD_INCREMENT = 0x05
    PROTOCOL_BINARY_CMD_DECREMENT = 0x06
    PROTOCOL_BINARY_CMD_QUIT = 0x07
    PROTOCOL_BINARY_CMD_FLUSH = 0x08
    PROTOCOL_BINARY_CMD_GETQ = 0x09
    PROTOCOL_BINARY_CMD_NOOP = 0x0a
    PROTOCOL_BINARY_CMD_VERSION = 0x0b
    PROTOCOL_BINARY_CMD_GETK = 0x0c
    PROTOCOL_BINARY_CMD_GETKQ = 0x0d
    PROTOCOL_BINARY_CMD_APPEND = 0x0e
    PROTOCOL_BINARY_CMD_PREPEND = 0x0f
    PROTOCOL_BINARY_CMD_STAT = 0x10
    PROTOCOL_BINARY_CMD_SETQ = 0x11          # from here to FLUSHQ: 0x10 above the command that always replies
    PROTOCOL_BINARY_CMD_FLUSHQ = 0x18
    PROTOCOL_BINARY_CMD_APPENDQ = 0x19
    PROTOCOL_BINARY_CMD_PREPENDQ = 0x1a
    PROTOCOL_BINARY_CMD_TOUCH = 0x1c
    PROTOCOL_BINARY_CMD_GAT = 0x1d
    PROTOCOL_BINARY_CMD_GATQ = 0x1e
    PROTOCOL_BINARY_CMD_SASL_LIST_MECHS = 0x20
    PROTOCOL_BINARY_CMD_SASL_AUTH = 0x21
    PROTOCOL_BINARY_CMD_SASL_STEP = 0x22
    PROTOCOL_BINARY_CMD_GATK = 0x23
    PROTOCOL_BINARY_CMD_GATKQ = 0x24

# The header of requests and responses: 24 bytes without padding. Numbers are in network order on the wire, and in host
# order once decoded.
cdef struct protocol_binary_header:
    uint8_t magic
    uint8_t opcode
    uint16_t keylen
    uint8_t extlen
    uint8_t datatype         # 0
    uint16_t status          # of a response; a request has a vbucket here, ignored by us
    uint32_t bodylen         # extras, key and value together
    uint32_t opaque          # returned unchanged
    uint64_t cas
