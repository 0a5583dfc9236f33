"""What two processes of one host share in the fabric soft_shm: layout of memory and records. See docs/soft-rnic.md.

Each end of a queue pair's stream writes one memfd, its *page and ring*; the other end maps it, and can map it, for
reading only (F_SEAL_FUTURE_WRITE). So everything here has one writer, and what the peer wrote is not trusted: counters
are checked, octets are copied out before they are looked at, sizes are sealed.

Integers in the byte order of the machine. Counters run freely; those of octets do not wrap in practice.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    SHM_VERSION = 1
    SHM_RING_AT = 4096               # of the memfd; the page is before it
    SHM_RING_SIZE = 1 << 17          # power of two
    SHM_SIZE = SHM_RING_AT + SHM_RING_SIZE
    SHM_RECORD_SIZE = 48
    SHM_SLOTS = 16384                # regions of a context that can be shared at a time
    SHM_REGISTRY_SIZE = SHM_SLOTS * 4

cdef struct shm_page:
    # First cache line: changes when there is something for the peer.
    uint64_t tail                    # octets ever written to the ring that follows the page
    uint32_t records                 # records ever sent through the socket
    uint32_t closed                  # not 0: nothing more will come
    uint8_t line0[48]
    # Second cache line: of the other direction.
    uint64_t head                    # octets ever consumed of the peer's ring
    uint32_t wish                    # changed to ask for a bell; odd: also when the peer has consumed
    uint8_t line1[52]

# One word for each slot of a context: the generation of the shared region that has it, 0 once that is not valid.
# A memfd of its own, one for the context, which every peer maps for reading.
ctypedef uint32_t shm_generation

cdef enum:                           # shm_record.kind
    SHM_HELLO = 0x524d4301           # with two descriptors: page and ring, and registry
    SHM_BELL = 0x524d4302
    SHM_OFFER = 0x524d4303           # with one descriptor: a region's memory

cdef struct shm_record:              # what goes through the socket, always whole: SHM_RECORD_SIZE octets
    uint32_t kind
    uint32_t version                 # HELLO
    uint32_t ring_size               # HELLO
    uint16_t ird                     # HELLO
    uint16_t ord                     # HELLO
    uint32_t stag                    # OFFER, as the next five
    uint32_t slot
    shm_generation generation
    uint32_t access                  # of enum ibv_access_flags: remote read, or remote read and write
    uint64_t addr                    # of the owner
    uint64_t length
