"""The daemon's memory as its clients read it without asking (docs/direct-reads.md): its layout, and how it is read.

The store writes what this layout says; a client maps it for reading. Nothing here waits, allocates or needs the GIL,
but direct_map and direct_unmap.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.key_hash cimport hash_secrets, xxh3

cdef enum:
    DIRECT_VERSION = 5
    DIRECT_HEADER = 4096         # bytes before the index
    DIRECT_LIFE = 1 << 21        # bytes before the arena, in its file, of which the mutex has the first
    DIRECT_LENGTH_BITS = 41      # the memory is shorter than 2 to this power
    DIRECT_SLOTS = 20
    DIRECT_SLOT_BITS = 48        # a chunk's number (direct_header.place_bits), then
    DIRECT_CLASS_BITS = 6        # ... its slab class, then
    DIRECT_SEALED_BITS = 1       # ... whether the item has a seal; uppermost,
    DIRECT_TAG_MOST = 16         # ... as far as there is room, the upper bits of the hash
    DIRECT_TAG_LEAST = 4
    DIRECT_PLACE_MOST = DIRECT_SLOT_BITS - DIRECT_CLASS_BITS - DIRECT_SEALED_BITS - DIRECT_TAG_LEAST
    DIRECT_CLASSES = 1 << DIRECT_CLASS_BITS
    DIRECT_PAGE_BITS = 20        # a slab page has 2 to this power bytes
    DIRECT_READ = 65536          # bytes of the longest item with a seal, which is in them
    DIRECT_QUEUES = 256          # LRU queues: slab class | queue << 6
    DIRECT_NAMED = 64            # items that a line of hits names at most
    DIRECT_LINE = 2048           # bytes of one at most

# Of an item's it_flags, memcached's values. The store's own are these (store.pxd).
cdef enum direct_item_flag:
    DIRECT_LINKED = 1
    DIRECT_WITH_CAS = 2
    DIRECT_SLABBED = 4
    DIRECT_FETCHED = 8
    DIRECT_ACTIVE = 16
    DIRECT_CHUNKED = 32
    DIRECT_CHUNK = 64
    DIRECT_WITH_FLAGS = 256      # the client's, 4 bytes
    DIRECT_TOKEN_SENT = 512
    DIRECT_STALE = 2048
    DIRECT_FREQUENCY_ONE = 8192  # how often it was fetched, 0 to 3 (S3-FIFO)

cdef extern from *:
    """
    #define RMC_DIRECT_MAGIC "rmemcach"
    """
    const char *DIRECT_MAGIC "RMC_DIRECT_MAGIC"

cdef enum direct_algorithm:      # when a get changes what eviction knows of an item
    DIRECT_SEGMENTED             # when it is not active
    DIRECT_S3FIFO                # when it was not fetched three times
    DIRECT_FLAT                  # a minute after the last one

cdef struct direct_bucket:
    uint64_t version             # odd: it is being changed
    uint32_t lower[DIRECT_SLOTS]     # of slots, their lower 32 bits,
    uint16_t upper[DIRECT_SLOTS]     # ... and the upper 16

cdef struct direct_chunks:       # where the chunks of items are, and how slots name them
    uint64_t arena               # where the slab pages begin, from the header
    uint32_t chunk_bits          # of a chunk's number those of its number in its page; the page's number is above,
    uint32_t place_bits          # ... up to here
    uint32_t sizes[DIRECT_CLASSES]   # bytes of a chunk of each slab class

cdef struct direct_header:
    # constant
    char magic[8]
    uint32_t layout              # DIRECT_VERSION
    uint32_t sealed              # items have seals
    uint64_t length              # of header, index, and the part of the arena that the index can name
    uint64_t base                # the daemon's address of this header
    uint64_t index               # where the first bucket is, from here
    uint64_t most                # buckets that there is room for
    uint64_t alive               # where the word of the daemon's robust mutex is in which the kernel writes, from here
    hash_secrets hash
    direct_chunks chunks
    char pad[248]
    # relaxed atomic; one line
    uint64_t buckets
    uint32_t current_time        # as the store's clock
    uint32_t oldest_live
    uint32_t ended               # the daemon stops, or keeps this index no more: nobody reads any more
    uint32_t algorithm           # `lru mode` changes it
    int64_t beat                 # coarse_ms() when the clock was last looked after
    uint64_t used                # bytes of the arena whose slab pages are in use. It only grows. 0: not told
    char pad_after_clock[24]

# What readers look at of an item and a chunk: store.pxd's structures.
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
    """The largest power of two up to a number that is not 0."""
    return <uint64_t>1 << (63 - leading_zeros(buckets))

cdef inline uint64_t direct_bucket_of(uint32_t hv, uint64_t buckets) noexcept nogil:
    """The bucket of a hash, by linear hashing."""
    cdef uint64_t mask = direct_power(buckets) * 2 - 1
    return hv & mask if hv & mask < buckets else hv & (mask >> 1)

cdef inline uint64_t direct_most(uint64_t arena_length) noexcept nogil:
    """Buckets that an index for so much memory has room for: some ten items in each, of the smallest that there are.
    There can be no more item locks.
    """
    return max(<uint64_t>1 << 15, arena_length // 960)

cdef inline uint64_t direct_bytes(uint64_t arena_length) noexcept nogil:
    """What is before an arena of this length: whole huge pages."""
    return (DIRECT_HEADER + direct_most(arena_length) * sizeof(direct_bucket) + 0x1fffff) & ~<uint64_t>0x1fffff

# --- slots; 0 is none, since no item has slab class 0 ---

cdef inline uint64_t direct_slot(const direct_bucket *bucket, int i) noexcept nogil:
    return <uint64_t>relaxed_load(&(<direct_bucket *>bucket).upper[i]) << 32 \
        | <uint64_t>relaxed_load(&(<direct_bucket *>bucket).lower[i])

cdef inline unsigned int direct_tag_bits(const direct_chunks *chunks) noexcept nogil:
    return min(<unsigned int>DIRECT_TAG_MOST,
               DIRECT_SLOT_BITS - DIRECT_CLASS_BITS - DIRECT_SEALED_BITS - chunks.place_bits)

cdef inline uint64_t direct_tag(const direct_chunks *chunks, uint32_t hv) noexcept nogil:
    """What a slot has uppermost, if its item has this hash."""
    cdef unsigned int bits = direct_tag_bits(chunks)
    return <uint64_t>(hv >> (32 - bits)) << (DIRECT_SLOT_BITS - bits)

cdef inline int direct_next(const direct_chunks *chunks, const direct_bucket *bucket, uint32_t hv,
                            int i) noexcept nogil:
    """The number of the first slot from i on that may be of an item with this hash; DIRECT_SLOTS: there is none."""
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
    """The item's distance from the header, a multiple of 8. In memory that is not a daemon's it may be anywhere."""
    cdef uint64_t page = (slot & ((<uint64_t>1 << chunks.place_bits) - 1)) >> chunks.chunk_bits
    cdef uint64_t number = slot & ((<uint64_t>1 << chunks.chunk_bits) - 1)
    cdef uint64_t at = number * chunks.sizes[direct_class(chunks, slot)]
    return (chunks.arena + (page << DIRECT_PAGE_BITS) + at) & ~<uint64_t>7

# --- seals, by which an item verifies itself ---

cdef inline uint64_t direct_mix(uint64_t x) noexcept nogil:
    """A permutation in which every bit of x changes every bit (the last steps of splitmix64)."""
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL
    return x ^ x >> 31

cdef inline uint64_t direct_times(uint32_t time, uint32_t exptime) noexcept nogil:
    """What an item's times are in its seal, by exclusive or: they change, and its data does not."""
    return direct_mix((<uint64_t>time << 32 | exptime) + 0x9e3779b97f4a7c15ULL)

