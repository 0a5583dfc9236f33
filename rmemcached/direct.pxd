"""The daemon's memory, as clients read it directly (docs/direct-reads.md): its layout, and how clients read it.

The store writes the memory in this layout; a client maps the memory for reading. No function here waits, allocates or
needs the GIL, except direct_map and direct_unmap.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.key_hash cimport hash_secrets, xxh3

cdef enum:
    DIRECT_VERSION = 5
    DIRECT_HEADER = 4096         # bytes before the index
    DIRECT_LIFE = 1 << 21        # bytes before the arena, in its file: the head, with the mutex (memory_file.pxd)
    DIRECT_LENGTH_BITS = 41      # the memory is shorter than 2 to this power
    DIRECT_SLOTS = 20
    # A slot has, from the lowest bit on: the number of the item's chunk (direct_chunks.place_bits), the slab class,
    # whether the item has a seal, and the tag: as many of the hash's upper bits as there is room for.
    DIRECT_SLOT_BITS = 48
    DIRECT_CLASS_BITS = 6
    DIRECT_SEALED_BITS = 1
    DIRECT_TAG_MOST = 16
    DIRECT_TAG_LEAST = 4
    DIRECT_PLACE_MOST = DIRECT_SLOT_BITS - DIRECT_CLASS_BITS - DIRECT_SEALED_BITS - DIRECT_TAG_LEAST
    DIRECT_CLASSES = 1 << DIRECT_CLASS_BITS
    DIRECT_PAGE_BITS = 20        # a slab page has 2 to this power bytes
    DIRECT_READ = 65536          # bytes of the longest item with a seal, seal included
    DIRECT_QUEUES = 256          # LRU queues: slab class | queue << 6
    DIRECT_NAMED = 64            # items named in a line of hits, at most
    DIRECT_LINE = 2048           # bytes of a line of hits, at most

# Flags in an item's it_flags, memcached's values. store.pxd has the store's flags.
cdef enum direct_item_flag:
    DIRECT_LINKED = 1
    DIRECT_WITH_CAS = 2
    DIRECT_SLABBED = 4
    DIRECT_FETCHED = 8
    DIRECT_ACTIVE = 16
    DIRECT_CHUNKED = 32
    DIRECT_CHUNK = 64
    DIRECT_ELSEWHERE = 128       # the value is not in the memory: such items are not in the index
    DIRECT_WITH_FLAGS = 256      # the client's, 4 bytes
    DIRECT_TOKEN_SENT = 512
    DIRECT_STALE = 2048
    DIRECT_FREQUENCY_ONE = 8192  # 1 in S3-FIFO's count of fetches, 0 to 3

cdef extern from *:
    """
    #define RMC_DIRECT_MAGIC "rmemcach"
    """
    const char *DIRECT_MAGIC "RMC_DIRECT_MAGIC"

cdef enum direct_algorithm:      # when a get matters to eviction, so that the daemon wants to hear of a hit
    DIRECT_SEGMENTED             # while the item is not active
    DIRECT_S3FIFO                # while the item's count is less than 3, and a minute after its last noted use
    DIRECT_FLAT                  # at the first get, and a minute after the item's last noted use

cdef struct direct_bucket:
    uint64_t version             # odd: a writer is changing the bucket
    uint32_t lower[DIRECT_SLOTS]     # of slots, their lower 32 bits,
    uint16_t upper[DIRECT_SLOTS]     # ... and the upper 16

cdef struct direct_chunks:       # where the chunks of items are, and how slots name them
    uint64_t arena               # bytes from the header to the first slab page
    # A chunk's number has place_bits: in the lowest chunk_bits its number in the page, above the page's number.
    uint32_t chunk_bits
    uint32_t place_bits
    uint32_t sizes[DIRECT_CLASSES]   # bytes of a chunk of each slab class

cdef struct direct_header:
    # constant
    char magic[8]
    uint32_t layout              # DIRECT_VERSION
    uint32_t sealed              # items have seals
    uint64_t length              # of header, index, and the part of the arena covered by the index
    uint64_t base                # the daemon's address of this header
    uint64_t index               # bytes from the header to the first bucket
    uint64_t most                # most buckets the index has room for
    uint64_t alive               # bytes from the header to the word of the robust mutex that the kernel writes
    hash_secrets hash
    direct_chunks chunks
    char pad[248]
    # relaxed atomic; a single cache line
    uint64_t buckets
    uint32_t current_time        # as the store's clock
    uint32_t oldest_live
    uint32_t ended               # the daemon stops, or keeps this index no more: nobody reads any more
    uint32_t algorithm           # a direct_algorithm; `lru mode` changes the value
    int64_t beat                 # coarse_ms() when the daemon last set the clock
    uint64_t used                # bytes of the arena in use as slab pages; only grows. 0: unknown
    char pad_after_clock[24]

# An item and a chunk, as readers see them: store.pxd's structures.
cdef struct direct_item:
    uint64_t links[3]
    uint32_t time
    uint32_t exptime
    int32_t nbytes
    uint16_t refcount
    uint16_t it_flags
    uint8_t slabs_clsid
    uint8_t nkey

cdef struct direct_chunk:
    uint64_t next                # an address of the daemon's
    uint64_t links[2]
    int32_t size
    int32_t used
    int32_t nbytes
    uint16_t refcount
    uint16_t it_flags
    uint8_t slabs_clsid
    uint8_t orig_clsid

cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long value) nogil

cdef inline uint64_t direct_power(uint64_t buckets) noexcept nogil:
    """The largest power of two up to a positive number."""
    return <uint64_t>1 << (63 - leading_zeros(buckets))

cdef inline uint64_t direct_bucket_of(uint32_t hv, uint64_t buckets) noexcept nogil:
    """The bucket of a hash, by linear hashing."""
    cdef uint64_t mask = direct_power(buckets) * 2 - 1
    return hv & mask if hv & mask < buckets else hv & (mask >> 1)

cdef inline uint64_t direct_most(uint64_t arena_length) noexcept nogil:
    """The most buckets of an index for so much memory: some ten items in each, if all items are the smallest possible.
    The number of item locks is never larger.
    """
    return max(<uint64_t>1 << 15, arena_length // 960)

cdef inline uint64_t direct_bytes(uint64_t arena_length) noexcept nogil:
    """Bytes of header and index before an arena of this length: whole huge pages."""
    return (DIRECT_HEADER + direct_most(arena_length) * sizeof(direct_bucket) + 0x1fffff) & ~<uint64_t>0x1fffff

# --- slots; 0 is an empty slot, since no item has slab class 0 ---

cdef inline uint64_t direct_slot(const direct_bucket *bucket, int i) noexcept nogil:
    return <uint64_t>relaxed_load(&(<direct_bucket *>bucket).upper[i]) << 32 \
        | <uint64_t>relaxed_load(&(<direct_bucket *>bucket).lower[i])

cdef inline unsigned int direct_tag_bits(const direct_chunks *chunks) noexcept nogil:
    return min(<unsigned int>DIRECT_TAG_MOST,
               DIRECT_SLOT_BITS - DIRECT_CLASS_BITS - DIRECT_SEALED_BITS - chunks.place_bits)

cdef inline uint64_t direct_tag(const direct_chunks *chunks, uint32_t hv) noexcept nogil:
    """The upper bits of a slot whose item has this hash."""
    cdef unsigned int bits = direct_tag_bits(chunks)
    return <uint64_t>(hv >> (32 - bits)) << (DIRECT_SLOT_BITS - bits)

cdef inline int direct_next(const direct_chunks *chunks, const direct_bucket *bucket, uint32_t hv,
                            int i) noexcept nogil:
    """The number of the first slot from i on whose tag fits this hash; DIRECT_SLOTS: no slot does."""
    cdef unsigned int rest = DIRECT_TAG_MOST - direct_tag_bits(chunks)
    cdef unsigned int tag = hv >> 16
    while i < DIRECT_SLOTS:
        if (relaxed_load(&(<direct_bucket *>bucket).upper[i]) ^ tag) >> rest == 0 and direct_slot(bucket, i) != 0:
            break
        i += 1
    return i

cdef inline bint direct_has_seal(const direct_chunks *chunks, uint64_t slot) noexcept nogil:
    return slot >> chunks.place_bits >> DIRECT_CLASS_BITS & 1

cdef inline unsigned int direct_class(const direct_chunks *chunks, uint64_t slot) noexcept nogil:
    return <unsigned int>(slot >> chunks.place_bits) & (DIRECT_CLASSES - 1)

cdef inline uint64_t direct_place(const direct_chunks *chunks, uint64_t slot) noexcept nogil:
    """The item's distance from the header, a multiple of 8. In memory not from a daemon the result may be anything."""
    cdef uint64_t page = (slot & ((<uint64_t>1 << chunks.place_bits) - 1)) >> chunks.chunk_bits
    cdef uint64_t number = slot & ((<uint64_t>1 << chunks.chunk_bits) - 1)
    cdef uint64_t at = number * chunks.sizes[direct_class(chunks, slot)]
    return (chunks.arena + (page << DIRECT_PAGE_BITS) + at) & ~<uint64_t>7

