"""This end of a queue pair (docs/rdma-protocol.md): its objects, its message buffers, and its way to the peer.

The context is the device's, the protection domain the server's on this device (_devices.pxd). Completion queue, channel
and message buffers are the Endpoint's own. The messages are the subject of QueuePair, a subclass.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t

from rmemcached.client.transport._devices cimport server_domain, shared_device
from rmemcached.client.transport._exchange cimport Offer
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.system_cm cimport cm_event
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel,
    ibv_cq,
    ibv_mr,
    ibv_pd,
    ibv_qp,
    verbs_provider,
)

cdef enum:
    CREDITS = 32             # receive buffers, and so the server's credits at most
    RECEIVES_AT_A_TIME = 8   # receives posted anew together: a quarter of CREDITS
    MESSAGE_SIZE = 8192      # bytes of a message, header included
    SEND_BUFFERS = 16
    SEND_DEPTH = 64          # SENDs under way at most; further credits of the server's offer are not used
    RECEIVE = 1 << 16        # in wr_id: a receive
    READ = 1 << 17           # in wr_id: a READ of an item
    READS = 16               # RDMA READs under way, of either side


cdef class Endpoint:
    cdef readonly object row         # of transports.py
    cdef int pid                     # of the process of its creation
    cdef int fd                      # the lifeline, or rdma_cm's descriptor if by_cm; -1: none yet, or closed
    cdef object secure               # the lifeline's TLS socket, with a descriptor of its own; None: it has no TLS
    cdef object listening            # a lock, held by the thread that reads `secure`
    cdef bytes last_words            # the server's text on the lifeline: the reason of the connection's end
    cdef bint by_cm
    cdef bint lifeline_ended         # also read without a lock
    cdef int kick_fd                 # an eventfd to wake the sleeping thread; -1: there is none
    cdef str fault                   # the error of the stream under the queue pair
    cdef uint32_t cm_id              # rdma_cm's identifier of the queue pair's connection
    cdef server_domain *protection_domain    # the server's on this device, shared with other queue pairs. NULL: closed
    # Copies of fields of the protection domain, its device and the row, for shorter code:
    cdef shared_device *device
    cdef const verbs_port *port
    cdef const verbs_provider *provider
    cdef bint soft                   # row.soft
    cdef bint near                   # row.near
    cdef unsigned int inline_bytes   # row.inline: messages up to this size need no completion
    cdef ibv_pd *pd
    # QueuePair.close frees these objects. NULL: not made yet, or freed
    cdef ibv_comp_channel *channel
    cdef ibv_cq *cq
    cdef ibv_qp *qp
    cdef ibv_mr *mr                  # of buffer
    cdef char *buffer                # CREDITS receive messages, then SEND_BUFFERS send messages
    cdef uint32_t psn                # the number of the first packet from here, random
    cdef size_t room                 # bytes of payload in a message to the server
    cdef size_t eager                # bytes of the largest value in the server's messages
    cdef unsigned int tx_credits     # credits: the number of SENDs that may be posted
    cdef unsigned int free_count     # send buffers without a SEND under way: free_sends[:free_count]
    cdef uint16_t free_sends[SEND_BUFFERS]
    cdef readonly unsigned int workers   # of the server
    cdef unsigned int most_lanes     # allowed by the server
    cdef size_t lane_bytes           # of each lane's payload, kept by the server
    cdef bint offers_reads           # the server lets items be read by READs
    cdef str memory                  # Offer.memory

    # The steps of __init__. Raise OSError, MemoryError.
    cdef int post_all_receives(self) except -1
    cdef int open_queue(self) except -1
    cdef int open_messages(self) except -1
    # QueuePair.connect: takes over the lifeline. Raises OSError.
    cdef int take_lifeline(self, client, lifeline) except -1
    cdef void close_secure(self) noexcept
    # QueuePair.connect: takes over the numbers of the offer, and brings the queue pair to RTS. Raises OSError.
    cdef int connect_to(self, Offer offer) except -1
    # QueuePair.connect_cm: connects by rdma_cm, whose request and reply have the exchange in their private data. Raises
    # the errors of connect_cm.
    cdef int agree(self, int64_t deadline) except -1
    # Takes over the numbers of the reply's private data. Raises MemcacheServerError: it is no rmemcached's.
    cdef int accept_welcome(self, const cm_event *event) except -1
    # The number of READs that this end may have under way.
    cdef unsigned int most_reads(self) noexcept
    # Posts the receives of these message buffers, RECEIVES_AT_A_TIME at most. 0, or an errno value.
    cdef int post_receives(self, const uint16_t *indices, unsigned int count) noexcept nogil
    # Reads the lifeline until its end, for at most a second and `limit` ms (-1: a second). Returns the server's text,
    # the reason of the queue pair's failure; "": there is none. For QueuePair.failure_text.
    cdef str hear_last_words(self, int limit)
    # The same of a lifeline with TLS, without what was read before. wait: ms.
    cdef int hear_secretly(self, int wait) noexcept
    # Takes an event off the completion channel, if any.
    cdef void take_event(self) noexcept nogil
    # Called when `fd` is readable. Sets lifeline_ended if the connection has ended. Returns False at the second call
    # after the end: the caller has reaped all earlier replies meanwhile. With rdma_cm always True.
    cdef bint look_at_lifeline(self) noexcept nogil
    # Whether the server has ended the connection, or is about to: no request should be sent. Any thread may call.
    cdef bint peer_has_ended(self) noexcept nogil
    # Copies the error of the stream under the queue pair to `fault`, before the queue pair is destroyed with its text.
    cdef void note_fault(self) noexcept
    # Whether this process is a fork of the process that made the Endpoint.
    cdef bint foreign(self) noexcept nogil

# The number of concurrent READs for this end's queue pair to have (ORD). The server's device ends the connection at
# more READs than it answers. From a server that offers no reads this end reads nothing, and the number is 1.
cdef uint16_t reads_of(Offer offer) noexcept