cdef inline uint64_t direct_cas(uint64_t cas) noexcept nogil:
    """What the CAS value is in it, in the same way."""
    return direct_mix(cas ^ 0xd1342543de82ef95ULL)

cdef inline const char *direct_key(const direct_item *it) noexcept nogil:
    return <const char *>(it + 1) + (8 if relaxed_load(&(<direct_item *>it).it_flags) & DIRECT_WITH_CAS else 0)

cdef inline size_t direct_length(const direct_item *it) noexcept nogil:
    """Bytes of key, client's flags and data, which follow each other."""
    return <size_t>it.nkey + 1 + (4 if it.it_flags & DIRECT_WITH_FLAGS else 0) + <uint32_t>it.nbytes

cdef inline size_t direct_seal_at(const direct_item *it) noexcept nogil:
    """Where the seal of an item that is not chained lies, from the item on: behind its data, at the next multiple of 8.
    """
    return (<size_t>(direct_key(it) - <const char *>it) + direct_length(it) + 7) & ~<size_t>7

cdef inline uint64_t direct_seal(const hash_secrets *secrets, uint64_t place, const direct_item *it) noexcept nogil:
    """The seal of such an item at this place: of key, client's flags, data, times, CAS value and place. it_flags but
    those that say how it is laid out, and slabs_clsid, are not in it. Nothing of it changes meanwhile.
    """
    # In one word: the place has 38 bits, the length of the data 16, since the item is no longer than DIRECT_READ.
    # Lengths and flags say where one part ends and the next begins.
    cdef uint64_t where = place >> 3 | <uint64_t>(it.nbytes & 0xffff) << 38 | <uint64_t>it.nkey << 54 \
        | <uint64_t>(it.it_flags & DIRECT_WITH_CAS) << 61 | <uint64_t>(it.it_flags & DIRECT_WITH_FLAGS) << 55
    cdef uint64_t cas = (<const uint64_t *>(it + 1))[0] if it.it_flags & DIRECT_WITH_CAS else 0
    return xxh3(direct_key(it), direct_length(it), secrets.xxh3) ^ direct_times(it.time, it.exptime) \
        ^ direct_cas(cas) ^ direct_mix(where)

