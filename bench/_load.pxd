"""What a load is made of, for the parts of the generator, which are one C unit: which key is asked for, the bytes of
requests and values, the replies to them, and waiting. All of a `load` belongs to the thread that is in `Load.run`.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_TIMER_ABSTIME

cdef enum:
    EVENTS = 64              # that are taken at a time: requests that are due are not kept waiting for longer
    INPUT = 256 * 1024       # bytes that are received at a time
    KEY_MOST = 250
    LINE_MOST = 320          # bytes of a line of a reply that is right
    LINE_MORE = 64           # bytes of a request besides its keys and value, at most
    STAMP = 8                # bytes at the beginning of a value that depend on key and length
    OFFSETS = 1 << 16        # where in the pool the rest of a value may begin
    QUANTILES = 1 << 16      # of a distribution of sizes
    BUCKETS = 28 * 1024      # of latencies: those of an HdrHistogram of three digits, up to LONGEST
    SLICE = 200000000        # ns after which `run` looks for signals, and tells how far it is
    SPIN = 50000             # ns before something is due in which no time is given away

cdef enum:
    SLOWEST = 6              # times its patience that an answer may take whose bytes come one by one

cdef enum:
    LONGEST = 60000000000    # ns of a latency that is told from a longer one

# The kinds of requests.
cdef enum:
    GET
    SET
    DELETE
    INCR
    # Those that a load consists of alone, if at all.
    MISS                     # a get of a key that is not there
    TOUCH
    META_GET
    META_SET
    NEW                      # a set of a key that is new
    KINDS

# What a step of the loop says, besides a negative errno.
cdef enum step:
    OVER = 0                 # all is answered
    RUNNING = 1
    LOST = -1000             # the server has closed a connection
    WRONG = -1001            # a reply is not what was expected: load.wrong
    SILENT = -1002

cdef struct request:
    int64_t intended         # now_ns() at which it was to be sent
    unsigned int kind
    unsigned int keys        # of a get

cdef struct connection:
    int fd                   # -1: it is a stream's
    void *stream             # the Stream, which Load keeps alive
    request *requests        # without an answer: a ring of `depth`
    uint32_t *numbers        # their keys: a ring of `depth` times `multiget`
    unsigned int first       # the oldest request,
    unsigned int count       # and how many there are
    unsigned int key         # of the oldest one: its keys that are answered
    bint in_value            # a value comes, of which value_at bytes were there
    size_t value_at
    size_t value_size
    uint64_t stamp
    char line[LINE_MOST]     # the beginning of a line
    size_t line_length
    char *pending            # [pending_first, pending_last) is to be sent before anything else
    size_t pending_size
    size_t pending_first
    size_t pending_last
    bint watches             # epoll tells when there is room to send
    bint waits               # it is in `load.ready`
    int64_t due              # after a think time

cdef struct load:
    # what is asked for
    uint32_t keys
    size_t key_size          # bytes; or by QUANTILES:
    const uint16_t *key_sizes
    size_t value_size        # bytes, or of the longest one
    const uint32_t *value_sizes
    char *pool               # bytes by chance, of which values are made
    double exponent          # of Zipf's law; 0: all keys alike
    double zipf_first        # see prepare_zipf
    double zipf_span
    double zipf_near
    uint64_t scatter         # coprime to `keys`
    uint64_t below[KINDS]    # a kind is drawn if 32 bits by chance are below its limit, and not below one before
    unsigned int only        # the kind of all requests; GET: as `below` has them
    uint32_t turn            # of DELETE alone and of NEW: the next key's number
    uint64_t run             # which keys NEW sets: those of another run are others
    unsigned int depth
    unsigned int multiget
    bint batch               # the next requests leave when all before them are answered
    bint verify              # every byte of values is compared
    bint complete            # a key that is missing is wrong
    int64_t think            # ns; 0: none
    bint think_varies        # ... by an exponential distribution
    double gap               # ns between two requests of the open loop; 0: closed
    bint gap_varies
    int64_t patience         # ns without a byte, after which the server is silent; without an answer SLOWEST times that
    uint64_t random
    bint filling             # each key is set once: `filled` are
    uint64_t filled
    uint64_t to_fill
    # connections
    int count
    connection *connections
    connection **ready       # open loop: those with room, in a ring of `count`, the first for the next request
    unsigned int ready_first
    unsigned int ready_count
    connection **thinking    # a heap by `due`
    unsigned int thinking_count
    int epoll
    int timer
    unsigned int in_flight   # requests without an answer
    # time
    int64_t until            # from here on nothing new is sent; 0: all keys were deleted
    int64_t heard            # when something came last,
    int64_t answered         # and the end of an answer
    double next              # open loop: when the next request is to be sent
    # memory for what is under way
    char *out
    size_t out_size
    size_t out_length
    char *input
    # what is counted
    uint64_t done[KINDS]
    uint64_t hits
    uint64_t misses
    uint64_t refused         # of NEW: for which the server had no memory
    uint64_t unsent
    uint64_t *latencies[KINDS]
    uint64_t *late           # of the open loop: between the intended time and sending
    # what was wrong
    unsigned int wrong_kind
    bint wrong_unasked
    uint32_t wrong_number
    size_t wrong_at          # byte of the value, if wrong_in_value
    bint wrong_in_value
    char wrong_got[LINE_MOST]
    size_t wrong_length

include "_load_draws.pxd"
include "_load_texts.pxd"
include "_load_replies.pxd"
include "_load_turns.pxd"
