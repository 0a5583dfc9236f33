"""The per-connection RDMA resource: exchange, post, complete, tear down (docs/rdma-protocol.md).

A `rdma_device` is shared by all workers; a `rdma_thread` and everything below it belongs to one worker and is used by
that thread alone, except where noted. The layer knows no sockets but the stream it hands to the provider, and nothing
of the server above it: the server gives it the drive machine and a function to call when a connection has failed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from rmemcached.sys.linux cimport sockaddr_in6
from rmemcached.protocol.conn cimport conn, conn_thread, conn_want
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.rdma.wire cimport RDMA_HOST_MAX, RDMA_TRANSPORTS, rdma_transport
from rmemcached.verbs.port cimport verbs_port
from rmemcached.verbs.system_cm cimport CM_REQUEST_DATA, cm_address

cdef enum:
    RDMA_DEVICES = RDMA_TRANSPORTS   # a server has at most one for each
    RDMA_PATH_MAX = 128

# Where the streams of soft_shm meet, and which clients can get there.
cdef struct rdma_place:
    char host[RDMA_HOST_MAX + 1]
    unsigned long netns      # the network namespace that the path belongs to; 0: any
    char path[RDMA_PATH_MAX]   # as in the exchange: a path, or @ and an abstract name. Empty: the lifeline's socket

ctypedef conn_want (*drive_fn)(conn *c) noexcept nogil
# Called as the last thing that is done with a connection whose queue pair failed; `line` (with \r\n) says why, or is
# NULL when the peer went away. The function may call rdma_conn_destroy.
ctypedef void (*rdma_failed_fn)(void *owner, const char *line) noexcept nogil

cdef struct rdma_limits:
    unsigned int credits     # receives posted per queue pair
    unsigned int msgsize     # bytes of each
    unsigned int eager       # values up to this many bytes travel in SENDs
    unsigned int ird
    unsigned int ord
    unsigned int max_qps
    bint crc

# What a client that connects through rdma_cm asks for.
cdef struct rdma_request:
    uint32_t id              # on a descriptor of its own
    cm_address where
    unsigned int responder_resources
    unsigned int initiator_depth
    char private_data[CM_REQUEST_DATA]

cdef struct rdma_device      # complete in rdma_conn.pyx
cdef struct rdma_thread
cdef struct rdma_conn

# place: for soft_shm; else NULL.
cdef rdma_device *rdma_device_open(const verbs_port *port, rdma_transport transport, const rdma_limits *limits,
                                   const rdma_place *place, drive_fn drive, rdma_failed_fn failed,
                                   const char **error) noexcept nogil
cdef void rdma_device_close(rdma_device *dev) noexcept nogil
# Registers item memory (local write only). Any thread; extents come in rising order and are ARENA_EXTENT long or the
# arena's last.
cdef int rdma_device_add_extent(rdma_device *dev, void *addr, size_t length) noexcept nogil
# Whether so much memory can be registered at all: registers some and gives it back. 0 or an errno value.
cdef int rdma_device_try_memory(rdma_device *dev, size_t length) noexcept nogil

cdef rdma_thread *rdma_thread_create(rdma_device *dev, conn_thread *worker) noexcept nogil
cdef void rdma_thread_destroy(rdma_thread *t) noexcept nogil
cdef int rdma_thread_fd(rdma_thread *t) noexcept nogil
# A thread of soft_shm tells at once whether there is something to serve, as long as it is asked (`readable`: its
# descriptor is); before it is to be slept on, rdma_thread_arm must have returned false. Both are false for other
# transports.
cdef bint rdma_thread_poll(rdma_thread *t, bint readable) noexcept nogil
cdef bint rdma_thread_arm(rdma_thread *t) noexcept nogil
# Serves what has completed. True: lanes gave way after reqs_per_event commands, call again soon.
cdef bint rdma_thread_run(rdma_thread *t) noexcept nogil

# Constant as long as the device is open.
cdef const verbs_port *rdma_device_port(rdma_device *dev) noexcept nogil
# To be watched for reading: asynchronous events.
cdef int rdma_device_async_fd(rdma_device *dev) noexcept nogil
# Takes the asynchronous events there are. True, with one line in why: the device is of no use any more; its threads and
# connections are to be destroyed, and then itself. One thread.
cdef bint rdma_device_lost(rdma_device *dev, char *why, size_t size) noexcept nogil
# Lets heir go on counting what dev, which has no threads any more, has counted.
cdef void rdma_device_bequeath(rdma_device *dev, rdma_device *heir) noexcept nogil
cdef rdma_thread *rdma_conn_thread(rdma_conn *rc) noexcept nogil

# Answers an exchange line that came over sfd, the lifeline, with the worker's part of the device whose transport it
# names. threads: one for each transport, NULL where there is no device, but one at least. Returns the new
# connection, or NULL with an error line in reply.
cdef rdma_conn *rdma_exchange(rdma_thread **threads, void *owner, int sfd, bint has_one,
                              const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil
# Accepts or rejects a connection of rdma_cm, whose descriptor cm_fd is. NULL: rejected; cm_fd is to be closed. Else it
# is to be watched: cm_ended tells of its end.
cdef rdma_conn *rdma_cm_accept(rdma_thread **threads, void *owner, int cm_fd,
                               const rdma_request *request) noexcept nogil
# Rejects it with a line (without \r\n) as the reason.
cdef void rdma_cm_refuse(int cm_fd, uint32_t id, const char *line) noexcept nogil
# The address that the client has connected to.
cdef const sockaddr_in6 *rdma_cm_local(rdma_conn *rc) noexcept nogil
# Makes sure that the peer is there: if it does not answer, the connection fails within seconds.
cdef void rdma_conn_probe(rdma_conn *rc) noexcept nogil
# Serves what has come so far, before the connection is ended. May end it by itself.
cdef void rdma_conn_finish(rdma_conn *rc) noexcept nogil
cdef void rdma_conn_destroy(rdma_conn *rc) noexcept nogil
# Store time of the last command that any of its lanes did.
cdef uint32_t rdma_conn_last_cmd(rdma_conn *rc) noexcept nogil

# `received` octets were read from fd, which begin like the request of a stream of dev's transport. 0: more are needed;
# 1: fd now belongs to a queue pair; -1: refused, the caller closes fd. Any thread. Not for TRANSPORT_VERBS.
cdef int rdma_stream_request(rdma_device *dev, int fd, const char *data, size_t received) noexcept nogil

# Appends the lines of `stats rdma`: sums over the devices, one for each transport or NULL. Any thread.
cdef void rdma_stats(rdma_device **devices, stat_buf *out) noexcept nogil
