"""See _stream.pxd."""

from libc.errno cimport EBADMSG, EMSGSIZE, ENOMEM
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove

from rmemcached.client.transport._direct cimport DirectMemory
from rmemcached.client.transport._state cimport lock_state, shared_state, unlock_state
from rmemcached.sys.debug cimport assert_that

from rmemcached.client.transport.sockets import duplicate


cdef enum:
    WBUF_SIZE = 4096         # bytes of the request buffer at first
    IOV_FIRST = 8            # entries of iov at first
    SPARE_MOST = 64          # buffers kept for the next calls,
    KEPT_MOST = 1 << 20      # ... if they have no more bytes of any kind than this

# Unused buffers, the hottest first.
cdef call_buffers *spare_buffers = NULL
cdef unsigned int spare_count = 0


cdef const char *HEX_DIGITS = "0123456789abcdef"


cdef void free_buffers(call_buffers *buffers) noexcept:
    free(buffers.rbuf)
    free(buffers.wbuf)
    free(buffers.iov)
    free(buffers)


cdef call_buffers *make_buffers() except NULL:
    cdef call_buffers *made = <call_buffers *>calloc(1, sizeof(call_buffers))
    if made == NULL:
        raise MemoryError
    made.rcap = RBUF_SIZE
    made.rbuf = <char *>malloc(made.rcap)
    made.wcap = WBUF_SIZE
    made.wbuf = <char *>malloc(made.wcap)
    made.iov_cap = IOV_FIRST
    made.iov = <iovec *>malloc(made.iov_cap * sizeof(iovec))
    if made.rbuf == NULL or made.wbuf == NULL or made.iov == NULL:
        free_buffers(made)
        raise MemoryError
    return made


