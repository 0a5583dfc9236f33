from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from rmemcached.client._stream cimport Stream
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.system_cm cimport cm_event
from rmemcached.verbs.verbs cimport (
    ibv_comp_channel,
    ibv_cq,
    ibv_mr,
    ibv_pd,
    ibv_qp,
    ibv_wc,
    ibv_wc_status,
    verbs_provider,
)

cdef enum:
    CREDITS = 32             # receives posted
    MESSAGE_SIZE = 8192      # bytes of each, header included
    SEND_BUFFERS = 16
    HEADER_SIZE = 8


cdef class RdmaStream(Stream):
    # self.fd is the lifeline, or rdma_cm's descriptor with the connection cm_id, if by_cm. buffer: CREDITS receive
    # messages, then SEND_BUFFERS send messages
    cdef str transport
    cdef bint by_cm
    cdef uint32_t cm_id
    cdef void *device                # a `device` of this process; NULL when it is closed
    cdef const verbs_port *port      # its port
    cdef const verbs_provider *provider
    cdef ibv_pd *domain
    cdef ibv_comp_channel *channel
    cdef ibv_cq *cq
    cdef ibv_qp *qp
    cdef ibv_mr *mr
    cdef char *buffer
    cdef uint32_t psn
    cdef size_t send_size            # bytes of the largest message the server takes, at most MESSAGE_SIZE
    cdef unsigned int tx_credits     # SENDs that may be posted
    cdef unsigned int owed           # receives posted anew and not yet announced
    cdef unsigned int free_count
    cdef uint16_t free_sends[SEND_BUFFERS]
    cdef uint64_t received           # payload bytes so far
    cdef bint ready                  # READY has come
    cdef bint failed                 # the queue pair is of no use any more
    cdef ibv_wc_status status        # why
    cdef bint lifeline_ended
    cdef bytes last_words            # what came on the lifeline
    # memory of the caller that requests of this call name
    cdef ibv_mr **exposed
    cdef size_t exposed_count
    cdef size_t exposed_cap
    cdef size_t exposed_bytes        # in them together
    # soft_shm: copies of them, in memory that the server maps. source_used: bytes that requests of this call name
    cdef ibv_mr *source_mr
    cdef size_t source_used
    # where values are written: a bytes object that nobody else has seen
    cdef PyObject *landing
    cdef size_t landing_size
    cdef size_t last_sunk            # bytes of the last value that was put there
    cdef size_t landing_next         # size of the next one
    cdef ibv_mr *landing_mr
    cdef unsigned int landing_misfits  # values in a row that were small for the buffer
    cdef size_t landing_peak         # the largest of them

    cdef object no_resource(self, str what)
    cdef object no_registration(self, size_t length)
    cdef bint do_without(self, size_t length) except -1
    cdef int agree(self, uint64_t deadline) except -1
    cdef int take_welcome(self, const cm_event *event) except -1
    cdef int start(self, timeout) except -1
    cdef int post_receive(self, unsigned int index) noexcept nogil
    cdef int post_message(self, uint8_t kind, unsigned int index, size_t payload) noexcept nogil
    cdef bint may_send(self) noexcept nogil
    cdef void return_credits(self) noexcept nogil
    cdef int take_message(self, unsigned int index, size_t length) noexcept nogil
    cdef int reap(self) noexcept nogil
    cdef uint64_t deadline(self) noexcept nogil
    cdef int wait(self, uint64_t deadline) noexcept nogil
    cdef bint drained(self) noexcept nogil
    cdef int advance(self, bint draining) noexcept nogil
    cdef bint copy_out(self, const char *data, size_t length) except -1
    cdef bint register_value(self, const char *data, size_t length, uint64_t *address, uint32_t *key) except -1
    cdef void unexpose(self) noexcept
    cdef void drop_landing(self) noexcept
