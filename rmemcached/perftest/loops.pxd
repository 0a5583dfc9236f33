"""The measured loops of rmemcached-perftest.

A loop runs one side of a test, without Python. It can be left and entered again: the `side` keeps the state of the
test, and belongs to the thread of its End. Clients return 0 when the test is done, or a `stop`; servers only a `stop`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from rmemcached.verbs.verbs cimport (
    ibv_comp_channel, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, verbs_provider,
)

cdef enum:
    BATCH = 16                       # completions taken, and receives posted, at a time
    CREDITS_MAX = 16                 # credit messages under way
    ROOM = CREDITS_MAX + 1           # entries of the send queue besides the data's: for credits, and for the last READ

cdef enum stop:                      # why a loop was left; 0: the test is done
    STOP_NOT = 0
    STOP_CONTROL = -1                # the control connection is readable
    STOP_STATUS = -2                 # a work request failed: side.code is its ibv_wc_status
    STOP_POST = -3                   # a call failed: side.code is the errno value
    STOP_POLL = -4
    STOP_EVENT = -5

cdef struct side:
    uint32_t owner                   # thread_id() of the End's thread
    ibv_qp *qp
    ibv_cq *cq
    ibv_comp_channel *channel        # NULL: the completion queue is polled
    const verbs_provider *provider
    int control                      # descriptor of the control connection
    short watched                    # poll events of the control connection that end a loop
    int code
    uint32_t empty_polls             # since the last look at the control connection
    bint armed
    uint32_t receives                # completed and not yet posted again
    ibv_recv_wr recv[BATCH]
    ibv_sge recv_sge
    ibv_send_wr data
    ibv_sge data_sge
    ibv_send_wr credit
    ibv_send_wr last                 # a READ of one byte, answered when all messages before it are done
    ibv_sge last_sge
    unsigned int flags               # of the data requests
    uint8_t *mark_out                # last bytes of the outgoing and the incoming message
    uint8_t *mark_in
    # The test under way.
    uint64_t total                   # messages to send
    uint64_t until                   # cycles(); end of a test with a duration, which then sets the total. 0: none
    uint64_t expected                # messages to receive, or UNLIMITED
    uint32_t depth                   # messages in the send queue
    uint32_t moderation              # every so many messages, a message has a completion
    uint32_t since                   # messages posted since the last message with a completion
    uint32_t stale                   # messages in `since` that belong to the test before
    uint32_t peer_receives           # SEND: receives of the peer at the start
    uint32_t credit_every            # messages for each credit; 0: no credits
    uint64_t posted
    uint64_t completed
    uint64_t received
    uint64_t credits                 # returned by the peer
    uint64_t returned                # credits returned by this side
    uint32_t returning               # ... of which are under way
    bint last_posted
    bint last_done
    uint64_t *begun                  # cycles() at the first post of each group of `moderation` messages
    uint64_t *done                   # ... and at its completion
    uint64_t room                    # room in these arrays, in groups
    uint64_t groups                  # complete groups

# The number in side.total and side.expected for a test without a known number of messages.
cdef inline uint64_t unlimited() noexcept nogil:
    return <uint64_t> -1

# wr_id of a message for returning credit only.
cdef inline uint64_t credit_id() noexcept nogil:
    return 1 << 32

# Posts `count` receives, 1 to BATCH. Returns 0 or an errno value.
cdef int give_receives(side *s, uint32_t count) noexcept nogil
# Called before a test: takes the remaining completions of the last test's messages. Returns 0, or a `stop`.
cdef int drain(side *s) noexcept nogil

# End.run calls the loops below. First the clients of the latency tests. stamps: cycles() at each post and at the end,
# total + 1 of them; or NULL.
cdef int ping_send(side *s, uint64_t *stamps) noexcept nogil
cdef int ping_write(side *s, uint64_t *stamps) noexcept nogil
cdef int ping_read(side *s, uint64_t *stamps) noexcept nogil
# The servers of the latency tests.
cdef int pong_send(side *s) noexcept nogil
cdef int pong_write(side *s) noexcept nogil
# The sender of a bandwidth test.
cdef int flow(side *s) noexcept nogil
# The server of the other tests: receives, returns credits, and makes progress for the peer.
cdef int serve(side *s) noexcept nogil
# Messages per cycle in the best stretch from the post of a group to the completion of a later group.
cdef double best_rate(const side *s, uint64_t groups) noexcept nogil
