"""The attach functions of transports.py's rows: second connections (docs/rdma-protocol.md, section 3)."""

import logging
import os
import socket
from contextlib import closing, suppress
from errno import ENOMEM

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport errno
from libc.string cimport memset

from rmemcached.client.transport._direct cimport map_memory
from rmemcached.client.transport._endpoint cimport READS, reads_of
from rmemcached.client.transport._errors cimport os_error
from rmemcached.client.transport._exchange cimport Offer
from rmemcached.client.transport._queue_pair cimport QueuePair
from rmemcached.client.transport._tls cimport begin_tls
from rmemcached.client.transport._uninterrupted cimport take_descriptor
from rmemcached.rdma.wire cimport (
    ATTACH_LENGTH,
    SHM_KEY_LENGTH,
    SHM_MEMORY_PARTS,
    SHM_REPLY_KEY,
    SHM_REQUEST_LENGTH,
    put_attach,
    put_shm_request,
)
from rmemcached.streams.stream cimport plain_stream, stream
from rmemcached.sys.linux cimport close_fd, set_nonblocking
from rmemcached.verbs.soft cimport soft_iw_connect, soft_iw_options, soft_shm_attach

from rmemcached.client.exceptions import MemcacheServerError, TransportUnavailable
from rmemcached.client.transport._exchange import REPLY_LIMIT
from rmemcached.client.transport.sockets import open_socket, open_unix

cdef object logger = logging.getLogger("rmemcached.client")
cdef bytes REPLY = SHM_REPLY_KEY[:SHM_KEY_LENGTH]
# (server, text) of each warning logged by tell_once.
cdef set told = set()


def attach_iw(client, QueuePair queue not None, Offer offer not None, lifeline):
    """Connects to the lifeline's peer once more, by TLS if the lifeline has it. See Transport.attach."""
    cdef soft_iw_options options
    cdef char request[ATTACH_LENGTH]
    cdef stream second
    cdef bint covered = client.tls_context is not None
    cdef int result
    if covered and not offer.key:
        raise TransportUnavailable("the server does not take its iWARP stream inside TLS (another server's TLS?)")
    peer = lifeline.getpeername()
    put_attach(request, offer.qpn, PyBytes_AS_STRING(offer.token))
    memset(&options, 0, sizeof(options))
    options.crc = offer.crc
    options.ird = READS
    options.ord = reads_of(offer)
    options.private_data = request
    options.private_length = ATTACH_LENGTH
    second.calls = &plain_stream
    with closing(open_socket((peer[0], peer[1]), client.connect_timeout, client.socket_keepalive, True)) as plain:
        second.fd = take_descriptor(plain)
    try:
        if set_nonblocking(second.fd) < 0:
            raise os_error("iWARP stream", errno)
        if covered:
            begin_tls(&second, offer.key, lifeline.gettimeout())
            options.cover = &second
        with nogil:
            result = soft_iw_connect(queue.qp, second.fd, &options)
        if result < 0:
            raise os_error("iWARP stream", errno)
    except BaseException:
        second.calls.end(&second)
        raise


def attach_shm(client, QueuePair queue not None, Offer offer not None, lifeline):
    """Connects to the UNIX socket named in the offer, or to the lifeline's; maps the items if the server gives them.
    See Transport.attach.
    """
    cdef int fd
    second, memory = open_shm(client.server, offer, lifeline.gettimeout())
    with closing(second):
        try:
            if memory:
                queue.direct = map_memory(memory[0], memory[1])
        except OSError as error:
            tell_once(client.server, error)
        finally:
            for part in memory:
                os.close(part)
        fd = take_descriptor(second)
        if set_nonblocking(fd) < 0 or soft_shm_attach(queue.qp, fd, READS, 1) < 0:
            error = os_error("shared memory", errno)
            close_fd(fd)
            raise error


cdef int tell_once(server, error) except -1:
    # Logs why a server's memory cannot be read here: nothing else would say why gets are slower.
    text = f"{error.strerror}{' (ulimit -v)' if error.errno == ENOMEM else ''}"
    if (server, text) not in told:
        told.add((server, text))
        logger.warning("%s: the items' memory cannot be mapped: %s; gets ask the server", server, text)
    return 0


cdef tuple open_shm(server, Offer offer, timeout):
    # The connection, accepted by the server, and both descriptors of the items' memory, if the server gives them. The
    # caller closes the descriptors. timeout: seconds, or None. Raises MemcacheServerError.
    cdef bytes request = PyBytes_FromStringAndSize(NULL, SHM_REQUEST_LENGTH)
    put_shm_request(PyBytes_AS_STRING(request), offer.qpn, PyBytes_AS_STRING(offer.token))
    path = offer.path or server
    if not isinstance(path, str):
        raise MemcacheServerError("the server's answer to the RDMA exchange names no path")
    try:
        second = open_unix("\0" + path[1:] if path.startswith("@") else path, timeout)
        try:
            reply, memory = ask_for_shm(second, request)
        except BaseException:
            second.close()
            raise
    except OSError as error:
        raise MemcacheServerError(f"{path}: {error.strerror or error}") from error
    if reply != REPLY:
        second.close()
        text = reply.decode("ascii", "replace").strip()
        raise MemcacheServerError(text or "the server closed the connection for shared memory")
    return second, memory


cdef tuple ask_for_shm(second, bytes request):
    # Sends the request. Returns REPLY or the server's error line, and the descriptors of the items' memory if they came
    # with REPLY. Raises OSError.
    cdef bytes reply = b""
    cdef list memory = []
    # A server that refuses may close before it has read anything.
    with suppress(BrokenPipeError):
        second.sendall(request)
    try:
        with suppress(ConnectionResetError):
            while len(reply) < len(REPLY) and second.recv(1, socket.MSG_PEEK):
                # recv_fds does not wait on sockets of gevent and eventlet: the recv above waits.
                more, descriptors, *_ = socket.recv_fds(
                    second, len(REPLY) - len(reply), <int>SHM_MEMORY_PARTS, socket.MSG_CMSG_CLOEXEC)
                memory += descriptors
                reply += more
            while reply != REPLY and len(reply) < REPLY_LIMIT and (more := second.recv(REPLY_LIMIT - len(reply))):
                reply += more
        given = memory if len(memory) == <int>SHM_MEMORY_PARTS and reply == REPLY else []
        memory = [] if given else memory
        return reply, given
    finally:
        for surplus in memory:
            os.close(surplus)