# --- seals: an item verifies itself ---

cdef inline uint64_t direct_mix(uint64_t x) noexcept nogil:
    """A permutation: every bit of x influences every bit of the result (the last steps of splitmix64)."""
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL
    return x ^ x >> 31

cdef inline uint64_t direct_times(uint32_t time, uint32_t exptime) noexcept nogil:
    """The times' part of an item's seal. The parts are combined by exclusive or, so a change of the times changes the
    seal without another hash of the data.
    """
    return direct_mix((<uint64_t>time << 32 | exptime) + 0x9e3779b97f4a7c15ULL)

cdef inline uint64_t direct_cas(uint64_t cas) noexcept nogil:
    """The CAS value's part of an item's seal, combined in the same way as the times' part."""
    return direct_mix(cas ^ 0xd1342543de82ef95ULL)

cdef inline const char *direct_key(const direct_item *it) noexcept nogil:
    return <const char *>(it + 1) + (8 if relaxed_load(&(<direct_item *>it).it_flags) & DIRECT_WITH_CAS else 0)

cdef inline size_t direct_length(const direct_item *it) noexcept nogil:
    """Bytes of key, client's flags and data together."""
    return <size_t>it.nkey + 1 + (4 if it.it_flags & DIRECT_WITH_FLAGS else 0) + <uint32_t>it.nbytes

