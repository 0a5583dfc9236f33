"""The text of `stats conns`."""

from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset, strlen

from rmemcached.sys.atomics cimport relaxed_load
from rmemcached.sys.linux cimport (
    AF_INET, AF_INET6, AF_UNIX, getsockname, inet_ntop, ntohs, pthread_mutex_lock, pthread_mutex_unlock, qsort,
    sockaddr, sockaddr_in, sockaddr_in6, sockaddr_un, socklen_t,
)
from rmemcached.logger cimport LOG_RDMA, LOG_UDP, log_transport
from rmemcached.protocol.conn cimport conn, conn_state_name, conn_states
from rmemcached.protocol.stats_text cimport stat_append, stat_append_text, stat_buf
from rmemcached.rdma_conn cimport rdma_cm_local, rdma_conn_lanes
from rmemcached.server.layout cimport server
from rmemcached.server.udp cimport udp_socket
from rmemcached.server.worker cimport connection, worker
from rmemcached.store.store cimport ITEM_UPDATE_INTERVAL, rel_time_t, store_time

cdef enum:
    HOST_TEXT = 128              # an address without its kind and port, or a path
    ADDRESS_TEXT = HOST_TEXT + 32

cdef union any_address:
    sockaddr plain
    sockaddr_in in4
    sockaddr_in6 in6
    sockaddr_un un

cdef struct conn_row:            # a socket, or a lane
    int fd                       # of a lane: its lifeline's
    uint32_t lane                # 0: a socket
    log_transport transport
    bint listening
    bint rdma
    conn_states state
    rel_time_t idle
    any_address peer
    any_address local


cdef void address_text(const any_address *a, log_transport transport, char *out) noexcept nogil:
    """Writes an address as memcached does: tcp:1.2.3.4:5, tcp6:[::1]:5, unix:/path; ?:<AF 0> for a UNIX socket's
    client. rdma: and rdma6: are addresses of rdma_cm."""
    cdef char text[HOST_TEXT]
    cdef const char *name = b"?"
    cdef unsigned int port = 0
    text[0] = 0
    if a.plain.sa_family == AF_INET:
        inet_ntop(AF_INET, &a.in4.sin_addr, text, sizeof(text))
        port = ntohs(a.in4.sin_port)
        name = b"udp" if transport == LOG_UDP else b"rdma" if transport == LOG_RDMA else b"tcp"
    elif a.plain.sa_family == AF_INET6:
        inet_ntop(AF_INET6, &a.in6.sin6_addr, text, sizeof(text))
        port = ntohs(a.in6.sin6_port)
        name = b"udp6" if transport == LOG_UDP else b"rdma6" if transport == LOG_RDMA else b"tcp6"
        snprintf(out, ADDRESS_TEXT, b"%s:[%s]:%u", name, text, port)
        return
    elif a.plain.sa_family == AF_UNIX:
        snprintf(text, sizeof(text), b"%.*s", <int>sizeof(a.un.sun_path), a.un.sun_path)
        name = b"unix"
    if strlen(text) < 2:
        snprintf(text, sizeof(text), b"<AF %u>", <unsigned int>a.plain.sa_family)
    if port:
        snprintf(out, ADDRESS_TEXT, b"%s:%s:%u", name, text, port)
    else:
        snprintf(out, ADDRESS_TEXT, b"%s:%s", name, text)


cdef void local_address(int fd, any_address *out) noexcept nogil:
    cdef socklen_t length = sizeof(any_address)
    memset(out, 0, sizeof(any_address))
    getsockname(fd, &out.plain, &length)


cdef int by_fd(const void *a, const void *b) noexcept nogil:
    """For qsort: orders rows by descriptor, then by lane."""
    cdef const conn_row *first = <const conn_row *>a
    cdef const conn_row *second = <const conn_row *>b
    if first.fd != second.fd:
        return first.fd - second.fd
    return <int>first.lane - <int>second.lane


cdef struct row_list:
    conn_row *rows
    size_t n
    size_t room
    rel_time_t now


cdef void add_lane(void *arg, const conn *c, uint32_t id) noexcept nogil:
    """For rdma_conn_lanes: adds a copy of the last row, of the lifeline or its previous lane, with the lane's own
    values."""
    cdef row_list *list = <row_list *>arg
    cdef conn_row *row = &list.rows[list.n]
    if list.n == list.room:
        return
    row[0] = (row - 1)[0]
    row.lane = id
    row.state = <conn_states>relaxed_load(&c.state)
    row.idle = list.now - <rel_time_t>relaxed_load(<rel_time_t *>&c.last_cmd_time)
    list.n += 1


