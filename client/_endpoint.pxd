"""This end of a queue pair (docs/rdma-protocol.md): its objects, its message buffers, and how it gets to its peer.

The context is the device's, the protection domain the server's on that device (_devices.pxd). Completion queue, channel
and message buffers are its own. What goes over it is the QueuePair's, which it is made as.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t

from rmemcached.client._devices cimport server_domain, shared_device
from rmemcached.client._exchange cimport Offer
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
    CREDITS = 32             # receives posted
    RECEIVES_AT_A_TIME = 8   # that are posted anew together: a quarter of them
    MESSAGE_SIZE = 8192      # bytes of each, header included
    SEND_BUFFERS = 16
    SEND_DEPTH = 64          # SENDs under way; more credits than that are not used
    INLINE_BYTES = 1024      # on a software device: messages up to this size need no completion
    RECEIVE = 1 << 16        # in wr_id: a receive
    READ = 1 << 17           # in wr_id: a READ of an item
    READS = 16               # RDMA READs under way, of either side


cdef class Endpoint:
    cdef readonly str transport
    cdef int pid                     # of the process that made it
    cdef int fd                      # the lifeline, or rdma_cm's descriptor if by_cm; -1: none yet, or closed
    cdef bytes last_words            # what came on the lifeline
    cdef bint by_cm
    cdef bint lifeline_ended         # also read without a lock
    cdef str fault                   # what was wrong with the stream under it
    cdef uint32_t cm_id              # the connection on it
    cdef server_domain *protection_domain    # the server's; this queue pair is one of its users. NULL: closed
    # Parts of it and of its device, for shorter code.
    cdef shared_device *device
    cdef const verbs_port *port
    cdef const verbs_provider *provider
    cdef bint soft                   # it is the software provider's
    cdef ibv_pd *pd
    # owned; NULL: not there, or closed
    cdef ibv_comp_channel *channel
    cdef ibv_cq *cq
    cdef ibv_qp *qp
    cdef ibv_mr *mr                  # of buffer
    cdef char *buffer                # CREDITS receive messages, then SEND_BUFFERS send messages
    cdef uint32_t psn
    cdef size_t room                 # bytes of payload that a message to the server holds
    cdef size_t eager                # bytes of the largest value that the server puts into messages
    cdef unsigned int tx_credits     # SENDs that may be posted
    cdef unsigned int free_count     # send buffers that no SEND under way uses: free_sends[:free_count]
    cdef uint16_t free_sends[SEND_BUFFERS]
    cdef readonly unsigned int workers   # that the server has
    cdef unsigned int most_lanes     # that the server allows
    cdef size_t lane_bytes           # of each lane's payload, that the server keeps
    cdef bint offers_reads           # the server lets items be read by READs
    cdef str memory                  # Offer.memory

    cdef int post_all_receives(self) except -1
    cdef int open_queue(self) except -1
    cdef int open_messages(self) except -1
    # second: it is no owner of its descriptor afterwards.
    cdef int connect_to(self, Offer offer, second) except -1
    cdef int attach(self, Offer offer, int fd) except -1
    cdef int agree(self, int64_t deadline) except -1
    cdef int accept_welcome(self, const cm_event *event) except -1
    cdef unsigned int most_reads(self) noexcept
    # RECEIVES_AT_A_TIME at most. 0, or an errno value.
    cdef int post_receives(self, const uint16_t *indices, unsigned int count) noexcept nogil
    # What the server has said on the lifeline until it closed it, a second or `limit` ms (-1: none) are over: why the
    # queue pair failed.
    cdef str hear_last_words(self, int limit)
    # Takes one event of the completion channel at most.
    cdef void take_event(self) noexcept nogil
    # The lifeline is readable. False: the connection has ended, and every reply that came before has been taken.
    cdef bint look_at_lifeline(self) noexcept nogil
    # Whether the server has ended the connection, or is about to: no request is to be sent. Any thread.
    cdef bint peer_has_ended(self) noexcept nogil
    # Keeps what was wrong with the stream under the queue pair, which nobody knows any more when that is destroyed.
    cdef void note_fault(self) noexcept
    # Whether this process is a fork of the one that made it.
    cdef bint foreign(self) noexcept nogil
