"""The drive machine for Python tests: an engine without sockets. Not an interface for programs."""

from rmemcached import MEMCACHED_VERSION
from rmemcached.store._testing import all_direct

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_NONE, PROT_READ, PROT_WRITE, mmap, mprotect, munmap
from posix.uio cimport iovec

from rmemcached.drive_machine cimport drive_machine
from rmemcached.logger cimport logger_none
from rmemcached.protocol.ascii cimport LINE_MAX_LENGTH
from rmemcached.protocol.conn cimport (
    MAX_PENDING_BYTES, MAX_PENDING_RESPS, STATS_ANSWERED, STATS_RESET, STATS_UNKNOWN, WANT_CLOSE, WANT_FLUSH,
    WANT_INPUT, WANT_PAYLOAD, WANT_REMOTE_PAYLOAD, WANT_YIELD, ascii_prot, binary_prot, conn, conn_engine, conn_gather,
    conn_hooks, conn_init, conn_next_write, conn_payload_iov, conn_payload_received, conn_release, conn_sent,
    conn_thread, conn_thread_release, conn_want, conn_write_posted, mc_resp, negotiating_prot, stats_result,
)
from rmemcached.protocol.stats_text cimport stat_append, stat_append_text, stat_buf
from rmemcached.protocol.parse cimport (
    LINE_TOKENS, base64_decode, base64_encode, itoa_u32, itoa_u64, parse_exptime, parse_flags, parse_hex, parse_i32,
    parse_u32, parse_u64, token, tokenize,
)
from rmemcached.store cimport store as st
from rmemcached.store.check cimport store_check
from rmemcached.store.store cimport store, store_config

cdef enum:
    INPUT_SIZE = 1 << 20
    PAGE = 4096
    IOV = 1024

CONN_SIZE = sizeof(conn)
RESP_SIZE = sizeof(mc_resp)
MAX_RESPS = MAX_PENDING_RESPS
MAX_BYTES = MAX_PENDING_BYTES
MAX_LINE = LINE_MAX_LENGTH

cdef bytes _VERSION = MEMCACHED_VERSION.encode()

_WANTS = {
    WANT_INPUT: "input", WANT_PAYLOAD: "payload", WANT_REMOTE_PAYLOAD: "remote", WANT_FLUSH: "flush",
    WANT_YIELD: "yield", WANT_CLOSE: "close",
}


cdef struct server_state:    # the hooks' data
    int verbosity


cdef stats_result _stats(void *arg, conn *c, const char *sub, size_t nsub, stat_buf *out) noexcept nogil:
    cdef int i
    if nsub == 0:
        stat_append(out, b"pid", 4711)
        stat_append_text(out, b"version", b"1.6.45")
        return STATS_ANSWERED
    if nsub == 5 and memcmp(sub, b"reset", 5) == 0:
        return STATS_RESET
    if nsub == 5 and memcmp(sub, b"items", 5) == 0:
        return STATS_ANSWERED
    if nsub == 4 and memcmp(sub, b"long", 4) == 0:
        for i in range(5000):
            stat_append(out, b"counter_with_a_long_name", <uint64_t>i)
        return STATS_ANSWERED
    if nsub == 4 and memcmp(sub, b"dump", 4) == 0:
        stat_append_text(out, b"arguments", b"seen")
        return STATS_ANSWERED
    return STATS_UNKNOWN


cdef const char *_exchange(conn *c, const char *line, size_t length, char *reply, size_t reply_size) noexcept nogil:
    cdef size_t n = length if length < 64 else 64
    memcpy(reply, b"RDMA got ", 9)
    memcpy(reply + 9, line, n)
    memcpy(reply + 9 + n, b"\r\n", 3)
    return reply


cdef const char *_pin(conn *c, st.item *it, uint32_t *id) noexcept nogil:
    return b"SERVER_ERROR this engine keeps nothing"


cdef void _set_verbosity(void *arg, int level) noexcept nogil:
    (<server_state *>arg).verbosity = level