cdef inline size_t direct_seal_at(const direct_item *it) noexcept nogil:
    """The distance from an unchained item to its seal: behind the data, at the next multiple of 8."""
    return (<size_t>(direct_key(it) - <const char *>it) + direct_length(it) + 7) & ~<size_t>7

cdef inline uint64_t direct_seal(const hash_secrets *secrets, uint64_t place, const direct_item *it) noexcept nogil:
    """The seal of an unchained item at this place: of key, client's flags, data, times, CAS value and place. The seal
    contains no flags except the layout's, and no slabs_clsid. Nobody may change the item meanwhile.
    """
    # All in one word: the place has 38 bits, the length of the data 16, since the item is no longer than DIRECT_READ.
    # Lengths and flags mark the ends of the parts.
    cdef uint64_t where = place >> 3 | <uint64_t>(it.nbytes & 0xffff) << 38 | <uint64_t>it.nkey << 54 \
        | <uint64_t>(it.it_flags & DIRECT_WITH_CAS) << 61 | <uint64_t>(it.it_flags & DIRECT_WITH_FLAGS) << 55
    cdef uint64_t cas = (<const uint64_t *>(it + 1))[0] if it.it_flags & DIRECT_WITH_CAS else 0
    return xxh3(direct_key(it), direct_length(it), secrets.xxh3) ^ direct_times(it.time, it.exptime) \
        ^ direct_cas(cas) ^ direct_mix(where)

# --- a client's side ---

cdef struct direct_memory:       # a daemon's memory, mapped into this process
    char *mapping                # the whole mapping,
    size_t mapped                # ... of so many bytes
    const char *base             # the header's address, a multiple of 2 MB
    size_t length                # as the header states
    const direct_header *header
    # from the header, checked
    const direct_bucket *index
    uint64_t most
    direct_chunks chunks
    const uint32_t *alive
    uint64_t daemon              # the daemon's address of the header
    bint tells                   # mincore tells this process the resident pages of the daemon
    uint64_t used                # bytes of the arena in use at the time of direct_map, and no more than have pages

cdef struct direct_hit:          # a found value; no field is certain before direct_copy
    const direct_bucket *bucket
    uint64_t version
    uint64_t place               # of the item
    uint32_t hv
    uint32_t flags               # the client's
    uint64_t cas                 # 0: the item has none
    size_t length                # of the value
    const char *data             # the value; of a chained item: its first chunk's header
    bint chained
    uint8_t queue                # the item's LRU queue
    bint counts                  # the daemon wants to hear of this hit, for eviction

cdef enum direct_answer:
    DIRECT_ASK                   # only the daemon can say
    DIRECT_FOUND
    DIRECT_TORN                  # the item was changing: another try may find the value
    DIRECT_FOREIGN               # the item has another key

