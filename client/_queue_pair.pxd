"""A connected queue pair to a server (docs/rdma-protocol.md): its set-up, its messages and credits, its end.

Each has a completion queue, a channel and message buffers of its own. The context is the device's, the protection
domain the server's on that device (_devices.pxd). Above it is the RdmaStream on its lane 0, into which `reap` delivers
what arrives.

Progress is made by the calling thread: it polls (`reap`), then sleeps (`arm`, `wait`) on the channel and the lifeline.
One thread at a time. In a forked child only `close` may be called, which leaves the parent's objects alone.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from rmemcached.client._devices cimport server_domain, shared_device
from rmemcached.client._exchange cimport Offer
from rmemcached.client._stream cimport Stream
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.system_cm cimport cm_event
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel,
    ibv_cq,
    ibv_mr,
    ibv_pd,
    ibv_qp,
    ibv_wc_status,
    verbs_provider,
)

cdef enum:
    CREDITS = 32             # receives posted
    MESSAGE_SIZE = 8192      # bytes of each, header included
    SEND_BUFFERS = 16


cdef class QueuePair:
    cdef readonly str transport
    cdef int pid                     # of the process that made it
    cdef int fd                      # the lifeline, or rdma_cm's descriptor if by_cm; -1: none yet, or closed
    cdef bint by_cm
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
    cdef unsigned int owed           # receives posted anew and not yet announced
    cdef unsigned int free_count     # send buffers that no SEND under way uses: free_sends[:free_count]
    cdef uint16_t free_sends[SEND_BUFFERS]
    cdef uint32_t rings              # how often the server had been woken up, as peer_slept last saw it
    cdef bint ready                  # READY has come
    cdef bint failed                 # the queue pair is of no use any more
    cdef ibv_wc_status status        # why
    cdef bint watching               # on a software device: the channel watches the lifeline
    cdef bint lifeline_ended
    cdef bytes last_words            # what came on the lifeline

    # set-up
    cdef int open_queue(self) except -1
    cdef int open_messages(self) except -1
    cdef int connect_to(self, Offer offer, second) except -1
    cdef int agree(self, int64_t deadline) except -1
    cdef int accept_welcome(self, const cm_event *event) except -1
    cdef int start(self, int64_t deadline) except -1
    # messages
    cdef int post_receive(self, unsigned int index) noexcept nogil
    cdef int post_message(self, uint8_t kind, size_t payload) noexcept nogil
    cdef void return_credits(self, Stream lane) noexcept nogil
    cdef int take_message(self, Stream lane, unsigned int index, size_t length) noexcept nogil
    # waiting
    cdef int wait_soft(self, int timeout) noexcept nogil
    cdef void take_event(self) noexcept nogil
    cdef bint look_at_lifeline(self) noexcept nogil

    # For the stream.
    # Where the payload of the next DATA message goes: `room` bytes at most. NULL: none can be sent now.
    cdef char *data_buffer(self) noexcept nogil
    # Sends it, with so many bytes of payload. 1, or a negative errno.
    cdef int post_data(self, size_t payload) noexcept nogil
    # Whether the server slept on this host when the last messages were sent, and had to be woken up.
    cdef bint peer_slept(self) noexcept nogil
    # Whether every SEND has completed: has left this process.
    cdef bint all_sent(self) noexcept nogil
    # Takes the completions that there are, and delivers payload to the lane, which is None until READY has come. 1; 0:
    # the queue pair has failed; a negative errno.
    cdef int reap(self, Stream lane) noexcept nogil
    # Asks for an event of the next completion; reap has to be called once more before wait. Not needed if `soft`. 1, or
    # 0: it has failed.
    cdef int arm(self) noexcept nogil
    # Sleeps until there may be a completion. deadline: now_ns(), or 0 for none. 1; 0: it has failed; a negative errno.
    cdef int wait(self, int64_t deadline) noexcept nogil
    # Why the connection has ended, as far as known. Waits up to a second for the line in which the server says it.
    cdef str failure_text(self)
    # Whether this is another process than the one that made it.
    cdef bint foreign(self) noexcept nogil
    # Ends the connection: nobody can reach this process's memory through it any more.
    cdef void disconnect(self) noexcept
    # disconnect, and the rest. No registration with `pd` may be left.
    cdef void close(self) noexcept
