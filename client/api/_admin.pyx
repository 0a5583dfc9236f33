"""See _admin.pxd."""

import re

from cpython.bytes cimport PyBytes_AS_STRING
from libc.errno cimport EMSGSIZE

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._reads cimport forget_clocks
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport (
    answer,
    checked_key,
    convert_statistics,
    exact_bytes,
    integer_text,
    is_error,
    is_refusal,
    put_bytes,
    read_statistic,
)
from rmemcached.sys.linux cimport memmem

from rmemcached.client.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownError,
)

cdef enum:
    STATISTICS_MOST = 1 << 20  # lines; more of them are not believed

cdef object STORAGE = re.compile(rb"(set|add|replace|append|prepend|cas|ms) [^\n]*\n[^\n]*", re.DOTALL)


cdef bint goes_on(bytes line):
    # Whether a raw command may have several answers.
    return line.startswith(b"watch") or b"\n" in line and STORAGE.fullmatch(line) is None


cdef bytes as_bytes(object text, str encoding="ascii"):
    if isinstance(text, str):
        return text.encode(encoding)
    if isinstance(text, bytes):
        return exact_bytes(text)
    raise TypeError(f"bytes or str are needed, not {type(text).__name__}")


cdef bytes command(Session session, bytes line, bytes name, bytes wanted=None):
    cdef Connection c = session.enter(False, name)
    cdef Stream s = c.stream
    cdef list errors = []
    cdef bytes said
    try:
        put_bytes(s, line)
        c.exchange()
        said = answer(s)
        if is_error(said):
            c.refused_by(said, errors)
        elif wanted is not None and said != wanted:
            errors.append(c.named(MemcacheClientError(said)))
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return said


cdef dict ask_stats(Session session, list words):
    cdef Connection c = session.enter(False, b"stats")
    cdef Stream s = c.stream
    cdef list errors = []
    cdef dict result = {}
    cdef Py_ssize_t lines = 0
    cdef bytes line
    try:
        put_bytes(s, b" ".join([b"stats", *words]) + b"\r\n")
        c.exchange()
        while True:
            line = answer(s)
            if line in (b"END", b"OK", b"RESET"):
                break
            if not read_statistic(line, result):
                c.refused_by(line, errors)
                break
            lines += 1
            if lines == STATISTICS_MOST:
                raise c.broken(-EMSGSIZE)
            c.next_line()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return result


cdef dict stats(Session session, tuple args):
    cdef list words = [checked_key(as_bytes(arg)) for arg in args]
    cdef dict result
    try:
        result = ask_stats(session, words)
    except Exception as error:
        if not session.ignore_exc:
            if isinstance(error, MemcacheError) and error.command == "stats":
                # The exception also names the wanted statistics.
                error.command = b" ".join([b"stats", *words]).decode("ascii", "backslashreplace")
            raise
        return {}
    convert_statistics(result)
    return result


cdef bytes version(Session session):
    cdef bytes line = command(session, b"version\r\n", b"version")
    before, _, after = line.partition(b" ")
    if before != b"VERSION":
        raise MemcacheUnknownError(f"Received unexpected response: {line!r}")
    return after


cdef bint flush_all(Session session, object delay, object noreply) except -1:
    cdef bytes line = b"flush_all " + integer_text(delay, "delay")
    cdef Connection c
    if not session.is_quiet(noreply):
        try:
            return command(session, line + b"\r\n", b"flush_all") == b"OK"
        finally:
            forget_clocks()
    c = session.enter(True, b"flush_all")
    try:
        put_bytes(c.stream, line + b" noreply\r\n")
        c.unanswered(1)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, None)
    forget_clocks()
    return True


cdef bytes read_until(Connection c, bytes token):
    # Returns the bytes from the line just read up to the token. Reads more input until the token has come.
    cdef Stream s = c.stream
    cdef char *start
    cdef char *found
    cdef bytes text
    s.rpos = s.line - s.rbuf
    while True:
        start = s.rbuf + s.rpos
        found = <char *>memmem(start, s.rend - s.rpos, PyBytes_AS_STRING(token), len(token))
        if found != NULL:
            break
        c.fill()
    text = start[:found - start]
    s.rpos += len(text) + len(token)
    return text


cdef bytes raw_command(Session session, object given, object end_tokens):
    cdef str encoding = "utf8" if session.allow_unicode_keys else "ascii"
    cdef bytes line = as_bytes(given, encoding)
    cdef bytes token = as_bytes(end_tokens, encoding)
    cdef list errors = []
    cdef bytes text
    cdef bint refused
    cdef Connection c = session.enter(False, line)
    cdef Stream s = c.stream
    try:
        put_bytes(s, line + b"\r\n")
        c.exchange()
        text = answer(s)
        # BUSY is a refusal for a caller with end_tokens of more than a line. Without them BUSY is the text returned.
        refused = is_error(text) or token != b"\r\n" and is_refusal(text)
        if not refused:
            text = read_until(c, token)
        if s.unmarked or s.rpos != s.rend or goes_on(line) or (
                not refused and token == b"\r\n" and text.startswith((b"VA", b"STAT"))):
            # More of the answer may come. With an earlier epoch `leave` closes the connection, and the next command
            # gets another connection.
            c.epoch -= 1
            s.rpos = s.rend
        else:
            # Input that still comes belongs to this command. Counted here as a command without a reply, so the next
            # command drops the input.
            s.noreplies += 1
        if s.iov_next < s.iov_count:
            # The server has answered before the end of the line had come: sends the rest.
            c.send()
        if refused:
            c.refused_by(text, errors)
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return text


cdef int quit(Session session) except -1:
    cdef Connection c = session.enter(True, b"quit")
    cdef Stream s = c.stream
    try:
        s.put("quit\r\n", 6)
        c.send()
    except MemcacheUnexpectedCloseError:
        # After the command the server may end the connection while `send` still waits: no error.
        return 0
    finally:
        session.drop(c)
    return 0


cdef int shutdown(Session session, object graceful) except -1:
    try:
        command(session, b"shutdown graceful\r\n" if graceful else b"shutdown\r\n", b"shutdown")
    except MemcacheUnexpectedCloseError:
        # The end of the connection is the answer.
        return 0
    return 0
