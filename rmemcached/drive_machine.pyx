"""The connection state machine (see drive_machine.pxd)."""

from libc.stddef cimport size_t
from libc.stdio cimport fprintf, stderr
from libc.string cimport memcpy
from posix.uio cimport iovec

from rmemcached.sys.atomics cimport counter_add, relaxed_load
from rmemcached.sys.debug cimport assert_owner, assert_that
from rmemcached.protocol.ascii cimport complete_nread_ascii, resume_get, try_read_command_ascii
from rmemcached.protocol.binary cimport complete_nread_binary, try_read_command_binary
from rmemcached.protocol.conn cimport (
    CONN_NAME, WANT_AUTH, WANT_CLOSE, WANT_FLUSH, WANT_INPUT, WANT_LENT, WANT_PAYLOAD, WANT_REMOTE_PAYLOAD, WANT_YIELD,
    ascii_prot, binary_prot, conn, conn_auth, conn_charge, conn_closing, conn_logs, conn_mwrite, conn_name,
    conn_new_cmd, conn_nread, conn_output_full, conn_parse_cmd, conn_payload_iov, conn_payload_received, conn_rdma_read,
    conn_read, conn_read_keys, conn_resume, conn_state_name, conn_states, conn_swallow, conn_waiting, conn_want,
    conn_watch, negotiating_prot,
)
from rmemcached.protocol.protocol_binary cimport PROTOCOL_BINARY_REQ
from rmemcached.protocol.reply cimport resp_rollback


cdef void copy_payload(conn *c) noexcept nogil:
    """Copies the payload's bytes from the input into the item."""
    cdef iovec iov[8]
    cdef size_t n
    cdef int count, i
    while c.rlbytes and c.rbytes:
        count = conn_payload_iov(c, iov, 8)
        for i in range(count):
            n = iov[i].iov_len if iov[i].iov_len < c.rbytes else c.rbytes
            memcpy(iov[i].iov_base, c.rcurr, n)
            c.rcurr += n
            c.rbytes -= n
            conn_payload_received(c, n)


cdef void negotiate(conn *c) noexcept nogil:
    """Sets the protocol by the first byte of the connection."""
    cdef char name[CONN_NAME]
    c.negotiated = True
    c.protocol = binary_prot if <unsigned char>c.rcurr[0] == PROTOCOL_BINARY_REQ else ascii_prot
    if conn_logs(c):
        fprintf(stderr, b"%s: Client using the %s protocol\n", conn_name(c, name),
                <const char *>b"binary" if c.protocol == binary_prot else <const char *>b"ascii")


cdef inline bint try_read_command(conn *c) noexcept nogil:
    if c.protocol == negotiating_prot:
        negotiate(c)
    if c.protocol == ascii_prot:
        return try_read_command_ascii(c)
    return try_read_command_binary(c)


cdef inline void count_command(conn *c) noexcept nogil:
    """Counts a command against reqs_left. Past the memory limit, ends the connection."""
    c.reqs_left -= 1
    if not conn_charge(c):
        # As in memcached, waiting replies are dropped. An engine with `remote` may be writing the value of a reply, and
        # keeps the replies.
        if not c.engine.remote:
            resp_rollback(c, NULL, 0)
        c.mget = 0
        c.state = conn_closing


cdef void log_change(const conn *c, conn_states was, conn_states state) noexcept nogil:
    cdef char name[CONN_NAME]
    fprintf(stderr, b"%s: going from %s to %s\n", conn_name(c, name), conn_state_name(was), conn_state_name(state))


cdef void log_state(const conn *c, conn_states was) noexcept nogil:
    """Writes a change of state like memcached's -vvv. Before a wait memcached sends replies in conn_mwrite, and so
    writes two more lines.
    """
    if was == conn_new_cmd and c.state == conn_waiting:
        log_change(c, conn_new_cmd, conn_mwrite)
        log_change(c, conn_mwrite, conn_new_cmd)
    log_change(c, was, <conn_states>c.state)


cdef conn_want drive_machine(conn *c) noexcept nogil:
    """Runs the states until the connection wants something.

    Long: a branch for each state, in one function as in memcached, to show all transitions in one place.
    """
    cdef size_t n
    cdef conn_states was = <conn_states>c.state
    cdef bint logs = relaxed_load(&c.thread.hooks.verbose) > 2
    cdef bint waited = True      # False: the present input has been looked at, and is no whole command
    assert_owner(c.thread.owner)
    assert_that(c.state != conn_watch)
    c.reqs_left = c.thread.reqs_per_event
    c.thread.cur_sfd = c.sfd
    if c.npending == 0:
        c.charged = 0
    while True:
        assert_that(c.item != NULL or (c.state != conn_nread and c.state != conn_rdma_read))
        assert_that(c.item != NULL or c.rlbytes == 0)
        assert_that(c.mget != 0 or (c.state != conn_resume and c.state != conn_read_keys))
        assert_that(c.mget == 0 or c.state == conn_resume or c.state == conn_read_keys or c.state == conn_new_cmd
                    or c.state == conn_mwrite)
        if logs and c.state != was:
            log_state(c, was)
            was = <conn_states>c.state
        if c.state == conn_parse_cmd:
            if try_read_command(c):
                count_command(c)
            elif c.state == conn_parse_cmd:
                c.state = conn_waiting
        elif c.state == conn_new_cmd:
            if conn_output_full(c):
                c.state = conn_mwrite
            elif c.rbytes == 0:
                c.state = conn_waiting
            elif c.reqs_left == 0:
                counter_add(&c.thread.stats.conn_yields, 1)
                return WANT_YIELD
            else:
                c.state = conn_resume if c.mget else conn_parse_cmd
        elif c.state == conn_waiting:
            waited = False
            c.state = conn_read
        elif c.state == conn_read:
            if c.rbytes == 0 or not waited:
                return WANT_INPUT
            c.state = conn_parse_cmd
        elif c.state == conn_nread:
            copy_payload(c)
            if c.rlbytes:
                return WANT_PAYLOAD
            if c.protocol == binary_prot:
                complete_nread_binary(c)
            else:
                complete_nread_ascii(c)
        elif c.state == conn_swallow:
            n = c.sbytes if c.sbytes < c.rbytes else c.rbytes
            c.rcurr += n
            c.rbytes -= n
            c.sbytes -= n
            if c.sbytes:
                return WANT_INPUT
            c.state = conn_new_cmd
        elif c.state == conn_rdma_read:
            if c.rlbytes:
                return WANT_REMOTE_PAYLOAD
            complete_nread_ascii(c)
        elif c.state == conn_mwrite:
            if conn_output_full(c):
                return WANT_FLUSH
            c.state = conn_new_cmd
        elif c.state == conn_resume:
            if resume_get(c):
                count_command(c)
            else:
                waited = False
        elif c.state == conn_read_keys:
            if c.rbytes == 0 or not waited:
                return WANT_INPUT
            c.state = conn_resume
        elif c.state == conn_watch:
            return WANT_LENT
        elif c.state == conn_auth:
            return WANT_AUTH
        else:
            # conn_closing, conn_closed
            return WANT_CLOSE
