"""The data of a load, for the parts of the generator, which are one C unit: the drawing of keys, the bytes of requests
and values, the replies to them, and waiting. One thread at a time uses a `load`.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_TIMER_ABSTIME

cdef enum:
    EVENTS = 64              # of epoll, taken at a time; between two calls due requests are sent
    INPUT = 256 * 1024       # bytes received at a time
    KEY_MOST = 250
    LINE_MOST = 320          # bytes of the longest correct line of a reply
    LINE_MORE = 64           # bytes of a request besides its keys and value, at most
    STAMP = 8                # bytes at the beginning of a value, computed from key and length
    OFFSETS = 1 << 16        # possible places in the pool for the rest of a value
    QUANTILES = 1 << 16      # of a distribution of sizes
    BUCKETS = 28 * 1024      # of latencies, as in an HdrHistogram of three digits, up to LONGEST
    SLICE = 200000000        # ns after which `run` looks for signals, and reports its progress
    SPIN = 50000             # ns before a due time, and after the last bytes of a stream, without sleep

cdef enum:
    SLOWEST = 6              # an answer that arrives byte by byte may take so many times the patience

cdef enum:
    LONGEST = 60000000000    # ns; a longer latency is counted as this time

# The kinds of requests.
cdef enum:
    GET
    SET
    DELETE
    INCR
    # A load with one of these kinds has no other kind.
    MISS                     # a get of a missing key
    TOUCH
    META_GET
    META_SET
    NEW                      # a set of a new key
    KINDS

# Results of a step of the loop, besides a negative errno.
cdef enum step:
    OVER = 0                 # all requests are answered
    RUNNING = 1
    LOST = -1000             # the server has closed a connection
    WRONG = -1001            # a reply is not the expected reply: load.wrong_... describe the reply
    SILENT = -1002           # no byte came for `patience`, or no whole answer for SLOWEST times `patience`

cdef struct request:
    int64_t intended         # now_ns() of the planned sending
    unsigned int kind
    unsigned int keys        # of a get

cdef struct connection:
    int fd                   # -1: the connection belongs to a stream
    void *stream             # the Stream, which Load keeps alive
    request *requests        # without an answer: a ring of `depth`
    uint32_t *numbers        # their keys: a ring of `depth` times `multiget`
    unsigned int first       # place of the oldest request in the ring
    unsigned int count       # requests in the ring
    unsigned int key         # answered keys of the oldest request
    bint in_value            # a value is arriving, with value_at bytes so far
    size_t value_at
    size_t value_size
    uint64_t stamp
    char line[LINE_MOST]     # the beginning of a line
    size_t line_length
    char *pending            # [pending_first, pending_last) must be sent before anything else
    size_t pending_size
    size_t pending_first
    size_t pending_last
    bint watches             # epoll reports room to send
    bint waits               # the connection is in `load.ready`
    int64_t due              # time of the next requests, after a think time

cdef struct load:
    # The requests: their keys, sizes, kinds and pace.
    uint32_t keys
    size_t key_size          # bytes; or by QUANTILES:
    const uint16_t *key_sizes
    size_t value_size        # bytes, or the longest
    const uint32_t *value_sizes
    char *pool               # random bytes; values are made of them
    double exponent          # of Zipf's law; 0: all keys alike
    double zipf_first        # see prepare_zipf
    double zipf_span
    double zipf_near
    uint64_t scatter         # coprime to `keys`
    uint64_t below[KINDS]    # a kind is drawn if 32 random bits are below its limit, and not below the limit before
    unsigned int only        # the kind of all requests; GET: the kinds of `below`
    uint32_t turn            # of DELETE alone and of NEW: the next key's number
    uint64_t run             # chooses the keys of NEW: another run has different keys
    unsigned int depth
    unsigned int multiget
    bint batch               # the next requests leave when all earlier requests are answered
    bint verify              # every byte of values is compared
    bint complete            # a missing key is an error
    int64_t think            # ns; 0: none
    bint think_varies        # `think` is the mean of an exponential distribution
    double gap               # ns between two requests of the open loop; 0: closed
    bint gap_varies
    int64_t patience         # ns without a byte before the server is silent; SLOWEST times that without an answer
    uint64_t random
    bint filling             # Load.fill sets each key and counter once: `filled` of `to_fill` are sent
    uint64_t filled
    uint64_t to_fill
    # The connections, and the queues of those with room and of those that think.
    int count
    connection *connections
    connection **ready       # open loop: connections with room, in a ring of `count`, the first for the next request
    unsigned int ready_first
    unsigned int ready_count
    connection **thinking    # a heap by `due`
    unsigned int thinking_count
    int epoll
    int timer
    unsigned int in_flight   # requests without an answer
    # The times of a run, by now_ns().
    int64_t until            # from here on no new request is sent; 0: all keys were deleted
    int64_t heard            # time of the last received bytes
    int64_t answered         # time of the last complete answer
    double next              # open loop: time of the next request
    # Memory for requests to be sent, and for received bytes.
    char *out
    size_t out_size
    size_t out_length
    char *input
    # The counts of a run.
    uint64_t done[KINDS]
    uint64_t hits
    uint64_t misses
    uint64_t refused         # of NEW: sets without memory in the server
    uint64_t unsent
    uint64_t *latencies[KINDS]
    uint64_t *late           # of the open loop: from the intended time to sending
    # The wrong reply that ended the run, for Load.wrong_text.
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