cdef class Stream:

    def __cinit__(self):
        self.timeout_ms = -1

    def __dealloc__(self):
        if self.buffers != NULL:
            self.give_buffers()

    # --- the memory of a call ---

    cdef int take_buffers(self) except -1:
        global spare_buffers, spare_count
        cdef call_buffers *taken
        lock_state(&shared_state)
        taken = spare_buffers
        if taken != NULL:
            spare_buffers = taken.next
            spare_count -= 1
        unlock_state(&shared_state)
        if taken == NULL:
            taken = make_buffers()
        self.buffers = taken
        self.rbuf = taken.rbuf
        self.rcap = taken.rcap
        self.wbuf = taken.wbuf
        self.wcap = taken.wcap
        self.iov = taken.iov
        self.iov_cap = taken.iov_cap
        return 0

    cdef void give_buffers(self) noexcept:
        global spare_buffers, spare_count
        cdef call_buffers *given = self.buffers
        cdef bint kept
        self.buffers = NULL
        given.rbuf = self.rbuf
        given.rcap = self.rcap
        given.wbuf = self.wbuf
        given.wcap = self.wcap
        given.iov = self.iov
        given.iov_cap = self.iov_cap
        self.rbuf = self.wbuf = NULL
        self.iov = NULL
        self.rpos = self.rend = 0
        lock_state(&shared_state)
        kept = max(self.rcap, self.wcap, self.iov_cap * sizeof(iovec)) <= KEPT_MOST and spare_count < SPARE_MOST
        if kept:
            given.next = spare_buffers
            spare_buffers = given
            spare_count += 1
        unlock_state(&shared_state)
        if not kept:
            free_buffers(given)

    cdef void end(self) noexcept:
        # Any input left stays in the buffers, for the next call.
        if self.rpos == self.rend:
            self.give_buffers()

    # --- requests ---

    cdef int begin(self) except -1:
        if self.buffers == NULL:
            self.take_buffers()
        self.wlen = self.wmark = 0
        self.iov_next = self.iov_count = 0
        return 0

    cdef int grow(self, size_t more) except -1:
        # The pieces of wbuf that are in iov move along.
        cdef size_t old = <size_t>self.wbuf
        cdef size_t need = self.wlen + more
        cdef size_t size = self.wcap
        cdef size_t base
        cdef size_t i
        cdef char *grown
        while size < need:
            size *= 2
        grown = <char *>realloc(self.wbuf, size)
        if grown == NULL:
            raise MemoryError
        for i in range(self.iov_next, self.iov_count):
            base = <size_t>self.iov[i].iov_base
            if old <= base < old + self.wcap:
                self.iov[i].iov_base = grown + (base - old)
        self.wbuf = grown
        self.wcap = size
        return 0

    cdef int put(self, const char *data, size_t length) except -1:
        if self.wcap - self.wlen < length:
            self.grow(length)
        memcpy(self.wbuf + self.wlen, data, length)
        self.wlen += length
        return 0

    cdef char *room(self, size_t length) except NULL:
        if self.wcap - self.wlen < length:
            self.grow(length)
        return self.wbuf + self.wlen

    cdef int put_number(self, uint64_t value) except -1:
        cdef char text[20]
        cdef int i = 20
        while True:
            i -= 1
            text[i] = <char>(c'0' + value % 10)
            value //= 10
            if value == 0:
                break
        return self.put(text + i, 20 - i)

    cdef int put_hex(self, uint64_t value) except -1:
        cdef char text[16]
        cdef int i = 16
        while True:
            i -= 1
            text[i] = HEX_DIGITS[value & 15]
            value >>= 4
            if value == 0:
                break
        return self.put(text + i, 16 - i)

    cdef int put_reference(self, const char *data, size_t length) except -1:
        if length <= COPY_LIMIT:
            return self.put(data, length)
        self.commit()
        self.iov[self.iov_count].iov_base = <void *>data
        self.iov[self.iov_count].iov_len = length
        self.iov_count += 1
        return 0

    cdef int commit(self) except -1:
        # Closes the current piece of wbuf. Afterwards iov has room for one more entry.
        cdef iovec *iov
        if self.iov_count + 2 > self.iov_cap:
            iov = <iovec *>realloc(self.iov, self.iov_cap * 2 * sizeof(iovec))
            if iov == NULL:
                raise MemoryError
            self.iov = iov
            self.iov_cap *= 2
        if self.wlen > self.wmark:
            self.iov[self.iov_count].iov_base = self.wbuf + self.wmark
            self.iov[self.iov_count].iov_len = self.wlen - self.wmark
            self.iov_count += 1
            self.wmark = self.wlen
        return 0

    cdef void sent(self, size_t n) noexcept nogil:
        cdef iovec *v
        self.until = 0
        while n:
            assert_that(self.iov_next < self.iov_count)
            v = &self.iov[self.iov_next]
            if n < v.iov_len:
                v.iov_base = <char *>v.iov_base + n
                v.iov_len -= n
                return
            n -= v.iov_len
            self.iov_next += 1

    # --- replies ---

    cdef int reserve_input(self, size_t length) noexcept nogil:
        cdef size_t unread = self.rend - self.rpos
        cdef size_t size = self.rcap
        cdef char *grown
        if unread == 0:
            self.rpos = self.rend = 0
        if self.rcap - self.rend >= length:
            return 1
        if self.rcap - unread >= length:
            memmove(self.rbuf, self.rbuf + self.rpos, unread)
        elif unread > UNREAD_LIMIT:
            return -EMSGSIZE
        else:
            while size - unread < length:
                size *= 2
            grown = <char *>malloc(size)
            if grown == NULL:
                return -ENOMEM
            memcpy(grown, self.rbuf + self.rpos, unread)
            free(self.rbuf)
            self.rbuf = grown
            self.rcap = size
        self.rpos = 0
        self.rend = unread
        return 1

    cdef int deliver(self, const char *data, size_t length) noexcept nogil:
        # Takes input from the transport's own buffer: to dst while a value is awaited, else to rbuf.
        cdef size_t n
        cdef int r
        if self.dst_left and self.rpos == self.rend:
            n = min(length, self.dst_left)
            memcpy(self.dst, data, n)
            self.dst += n
            self.dst_left -= n
            data += n
            length -= n
        if length:
            r = self.reserve_input(length)
            if r <= 0:
                return r
            memcpy(self.rbuf + self.rend, data, length)
            self.rend += length
        return 1

    cdef bint has_line(self) noexcept nogil:
        return memchr(self.rbuf + self.rpos, c'\n', self.rend - self.rpos) != NULL

    cdef int read_line(self) noexcept nogil:
        cdef size_t seen = 0
        cdef char *start
        cdef char *end
        cdef int r
        while True:
            start = self.rbuf + self.rpos
            end = <char *>memchr(start + seen, c'\n', self.rend - self.rpos - seen)
            if end != NULL:
                self.rpos += end - start + 1
                if end > start and (end - 1)[0] == c'\r':
                    end -= 1
                self.line = start
                self.line_length = end - start
                return 1
            seen = self.rend - self.rpos
            if seen > LINE_LIMIT:
                return -EMSGSIZE
            r = self.fill()
            if r <= 0:
                return r

    cdef int read_body(self) noexcept nogil:
        cdef size_t n
        cdef int r
        if self.behind_value:
            return self.read_end()
        while self.dst_left:
            n = self.rend - self.rpos
            if n:
                n = min(n, self.dst_left)
                memcpy(self.dst, self.rbuf + self.rpos, n)
                self.rpos += n
                self.dst += n
                self.dst_left -= n
            else:
                r = self.fill_body()
                if r <= 0:
                    return r
        while self.rend - self.rpos < 2:
            r = self.fill()
            if r <= 0:
                return r
        if self.rbuf[self.rpos] != c'\r' or self.rbuf[self.rpos + 1] != c'\n':
            return -EBADMSG
        self.rpos += 2
        return self.read_end() if self.classic else 1

    cdef int read_end(self) noexcept nogil:
        # Reads the line END of a classic get. After an interruption the caller may repeat the call.
        cdef int r
        self.behind_value = True
        r = self.read_line()
        if r <= 0:
            return r
        self.behind_value = False
        return 1 if self.line_length == 3 and memcmp(self.line, b"END", 3) == 0 else -EBADMSG

    # --- the transport's part: answers that are right for most transports, or errors for methods to override ---

    cdef int push(self) noexcept nogil:
        return -EBADMSG

    cdef int drain(self) noexcept nogil:
        return -EBADMSG

    cdef int fill(self) noexcept nogil:
        return -EBADMSG

    cdef int fill_body(self) noexcept nogil:
        return self.fill()

    cdef object socket_object(self):
        return duplicate(self.descriptors()[0])

    cdef bint join_loop(self) noexcept:
        self.in_loop = self.late = True
        return True

    cdef bint must_authenticate(self) noexcept:
        return False

    cdef bint has_ended(self) noexcept nogil:
        return False

    cdef bint has_gone(self) noexcept:
        return False

    cdef int take_input(self) noexcept nogil:
        return -EBADMSG

    cdef bint arm(self) noexcept nogil:
        return False

    cdef list descriptors(self):
        return []

    cdef bint tells_room(self) noexcept:
        return False

    cdef bint may_stay(self) noexcept:
        return False

    cdef bint keeps_pins(self) noexcept:
        return False

    cdef DirectMemory direct_memory(self):
        return None

    cdef str failure_text(self):
        return ""

    cdef void close(self) noexcept:
        return
