"""The memory and records shared by two processes of one host in soft_shm (docs/soft-rnic.md, section 4).

Each end of a queue pair's stream has one memfd: control words and a ring. Only this end writes them. The peer maps the
memfd, and can map it for reading only (F_SEAL_FUTURE_WRITE). No end trusts the words of its peer: it reads a word once
and then checks the value, copies octets before it parses them, and relies on sealed sizes.

The ring is a sequence of cells. A cell is whole cache lines: a word, then octets. Octets beyond the ring's end continue
at its start. The writer stores the word last, and the word's stamp announces the cell. So the reader reads no index of
the writer, and a short cell is one line.

Integers have the machine's byte order. Counters run freely; counters of octets do not wrap in practice.
"""

cdef enum:
    SHM_VERSION = 2
    SHM_LINE = 64
    SHM_RING_AT = 2 * SHM_LINE       # offset of the ring in the memfd, behind the control words
    SHM_SIZE = 1 << 17
    SHM_RING_SIZE = SHM_SIZE - SHM_RING_AT
    SHM_WORD = 8                     # octets of a cell's word
    SHM_MESSAGE_MAX = 8192           # octets of a message in one cell
    SHM_CHUNK_MAX = 16384 - SHM_WORD  # octets of the stream in one cell
    SHM_RECORD_SIZE = 48
    SHM_SLOTS = 16384                # shared regions of a context at a time
    SHM_REGISTRY_SIZE = SHM_SLOTS * 4

cdef struct shm_page:
    # The first cache line is about data outside the ring, and the stream's end.
    uint32_t records                 # ever sent through the socket
    uint32_t closed                  # not 0: nothing more will come
    uint8_t line0[56]
    # The second cache line is about the opposite direction.
    uint64_t head                    # octets of the peer's ring ever consumed; not updated for each cell
    uint32_t wakeup                  # changes to ask for a wake-up; odd: also after the peer has consumed octets
    uint32_t unused
    uint64_t written                 # address behind the octets copied so far by the last WRITE to the peer's region
    uint8_t line1[40]

# A cell's word: the stamp in its low half, then 16 bits of length, 8 of kind, 8 of flags. The stamp is the number of
# the cell's first line, counted from 1 since the stream began. Before the writer stores a word, it makes sure that the
# place of the next cell does not hold the next stamp by chance: the octets there are from an earlier lap, and a third
# party may have chosen them.
cdef enum:                           # kinds
    SHM_MESSAGE = 1                  # a whole SEND
    SHM_STREAM = 2                   # octets of the stream of FPDUs

cdef enum:                           # flags of a message
    SHM_SOLICITED = 1

# The registry of a context is a memfd mapped for reading by every peer, with a word for each slot: the generation of
# the slot's shared region; 0 without a valid region.
ctypedef uint32_t shm_generation

cdef enum:                           # shm_record.kind
    SHM_HELLO = 0x524d4301           # with descriptors of the memory (page and ring), the registry, perhaps the bell
    SHM_WAKEUP = 0x524d4302
    SHM_OFFER = 0x524d4303           # with a descriptor: a region's memory
    SHM_ANSWER = 0x524d4304          # to an offer, repeated except for `access`
    SHM_SEALED = 0x524d4305          # repeats the answer: the memory is sealed

cdef enum:                           # bits of shm_record.access, with the record's kind
    SHM_ANSWERS = 1                  # HELLO: this end understands answers, and so gets an answer to each offer
    SHM_HAS_BELL = 2                 # HELLO: a third descriptor comes, this end's bell
    SHM_MAPPED = 1                   # ANSWER: the region is mapped; the peer uses the mapping after the owner's seal

cdef struct shm_record:              # a message through the socket, always whole: SHM_RECORD_SIZE octets
    uint32_t kind
    uint32_t version                 # HELLO
    uint32_t ring_size               # HELLO
    uint16_t ird                     # HELLO
    uint16_t ord                     # HELLO
    uint32_t stag                    # OFFER, as the next five
    uint32_t slot
    shm_generation generation
    uint32_t access                  # of enum ibv_access_flags: remote read, or remote read and write; and see above
    uint64_t addr                    # of the owner
    uint64_t length

cdef struct shm_stream
cdef struct shm_context