cdef class Server:
    """A store and the state of a worker, shared by the Machines of this Server."""

    cdef store *s
    cdef conn_thread thread
    cdef conn_hooks hooks
    cdef server_state state
    cdef bint exchange
    cdef readonly int connections

    def __init__(self, *, uint64_t maxbytes=64 << 20, uint64_t item_size_max=1 << 20,
                 uint32_t slab_chunk_size_max=1 << 19, bint use_cas=True, bint evict_to_free=True,
                 unsigned int reqs_per_event=20, bint flush_enabled=True, bint exchange=False, uint64_t verbose=0,
                 protocol=None, bint direct=False):
        cdef store_config config
        cdef const char *error = NULL
        cdef int[2] memory
        memset(&config, 0, sizeof(config))
        config.maxbytes = maxbytes
        config.item_size_max = item_size_max
        config.slab_chunk_size_max = slab_chunk_size_max
        config.chunk_size = 48
        config.factor = 1.25
        config.use_cas = use_cas
        config.evict_to_free = evict_to_free
        config.hashpower_init = 12
        config.nthreads = 1
        config.direct = direct or all_direct()
        self.s = st.store_create(&config, &error)
        if self.s == NULL:
            raise ValueError(error.decode())
        if config.direct:
            st.store_direct_give(self.s, &memory[0], &memory[1])
        self.hooks.arg = &self.state
        self.hooks.stats = _stats
        self.hooks.version = _VERSION
        self.exchange = exchange
        self.hooks.set_verbosity = _set_verbosity
        self.thread.store = self.s
        self.thread.log = logger_none()
        self.thread.hooks = &self.hooks
        self.hooks.verbose = verbose
        self.thread.reqs_per_event = reqs_per_event
        self.thread.binding_protocol = {"ascii": ascii_prot, "binary": binary_prot}.get(protocol, negotiating_prot)
        self.thread.cas_enabled = use_cas
        self.thread.flush_enabled = flush_enabled

    def __dealloc__(self):
        conn_thread_release(&self.thread)
        if self.s != NULL:
            st.store_destroy(self.s)

    def advance(self, unsigned int seconds):
        """Moves the clock."""
        st.store_advance(self.s, seconds)

    @property
    def now(self):
        """Unix time by the store's clock."""
        return st.store_process_started(self.s) + st.store_time(self.s)

    @property
    def verbosity(self):
        return self.state.verbosity

    @property
    def free_resps(self):
        return self.thread.nfree_resps

    def stats(self):
        """The worker's counters, summed over slab classes."""
        cdef dict counters = self.thread.stats
        total = {name: value for name, value in counters.items() if name not in ("slab", "lru_hits")}
        total["get_hits"] = sum(counters["lru_hits"])
        for slab in counters["slab"]:
            for name, value in slab.items():
                total[name] = total.get(name, 0) + value
        return total

    def store_stats(self):
        cdef st.store_stats stats
        st.store_get_stats(self.s, &stats)
        return stats

    def check(self):
        """Raises AssertionError when the store is inconsistent, or a reference to an item or a reply is out although
        all connections are idle."""
        cdef const char *error
        with nogil:
            error = store_check(self.s, True)
        assert error == NULL, error.decode()
        assert <long long>self.thread.stats.response_obj_count == 0