cdef size_t worker_rows(worker *w, conn_row *rows, size_t room) noexcept nogil:
    """Describes at most `room` connections of a worker, UDP sockets and lanes included. Returns their number. Any
    thread may call this: it takes the list_lock of w."""
    cdef rel_time_t now = store_time(w.thread.store)
    cdef size_t n = 0
    cdef connection *cn
    cdef row_list lanes
    cdef udp_socket *u = w.udp
    while u != NULL and n < room:
        # UDP sockets are there before the workers start, and stay.
        memset(&rows[n], 0, sizeof(conn_row))
        rows[n].fd = u.fd
        rows[n].transport = LOG_UDP
        rows[n].listening = True
        rows[n].idle = now - <rel_time_t>relaxed_load(&u.c.last_cmd_time)
        local_address(u.fd, &rows[n].local)
        n += 1
        u = u.next
    pthread_mutex_lock(&w.list_lock)
    cn = w.connections
    while cn != NULL and n < room:
        memset(&rows[n], 0, sizeof(conn_row))
        rows[n].fd = cn.stream.fd
        rows[n].transport = <log_transport>cn.peer.transport
        rows[n].rdma = relaxed_load(&cn.rdma) != 0
        rows[n].state = <conn_states>relaxed_load(&cn.c.state)
        rows[n].idle = now - <rel_time_t>relaxed_load(&cn.c.last_cmd_time)
        memcpy(&rows[n].peer, &cn.peer.addr, sizeof(cn.peer.addr))
        if cn.peer.transport != LOG_RDMA:
            local_address(cn.stream.fd, &rows[n].local)
        elif cn.rdma != NULL:
            memcpy(&rows[n].local, rdma_cm_local(cn.rdma), sizeof(sockaddr_in6))
        n += 1
        if cn.rdma != NULL:
            lanes = row_list(rows, n, room, now)
            rdma_conn_lanes(cn.rdma, add_lane, &lanes)
            n = lanes.n
        cn = cn.next
    pthread_mutex_unlock(&w.list_lock)
    return n


cdef void append_field(stat_buf *out, const conn_row *row, const char *field, const char *text) noexcept nogil:
    """text: NULL for the number of idle seconds."""
    cdef char name[80]
    if row.lane:
        snprintf(name, sizeof(name), b"%d.%u:%s", row.fd, row.lane, field)
    else:
        snprintf(name, sizeof(name), b"%d:%s", row.fd, field)
    if text != NULL:
        stat_append_text(out, name, text)
    else:
        stat_append(out, name, row.idle)


cdef void append_row(const conn_row *row, stat_buf *out) noexcept nogil:
    cdef char text[ADDRESS_TEXT]
    if row.transport == LOG_UDP:
        append_field(out, row, b"UDP", b"UDP")
    address_text(&row.local if row.listening else &row.peer, row.transport, text)
    append_field(out, row, b"addr", text)
    if not row.listening:
        address_text(&row.local, row.transport, text)
        append_field(out, row, b"listen_addr", text)
    if row.rdma:
        append_field(out, row, b"rdma", b"yes")
    if not row.listening:
        append_field(out, row, b"state", conn_state_name(row.state))
    else:
        append_field(out, row, b"state", b"conn_read" if row.transport == LOG_UDP else b"conn_listening")
    append_field(out, row, b"secs_since_last_cmd", NULL)


cdef void conns_text(server *s, stat_buf *out) noexcept nogil:
    """Lists every socket, in the order of descriptors, and its lanes. Connections accepted meanwhile may be missing."""
    cdef size_t room = <size_t>relaxed_load(&s.curr_connections) + 64
    cdef size_t n = 0, i
    cdef rel_time_t uptime = store_time(s.store) - ITEM_UPDATE_INTERVAL - 2
    cdef conn_row *rows = <conn_row *>calloc(room, sizeof(conn_row))
    if rows == NULL:
        out.failed = True
        return
    for i in range(s.nlisteners):
        if s.listeners[i].transport == LOG_UDP or s.listeners[i].stream_only:
            continue
        rows[n].fd = s.listeners[i].fd
        rows[n].transport = s.listeners[i].transport
        rows[n].listening = True
        rows[n].idle = uptime
        local_address(rows[n].fd, &rows[n].local)
        n += 1
    for i in range(s.settings.num_threads):
        n += worker_rows(&s.workers[i], rows + n, room - n)
    qsort(rows, n, sizeof(conn_row), by_fd)
    for i in range(n):
        append_row(&rows[i], out)
    free(rows)
