# A socket whose first bytes ask to be the transport stream of a queue pair (docs/rdma-protocol.md, section 3): its
# request is collected, and the worker whose queue pair the request names gets the socket. The worker's thread.

# Whether the input of a connection that is CONNECTION_FRESH or CONNECTION_STREAM may be such a request. It is not
# CONNECTION_FRESH any more.
cdef bint begins_stream(connection *cn) noexcept nogil
# Hands the socket over if the request is whole. What is none after all goes to the machine, as a line that begins with
# the same letters.
cdef void stream_readable(connection *cn) noexcept nogil
