"""The load generator: the text protocol on many connections from one thread, at C speed.

Connections are sockets (TCP, UNIX) or a Client's, over any transport. docs/benchmarks.md describes the requests and the
measurement.
"""

from array import array

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EEXIST, EINTR, ENOMEM, ETIMEDOUT, errno
from libc.math cimport exp, expm1, fabs, log, log1p
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strerror, strlen

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.transport._queue_events cimport queue_lives
from rmemcached.client.transport._rdma cimport RdmaStream
from rmemcached.client.api._session cimport Session
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.transport._tcp cimport TcpStream
from rmemcached.direct cimport leading_zeros
from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.linux cimport (
    CLOCK_MONOTONIC,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    TFD_CLOEXEC,
    TFD_NONBLOCK,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    itimerspec,
    recv,
    sched_yield,
    send,
    timerfd_create,
    timerfd_settime,
)

include "_load_draws.pyx"
include "_load_texts.pyx"
include "_load_replies.pyx"
include "_load_turns.pyx"


cdef dict counted(const uint64_t *buckets):
    """{ns: count}: each bucket of the HdrHistogram under the shortest time in the bucket."""
    cdef int i
    cdef int shift
    cdef dict found = {}
    for i in range(BUCKETS):
        if buckets[i]:
            shift = i // 1024 - 1 if i >= 2048 else 0
            found[<int64_t>(i - shift * 1024) << shift] = buckets[i]
    return found


# The values of `only`, each with the kind of all requests.
ONLY = {
    "": GET, "delete": DELETE, "incr": INCR, "miss": MISS, "touch": TOUCH, "mg": META_GET, "ms": META_SET, "new": NEW,
}
# The commands of the kinds, and their right answers, for error messages.
NAMES = {
    GET: "get", SET: "set", DELETE: "delete", INCR: "incr", MISS: "get", TOUCH: "touch", META_GET: "mg", META_SET: "ms",
    NEW: "set",
}
ANSWERS = {
    SET: "STORED", DELETE: "DELETED", INCR: "a number", MISS: "END", TOUCH: "TOUCHED", META_SET: "HD", NEW: "STORED",
}


ctypedef uint32_t (*draw_function)(load *l) noexcept nogil