# --- a client's side ---

cdef struct direct_memory:       # a daemon's memory, mapped here
    char *mapping                # all that is mapped,
    size_t mapped                # ... of so many bytes
    const char *base             # in it, at a multiple of 2 MB
    size_t length                # what the header says
    const direct_header *header
    # what was checked of the header
    const direct_bucket *index
    uint64_t most
    direct_chunks chunks
    const uint32_t *alive
    uint64_t daemon              # its address of the header
    bint tells                   # this process is told which pages there are
    uint64_t used                # bytes of the arena that were in use when it was mapped; no more than it has pages of

cdef struct direct_hit:          # a value that was found. Nothing of it is certain before direct_copy
    const direct_bucket *bucket
    uint64_t version
    uint64_t place               # of the item
    uint32_t hv
    uint32_t flags               # the client's
    uint64_t cas                 # 0: the item has none
    size_t length                # of the value
    const char *data             # the value; of a chained one: its first chunk's header
    bint chained
    uint8_t queue                # the item's LRU queue
    bint counts                  # a get would change what the daemon knows of the item

cdef enum direct_answer:
    DIRECT_ASK                   # only the daemon can say
    DIRECT_FOUND
    DIRECT_TORN                  # it was being changed: another try may find it
    DIRECT_FOREIGN               # it is the item of another key

# Maps the memory whose two descriptors a daemon has given: header and index, and the arena. The caller closes both.
# 0, or a negative errno: EPROTO for memory that is none, or of another layout.
cdef int direct_map(direct_memory *m, int index_fd, int arena_fd) noexcept nogil
# Nobody reads any more.
cdef void direct_unmap(direct_memory *m) noexcept nogil
# Maps the pages that the daemon has of a part of the arena, from the byte `at` on, which moves behind that part; adds
# their bytes to `mapped`. Makes none, but for a process that is not told which there are: then it goes no further than
# `used`. False: there are no more, or it is not possible.
cdef bint direct_prefault(const direct_memory *m, uint64_t *at, uint64_t *mapped) noexcept nogil
# Whether the daemon that writes it lives.
cdef bint direct_is_alive(const direct_memory *m) noexcept nogil
# Whether what is found is taken: it lives, and its clock moves, as seen from this time namespace.
cdef bint direct_is_read(const direct_memory *m) noexcept nogil
# Looks for the key. Any thread.
cdef direct_answer direct_find(const direct_memory *m, const char *key, size_t nkey, direct_hit *hit) noexcept nogil
# Copies hit.length bytes. DIRECT_FOUND: they are the value that the key had at one moment of the call.
cdef direct_answer direct_copy(const direct_memory *m, const direct_hit *hit, char *to) noexcept nogil

# --- a client that copies memory by READs ---

# The clock by which such a client judges, of a READ of the header.
cdef struct direct_clock:
    uint32_t now
    uint32_t oldest_live
    uint32_t algorithm

# Whether a header that was read by a READ can be used: its items have seals, and all that it names lies within the
# length that it states. How long the memory is nobody else tells; the parts of which a client has keys bound its READs.
cdef bint direct_is_usable(const direct_header *h) noexcept nogil
# The number of the next slot from `first` on of a bucket, read in any order, that may be of a key with this hash, and
# of an item with a seal, in a slab class that there is; DIRECT_SLOTS: there is none.
cdef int direct_look(const direct_chunks *chunks, const direct_bucket *bucket, uint32_t hv, int first) noexcept nogil
# Whether what was read of the item at this place, line by line in any order, is the value of the key at one moment of
# the READ. copy: at a multiple of 8. DIRECT_TORN: it is no item with a seal. DIRECT_FOREIGN: it is of another key.
# hit.data is in the copy.
cdef direct_answer direct_verify(const hash_secrets *secrets, const direct_clock *clock, uint64_t place, uint32_t hv,
                                 const char *copy, size_t size, const char *key, size_t nkey,
                                 direct_hit *hit) noexcept nogil

# --- what a client tells of its hits; one thread at a time ---

cdef struct direct_named:
    uint32_t hv
    uint64_t place               # in units of 8 bytes

cdef struct direct_report:
    uint64_t counts[DIRECT_QUEUES]
    uint64_t total
    direct_named named[DIRECT_NAMED]
    unsigned int used            # of named
    uint64_t recent[4 * DIRECT_NAMED]    # places that were named, with how often in the lower bits
    uint32_t told                # the daemon's clock when the last line was made,
    int64_t told_ms              # ... and ours

# Begins a report that is all zeros. The header is mapped, or as it was read lately.
cdef void direct_report_begin(direct_report *r, const direct_header *h) noexcept nogil
# Notes a hit. True: it is time for a line.
cdef bint direct_note(direct_report *r, const direct_header *h, const direct_hit *hit) noexcept nogil
# Writes the line of all that was noted, with its \r\n, into DIRECT_LINE bytes. Returns its length; 0: there is nothing.
cdef size_t direct_line(direct_report *r, const direct_header *h, char *out) noexcept nogil