# Maps a daemon's memory by the daemon's two descriptors: of header and index, and of the arena. The caller closes both.
# Returns 0, or a negative errno: EPROTO if the files are not a daemon's memory, or have another layout; the errno of
# mmap if there are too few addresses.
cdef int direct_map(direct_memory *m, int index_fd, int arena_fd) noexcept nogil
# Ends the mapping. No thread may read any more.
cdef void direct_unmap(direct_memory *m) noexcept nogil
# Maps the next part of the arena, from the byte *at on: enters its pages into this process's page tables, so reads
# cause no page faults later. Moves *at behind the part, and adds the mapped bytes to *mapped. Only the daemon's
# resident pages are entered, because entering a missing page would make the page. A process that cannot learn the
# resident pages (direct_memory.tells) may make pages, but only below direct_memory.used. False: no part is left, or the
# system refuses.
cdef bint direct_prefault(const direct_memory *m, uint64_t *at, uint64_t *mapped) noexcept nogil
# Whether the daemon lives and still writes this memory.
cdef bint direct_is_alive(const direct_memory *m) noexcept nogil
# Whether direct reads can succeed: the daemon lives, and has set its clock in the last seconds (without a moving clock
# nobody knows the expired items). False in another time namespace, where the clock seems to stand still.
cdef bint direct_is_read(const direct_memory *m) noexcept nogil
# Looks for the key. DIRECT_FOUND: *hit describes a value, for direct_copy. DIRECT_ASK: the index has no valid item with
# the key. DIRECT_TORN: the bucket was changing. Any thread may call this and direct_copy.
cdef direct_answer direct_find(const direct_memory *m, const char *key, size_t nkey, direct_hit *hit) noexcept nogil
# Copies the value of direct_find's hit, hit.length bytes. DIRECT_FOUND: the bytes are the key's value at a moment of
# the call. DIRECT_TORN, and DIRECT_ASK (the daemon has ended): the bytes are useless.
cdef direct_answer direct_copy(const direct_memory *m, const direct_hit *hit, char *to) noexcept nogil

# --- for clients that copy the memory by READs ---

# The clock by which such a client judges, from a READ of the header.
cdef struct direct_clock:
    uint32_t now
    uint32_t oldest_live
    uint32_t algorithm

# Whether a client can use a header copied by a READ: the daemon's items have seals, and everything named in the header
# lies within the stated length. Nobody else vouches for the length, but the regions of the client's rkeys bound its
# READs.
cdef bint direct_is_usable(const direct_header *h) noexcept nogil
# The number of the next slot, from `first` on, of an item with a seal whose tag fits this hash, in an existing slab
# class; DIRECT_SLOTS: no slot. The READ may have copied the bucket in any order.
cdef int direct_look(const direct_chunks *chunks, const direct_bucket *bucket, uint32_t hv, int first) noexcept nogil
# Whether a READ's copy of the item at this place, with cache lines copied in any order, has the key's value at a moment
# of the READ. copy: at a multiple of 8. DIRECT_TORN: the copy is no item with a seal. DIRECT_FOREIGN: the item has
# another key. hit.data points into the copy.
# Parameters: the item's place, the copy and the key come from three structures of the caller's own.
cdef direct_answer direct_verify(const hash_secrets *secrets, const direct_clock *clock, uint64_t place, uint32_t hv,
                                 const char *copy, size_t size, const char *key, size_t nkey,
                                 direct_hit *hit) noexcept nogil

# --- a client's report of its hits; for a single thread at a time ---

cdef struct direct_named:
    uint32_t hv
    uint64_t place               # in units of 8 bytes

cdef struct direct_report:
    uint64_t counts[DIRECT_QUEUES]
    uint64_t total
    direct_named named[DIRECT_NAMED]
    unsigned int used            # of named
    uint64_t recent[4 * DIRECT_NAMED]    # places named lately, with the number of times in the lower bits
    uint32_t told                # the daemon's clock at the last line
    int64_t told_ms              # coarse_ms() at the last line

# Begins a report, which the caller has set to all zeros. In all three functions the header is mapped, or a recent copy.
cdef void direct_report_begin(direct_report *r, const direct_header *h) noexcept nogil
# Notes a hit whose value the caller returns to its program. True: the caller should send a line now.
cdef bint direct_note(direct_report *r, const direct_header *h, const direct_hit *hit) noexcept nogil
# Writes a line about the noted hits, with its \r\n, into DIRECT_LINE bytes, and begins the report anew; counts without
# room wait for the next line. For a client about to send. Returns the line's length; 0: nothing to report.
cdef size_t direct_line(direct_report *r, const direct_header *h, char *out) noexcept nogil