cdef class Load:
    """A load, and its connections.

    keys: the number of keys.
    key_size, value_size: bytes of each key, and of each value.
    key_sizes, value_sizes: for sizes that vary, QUANTILES quantiles of their distribution, an array("H") and an
    array("I"). A key's number draws the sizes of the key and its value.
    exponent: of Zipf's law; 0: all keys are as popular.
    sets, deletes, incrs: parts of the requests, from 0 to 1. The rest are gets of `multiget` keys.
    only: one of ONLY, the kind of all requests instead. "delete": of each key once, which ends a run; "miss": gets of
    missing keys; "new": sets of new keys, which have 32 bytes or more, differ for each seed and start anew with each
    run.
    depth: requests under way on a connection. The next request follows an answer, or with `batch` all answers.
    think: seconds between the answers on a connection and its next requests (implies batch). think_varies: drawn from
    an exponential distribution with this mean.
    rate: requests a second, over all connections; each leaves at its due time, not at the answer of another. 0: closed
    loop. rate_varies: due at random times (Poisson).
    verify: compare every byte of values, not only keys and lengths.
    complete: a missing key is an error.
    patience: seconds without a byte after which the server is taken for silent. An answer may take six times as long.

    Raises ValueError for wrong arguments, MemoryError, OSError. Not thread-safe; `run` and `fill` let other threads
    run.
    """

    cdef load load
    cdef list kept           # (Session, Connection) of streams
    cdef list sockets        # kept open
    cdef object key_table
    cdef object value_table
    cdef readonly object largest    # bytes of the longest value

    def __cinit__(self):
        memset(&self.load, 0, sizeof(load))
        self.load.epoll = self.load.timer = -1

    def __init__(self, *, keys=10000, key_size=32, value_size=100, key_sizes=None, value_sizes=None, exponent=0.0,
                 sets=0.0, deletes=0.0, incrs=0.0, only="", multiget=1, depth=1, batch=False, think=0.0,
                 think_varies=False, rate=0.0, rate_varies=False, verify=True, complete=False, patience=10.0, seed=1):
        cdef load *w = &self.load
        if not 1 <= keys < 1 << 32:
            raise ValueError(f"{keys} keys: it is 1 to {(1 << 32) - 1}")
        if depth < 1 or multiget < 1:
            raise ValueError("depth and multiget are at least 1")
        if value_size < 0 or not all(part >= 0 for part in (sets, deletes, incrs)) or sets + deletes + incrs > 1:
            raise ValueError("value_size is not negative, and the parts of requests are 0 to 1 together")
        if exponent < 0 or think < 0 or not 0 <= rate <= 1e9 or not patience > 0:
            raise ValueError("exponent, think and rate are not negative, rate is 1e9 at most, and patience more than 0")
        if only not in ONLY or (only and sets + deletes + incrs > 0):
            raise ValueError(f"only is one of {', '.join(filter(None, ONLY))}, and then there are no parts")
        if only == "new" and (key_sizes is not None or key_size < 32):
            raise ValueError("keys that are new have 32 bytes or more, all the same")
        if rate and think:
            raise ValueError("rate and think exclude each other")
        self.kept = []
        self.sockets = []
        self.key_table = key_sizes
        self.value_table = value_sizes
        digits = len(str(keys - 1))
        shortest, longest = (key_size, key_size) if key_sizes is None else (min(key_sizes), max(key_sizes))
        if shortest < digits or longest > KEY_MOST:
            raise ValueError(f"keys have {digits} (the digits of their number) to {KEY_MOST} bytes,"
                             f" not {shortest} to {longest}")
        self.largest = value_size if value_sizes is None else max(value_sizes)
        w.keys = keys
        w.key_size = key_size
        w.key_sizes = <const uint16_t *>table_of(key_sizes, "H")
        w.value_size = value_size
        w.value_sizes = <const uint32_t *>table_of(value_sizes, "I")
        w.exponent = exponent
        w.multiget = multiget
        w.depth = depth
        w.batch = batch or think > 0
        w.think = int(think * 1e9)
        w.think_varies = think_varies
        w.gap = 1e9 / rate if rate else 0
        w.gap_varies = rate_varies
        w.verify = verify
        w.complete = complete
        w.patience = int(patience * 1e9)
        w.random = mix64(seed)
        w.run = seed if only == "new" else 0
        w.only = ONLY[only]
        w.below[SET] = int(sets * (1 << 32))
        w.below[DELETE] = w.below[SET] + int(deletes * (1 << 32))
        w.below[INCR] = w.below[DELETE] + int(incrs * (1 << 32))
        prepare_draws(w)
        prepare_memory(w, self.largest)

    def __dealloc__(self):
        release(&self.load)

    def close(self):
        """Gives the Clients their connections back. May be repeated."""
        cdef Connection c
        cdef Session session
        for session, c in self.kept:
            session.leave(c, None)
        self.kept = []
        self.drop_connections()

    cdef int drop_connections(self) except -1:
        free_connections(&self.load)
        self.sockets = []
        return 0

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is None:
            self.close()
        else:
            self.abandon()

    cdef int abandon(self) except -1:
        # After an error the Clients drop their connections: the connections may still have unanswered requests.
        cdef Connection c
        cdef Session session
        kept, self.kept = self.kept, []
        self.drop_connections()
        for session, c in kept:
            session.drop(c)
        return 0

    # --- connections ---

    def add_socket(self, sock):
        """Adds a connected socket. The load uses the socket until `close`; the caller closes
        the socket later. Raises OSError,
        ValueError."""
        if self.kept and (<Connection>self.kept[0][1]).stream.remote:
            raise ValueError("sockets and other connections are not for one load")
        self.sockets.append(sock)
        new_connection(&self.load).fd = sock.fileno()

    def add_client(self, Session session not None):
        """A connection of a Client, unused by others until `close`; a Client may give several.

        Raises the errors of connecting, and ValueError for sockets that need an event loop.
        """
        cdef Connection c = session.enter(False, b"load")
        cdef connection *made
        try:
            if c.stream.needs_gil:
                raise ValueError("the load generator needs the system's sockets, without TLS")
            if self.load.count and c.stream.remote != (self.load.connections[0].fd < 0):
                raise ValueError("sockets and other connections are not for one load")
            made = new_connection(&self.load)
            if isinstance(c.stream, TcpStream):
                made.fd = c.stream.descriptors()[0]
            else:
                made.stream = <void *>c.stream
        except BaseException:
            session.drop(c)
            raise
        self.kept.append((session, c))

    # --- filling and running ---

    def fill(self):
        """Stores all keys, each once, and the counters of incr. Raises as `run` does."""
        cdef load *w = &self.load
        cdef int64_t forever = 1 << 62
        counters = w.keys if w.below[INCR] > w.below[DELETE] or w.only == INCR else 0
        gap, think, batch = w.gap, w.think, w.batch
        w.filling = True
        w.gap = 0
        w.think = 0
        w.batch = False
        w.filled = 0
        w.to_fill = w.keys + counters
        try:
            self.work(now_ns() + forever // 2, None)
        finally:
            w.filling = False
            w.gap, w.think, w.batch = gap, think, batch

    def run(self, seconds, tick=None):
        """Loads the server for so many seconds, then waits for the outstanding answers.

        tick: called some times a second with the elapsed part, from 0 to 1.

        Returns a dict. "gets", "sets", "deletes", "incrs": requests answered; "others": of the remaining kinds of
        `only`; "requests": all of them; "refused": sets of new keys without memory in the server; "hits" and "misses":
        keys of gets, and of deletes, incrs and others; "seconds" until the last answer; "latencies": {ns: count}, in
        the buckets of an HdrHistogram of three digits; the same by "get", "set", "delete", "incr", "others" in
        "by_kind". A latency begins at the request's intended time. The open loop also has "late": {ns: count}, the time
        from the intended time to sending, spent waiting for a connection or for this process; and "unsent": requests
        due but not sent at the end. They are among the latencies with their waiting time.

        Raises ConnectionError when a connection is lost, TimeoutError when the server is silent, ValueError for a wrong
        reply, MemoryError, OSError, and the errors of `tick` or a signal handler. The connections are unusable
        afterwards.
        """
        if not seconds > 0:
            raise ValueError("seconds are more than 0")
        begin = now_ns()
        self.work(begin + int(seconds * 1e9), tick)
        return self.told((now_ns() - begin) / 1e9)

    cdef int work(self, int64_t until, tick) except -1:
        cdef load *w = &self.load
        cdef int r
        cdef int64_t begin = now_ns()
        if not w.count:
            raise ValueError("it has no connections")
        start_run(w, begin, until)
        try:
            with nogil:
                r = first_turn(w, begin)
            while True:
                if r == RUNNING:
                    with nogil:
                        r = take_turns(w, now_ns() + SLICE)
                if r == OVER:
                    return 0
                if r != RUNNING:
                    self.failed(r)
                PyErr_CheckSignals()
                if tick is not None:
                    tick(min(1.0, (now_ns() - begin) / (until - begin)))
        except BaseException:
            self.abandon()
            raise

    cdef int failed(self, int r) except -1:
        # Raises the error of a step's result.
        cdef load *w = &self.load
        if r == WRONG:
            raise ValueError(self.wrong_text())
        if r == LOST:
            raise ConnectionError("the server has closed a connection")
        if r == SILENT:
            seconds = w.patience / 1e9
            if now_ns() - w.heard < w.patience:
                raise TimeoutError(f"the server is too slow: no whole answer for {SLOWEST * seconds:g} s")
            raise TimeoutError(f"the server is silent: no answer for {seconds:g} s")
        if r == -ENOMEM:
            raise MemoryError
        if r == -ETIMEDOUT:
            raise TimeoutError("the server is silent")
        raise ConnectionError(f"a connection was lost: {strerror(-r).decode()}")

    cdef str wrong_text(self):
        cdef load *w = &self.load
        got = w.wrong_got[:w.wrong_length]
        if w.wrong_unasked:
            return f"the server has sent what was not asked for: {got!r}"
        kind, number = w.wrong_kind, w.wrong_number
        key = self.counter(number) if kind == INCR else self.other_key(kind, number)
        name = f"{NAMES[kind]} of {key.decode()}"
        if w.wrong_in_value:
            value = self.value(w.wrong_number)
            want = value[w.wrong_at:w.wrong_at + len(got)]
            return f"{name}: a wrong value came back: {got!r} at byte {w.wrong_at} of {len(value)}, not {want!r}"
        if kind == GET and got == b"END\r\n":
            return f"{name}: the key is missing"
        size = value_size_of(w, number)
        wanted = {**ANSWERS, GET: f"VALUE {key.decode()} 0 {size}", META_GET: f"VA {size}"}[kind]
        return f"{name}: a wrong reply came back: {got!r}, not {wanted}"

    cdef dict told(self, seconds):
        cdef load *w = &self.load
        cdef int kind
        cdef dict together = {}
        by_kind = {"others": {}}
        for kind in range(KINDS):
            found = counted(w.latencies[kind])
            # A load of a kind from MISS on has no other kinds.
            if kind < MISS:
                by_kind[NAMES[kind]] = found
            elif found:
                by_kind["others"] = found
            for ns, count in found.items():
                together[ns] = together.get(ns, 0) + count
        others = sum([w.done[kind] for kind in range(MISS, KINDS)])
        return {
            "gets": w.done[GET],
            "sets": w.done[SET],
            "deletes": w.done[DELETE],
            "incrs": w.done[INCR],
            "others": others,
            "requests": w.done[GET] + w.done[SET] + w.done[DELETE] + w.done[INCR] + others,
            "refused": w.refused,
            "hits": w.hits,
            "misses": w.misses,
            "seconds": seconds,
            "latencies": together,
            "by_kind": by_kind,
            "late": counted(w.late),
            "unsent": w.unsent,
        }

    # --- keys, values and draws, for tests and callers ---

    def key(self, uint32_t number):
        """The text of a key, as bytes."""
        cdef char text[KEY_MOST]
        return text[:put_key(&self.load, text, number, c'k')]

    def counter(self, uint32_t number):
        """The text of a counter's key, as bytes."""
        cdef char text[KEY_MOST]
        return text[:put_key(&self.load, text, number, c'c')]

    cdef bytes other_key(self, unsigned int kind, uint32_t number):
        cdef char text[KEY_MOST]
        if kind == NEW:
            return text[:put_new_key(&self.load, text, number)]
        return text[:put_key(&self.load, text, number, c'm' if kind == MISS else c'k')]

    def value(self, uint32_t number):
        """The value of a key, as bytes."""
        cdef size_t size = value_size_of(&self.load, number)
        cdef bytearray value = bytearray(size)
        put_value(&self.load, value, number, size)
        return bytes(value)

    def value_bytes(self, uint32_t number):
        """The length of a key's value."""
        return value_size_of(&self.load, number)

    def draw(self, count):
        """The numbers of so many keys, as drawn for requests: an array("I")."""
        return self.drawn(count, draw)

    def draw_ranks(self, count):
        """The ranks by popularity, from 0 on, of the keys that `draw` draws."""
        return self.drawn(count, draw_rank)

    cdef drawn(self, Py_ssize_t count, draw_function function):
        cdef Py_ssize_t i
        found = array("I", bytes(4 * count))
        cdef uint32_t[::1] numbers = found
        for i in range(count):
            numbers[i] = function(&self.load)
        return found


def store_commands(first, count, key_size=32, value_size=100):
    """The text protocol's set commands for `count` keys of a Load, as bytes. Raises ValueError."""
    cdef Load made = Load(keys=first + count, key_size=key_size, value_size=value_size)
    cdef load *w = &made.load
    cdef uint32_t number
    w.out_length = 0
    for number in range(first, first + count):
        if make_room(w) != 0:
            raise MemoryError
        put_set(w, number)
    return w.out[:w.out_length]