@cython.no_gc_clear
cdef class Machine:
    """A connection to a Server, fed by hand.

    remote: whether the engine can move payloads by itself. eager: conn.eager.
    memory: rkey -> (address, bytearray), the client's memory.
    max_iov, max_bytes: limits of a gather. max_sent: bytes taken by a send, at most.
    direct: payloads go straight into the item instead of through the input buffer.
    wants: the machine's wants, in order.
    writes: (rkey, address, length, bytes of output sent before) of every value written to a sink.

    The input ends right before an inaccessible page: a read beyond the input crashes.
    """

    cdef readonly Server server
    cdef conn c
    cdef conn_engine engine
    cdef char *area
    cdef char *input_end
    cdef readonly bint closed
    cdef public bint direct
    cdef public int max_iov
    cdef public size_t max_bytes
    cdef public size_t max_sent
    cdef public object memory
    cdef readonly list wants
    cdef readonly list writes
    cdef readonly unsigned int most_pending
    cdef size_t sent_bytes

    def __cinit__(self, Server server, bint remote=False, uint32_t eager=0):
        cdef void *area = mmap(NULL, INPUT_SIZE + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if area == MAP_FAILED:
            raise MemoryError
        self.area = <char *>area
        self.input_end = self.area + INPUT_SIZE
        mprotect(self.input_end, PAGE, PROT_NONE)
        self.server = server
        self.max_iov = IOV
        self.max_bytes = 1 << 30
        self.max_sent = 1 << 30
        self.memory = {}
        self.wants = []
        self.writes = []
        if server.exchange:
            self.engine.exchange = _exchange
        self.engine.pin = _pin
        self.engine.remote = remote
        conn_init(&self.c, &server.thread, &self.engine)
        self.c.eager = eager
        server.connections += 1

    def __dealloc__(self):
        if self.c.thread != NULL:
            conn_release(&self.c)
        if self.area != NULL:
            munmap(self.area, INPUT_SIZE + PAGE)

    def close(self):
        """Ends the connection at any time."""
        conn_release(&self.c)
        self.closed = True

    cdef void place(self, const char *data, size_t n) noexcept:
        """Appends n bytes to the unparsed input, and moves all input to the end of the area."""
        cdef size_t old = self.c.rbytes
        cdef char *to = self.input_end - old - n
        if old:
            memmove(to, self.c.rcurr, old)
        if n:
            memcpy(to + old, data, n)
        self.c.rcurr = to
        self.c.rbytes = old + n

    cdef bytes send(self):
        """Takes all output that may leave."""
        cdef iovec iov[IOV]
        cdef int count, i
        cdef size_t n
        out = []
        while True:
            if conn_next_write(&self.c) != NULL:
                self.write_value()
            count = conn_gather(&self.c, iov, self.max_iov, self.max_bytes)
            if count == 0:
                break
            chunk = b"".join([(<char *>iov[i].iov_base)[:iov[i].iov_len] for i in range(count)])
            n = len(chunk)
            assert 0 < n <= self.max_bytes and count <= self.max_iov
            n = min(n, self.max_sent)
            conn_sent(&self.c, n)
            self.sent_bytes += n
            out.append(chunk[:n])
        return b"".join(out)

    cdef write_value(self):
        """Acts as an engine's RDMA WRITE."""
        cdef mc_resp *resp = conn_next_write(&self.c)
        cdef iovec iov[IOV]
        cdef int count, i
        addr, buffer = self.memory[resp.sink.rkey]
        start = resp.sink.addr - addr
        assert resp.data_length <= resp.sink.length
        assert 0 <= start <= len(buffer) - resp.data_length
        count = st.item_iov(resp.item, resp.data_offset, resp.data_length, iov, IOV)
        value = b"".join([(<char *>iov[i].iov_base)[:iov[i].iov_len] for i in range(count)])
        buffer[start:start + len(value)] = value
        self.writes.append((resp.sink.rkey, resp.sink.addr, len(value), self.sent_bytes))
        st.item_remove(self.server.s, conn_write_posted(&self.c))

    cdef bint read_value(self):
        """Acts as an engine's RDMA READs, a READ for each extent. False: the client has no such memory."""
        cdef iovec iov[4]
        cdef int count, i
        cdef Py_ssize_t start
        cdef const unsigned char[:] view
        addr, buffer = self.memory.get(self.c.remote.rkey, (0, b""))
        start = self.c.remote.addr - addr
        if not 0 <= start <= len(buffer) - self.c.remote.length:
            return False
        view = buffer
        while self.c.rlbytes:
            count = conn_payload_iov(&self.c, iov, 4)
            for i in range(count):
                memcpy(iov[i].iov_base, &view[start], iov[i].iov_len)
                start += iov[i].iov_len
                conn_payload_received(&self.c, iov[i].iov_len)
        return True

    cdef size_t receive_payload(self, const char *data, size_t n):
        """Copies a payload straight into the item. Returns the bytes used."""
        cdef iovec iov[4]
        cdef int count, i
        cdef size_t used = 0
        cdef size_t part
        while used < n and self.c.rlbytes:
            count = conn_payload_iov(&self.c, iov, 4)
            for i in range(count):
                part = min(<size_t>iov[i].iov_len, n - used)
                memcpy(iov[i].iov_base, data + used, part)
                conn_payload_received(&self.c, part)
                used += part
        return used

    def feed(self, bytes data=b"", size_t chunk=65536, bint send=True):
        """Gives input, `chunk` bytes at a time, and returns the output (send=False: leaves the output queued)."""
        cdef const char *p = data
        cdef size_t left = len(data)
        cdef size_t n
        cdef conn_want want
        out = []
        if self.closed:
            return b""
        while True:
            with nogil:
                want = drive_machine(&self.c)
            self.wants.append(_WANTS[want])
            self.most_pending = max(self.most_pending, self.c.npending)
            if want == WANT_CLOSE:
                out.append(self.send())
                self.close()
                break
            if want == WANT_FLUSH:
                if not send:
                    break
                out.append(self.send())
            elif want == WANT_YIELD:
                pass
            elif want == WANT_REMOTE_PAYLOAD:
                # Replies to earlier commands leave while the READ is under way.
                if send:
                    out.append(self.send())
                if not self.read_value():
                    self.close()
                    break
            elif left == 0:
                break
            elif want == WANT_PAYLOAD and self.direct:
                n = self.receive_payload(p, min(left, chunk))
                p += n
                left -= n
            else:
                n = min(left, chunk)
                self.place(p, n)
                p += n
                left -= n
        if send and not self.closed:
            out.append(self.send())
        return b"".join(out)

    def next_want(self):
        """Runs the machine without input."""
        cdef conn_want want
        with nogil:
            want = drive_machine(&self.c)
        return _WANTS[want]

    @property
    def pending(self):
        """(replies, bytes of items and statistics) waiting to be sent."""
        return self.c.npending, self.c.pending_bytes

    @property
    def unparsed(self):
        return self.c.rbytes

    @property
    def missing(self):
        """Missing bytes of the payload."""
        return self.c.rlbytes


# ---- parsing ---------------------------------------------------------------------------------------------------------

def tokens(bytes line):
    cdef token t[LINE_TOKENS]
    cdef const char *p = line
    cdef int n = tokenize(p, p + len(line), t)
    return [t[i].value[:t[i].length] for i in range(n)]


def number(kind, bytes text, size_t max_digits=16):
    """The number read by the parser of this kind, or None."""
    cdef uint32_t u32 = 0
    cdef uint64_t u64 = 0
    cdef int32_t i32 = 0
    cdef const char *p = text
    cdef size_t n = len(text)
    if kind == "u32":
        return u32 if parse_u32(p, n, &u32) else None
    if kind == "i32":
        return i32 if parse_i32(p, n, &i32) else None
    if kind == "u64":
        return u64 if parse_u64(p, n, &u64) else None
    if kind == "hex":
        return u64 if parse_hex(p, n, max_digits, &u64) else None
    if kind == "flags":
        return u32 if parse_flags(p, n, &u32) else None
    if kind == "exptime":
        return i32 if parse_exptime(p, n, &i32) else None
    raise ValueError(kind)


def decimal(uint64_t value, bint wide=True):
    cdef char text[24]
    cdef char *end = itoa_u64(value, text) if wide else itoa_u32(<uint32_t>value, text)
    return text[:end - text]


def encode64(bytes data):
    out = bytearray(4 * ((len(data) + 2) // 3))
    cdef char[:] view = out if out else bytearray(1)
    cdef char *end = base64_encode(data, len(data), &view[0])
    assert end - &view[0] == len(out)
    return bytes(out)


def decode64(bytes text):
    """The decoded bytes; empty if text is not base64."""
    out = bytearray(3 * (len(text) // 4) + 1)
    cdef char[:] view = out
    cdef size_t n = base64_decode(text, len(text), &view[0])
    assert n < <size_t>len(out)
    return bytes(out[:n])
