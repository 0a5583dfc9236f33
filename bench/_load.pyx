"""The load generator: the text protocol on many connections from one thread, at C speed.

Connections are sockets (TCP, UNIX) or a Client's, over whatever transport. docs/benchmarks.md says what it sends and what
it measures. It has four parts, which are one C unit: which key is asked for (_load_draws.pyx), the bytes of requests and
values (_load_texts.pyx), the replies to them (_load_replies.pyx), and waiting (_load_turns.pyx).

All of a `load` belongs to the thread that is in `Load.run`.
"""

from array import array

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EEXIST, EINTR, ENOMEM, ETIMEDOUT, errno
from libc.math cimport exp, expm1, fabs, log, log1p
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset, strerror

from rmemcached.client._connection cimport Connection
from rmemcached.client._queue_events cimport queue_lives
from rmemcached.client._rdma cimport RdmaStream
from rmemcached.client._session cimport Session
from rmemcached.client._stream cimport Stream
from rmemcached.client._tcp cimport TcpStream
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
    timespec,
)

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_TIMER_ABSTIME

cdef enum:
    EVENTS = 64              # that are taken at a time: requests that are due are not kept waiting for longer
    INPUT = 256 * 1024       # bytes that are received at a time
    KEY_MOST = 250
    LINE_MOST = 320          # bytes of a line of a reply that is right
    LINE_MORE = 64           # bytes of a request besides its keys and value, at most
    STAMP = 8                # bytes at the beginning of a value that depend on key and length
    OFFSETS = 1 << 16        # where in the pool the rest of a value may begin
    QUANTILES = 1 << 16      # of a distribution of sizes
    BUCKETS = 28 * 1024      # of latencies: those of an HdrHistogram of three digits, up to LONGEST
    SLICE = 200000000        # ns after which `run` looks for signals, and tells how far it is
    SPIN = 50000             # ns before something is due in which no time is given away

cdef enum:
    LONGEST = 60000000000    # ns of a latency that is told from a longer one

# The kinds of requests.
cdef enum:
    GET
    SET
    DELETE
    INCR
    KINDS

# What a step of the loop says, besides a negative errno.
cdef enum step:
    OVER = 0                 # all is answered
    RUNNING = 1
    LOST = -1000             # the server has closed a connection
    WRONG = -1001            # a reply is not what was expected: load.wrong
    SILENT = -1002

cdef struct request:
    int64_t intended         # now_ns() at which it was to be sent
    unsigned int kind
    unsigned int keys        # of a get

cdef struct connection:
    int fd                   # -1: it is a stream's
    void *stream             # the Stream, which Load keeps alive
    request *requests        # without an answer: a ring of `depth`
    uint32_t *numbers        # their keys: a ring of `depth` times `multiget`
    unsigned int first       # the oldest request,
    unsigned int count       # and how many there are
    unsigned int key         # of the oldest one: its keys that are answered
    bint in_value            # a value comes, of which value_at bytes were there
    size_t value_at
    size_t value_size
    uint64_t stamp
    char line[LINE_MOST]     # the beginning of a line
    size_t line_length
    char *pending            # [pending_first, pending_last) is to be sent before anything else
    size_t pending_size
    size_t pending_first
    size_t pending_last
    bint watches             # epoll tells when there is room to send
    bint waits               # it is in `load.ready`
    int64_t due              # after a think time

cdef struct load:
    # what is asked for
    uint32_t keys
    size_t key_size          # bytes; or by QUANTILES:
    const uint16_t *key_sizes
    size_t value_size        # bytes, or of the longest one
    const uint32_t *value_sizes
    char *pool               # bytes by chance, of which values are made
    double exponent          # of Zipf's law; 0: all keys alike
    double zipf_first        # see prepare_zipf
    double zipf_span
    double zipf_near
    uint64_t scatter         # coprime to `keys`
    uint64_t below[KINDS]    # a kind is drawn if 32 bits by chance are below its limit, and not below one before
    unsigned int depth
    unsigned int multiget
    bint batch               # the next requests leave when all before them are answered
    bint verify              # every byte of values is compared
    bint complete            # a key that is missing is wrong
    int64_t think            # ns; 0: none
    bint think_varies        # ... by an exponential distribution
    double gap               # ns between two requests of the open loop; 0: closed
    bint gap_varies
    int64_t patience         # ns without an answer, after which the server is silent
    uint64_t random
    bint filling             # each key is set once: `filled` are
    uint64_t filled
    uint64_t to_fill
    # connections
    int count
    connection *connections
    connection **ready       # open loop: those with room, in a ring of `count`, the first for the next request
    unsigned int ready_first
    unsigned int ready_count
    connection **thinking    # a heap by `due`
    unsigned int thinking_count
    int epoll
    int timer
    unsigned int in_flight   # requests without an answer
    # time
    int64_t until            # from here on nothing new is sent
    int64_t heard            # when something came last
    double next              # open loop: when the next request is to be sent
    # memory for what is under way
    char *out
    size_t out_size
    size_t out_length
    char *input
    # what is counted
    uint64_t done[KINDS]
    uint64_t hits
    uint64_t misses
    uint64_t unsent
    uint64_t *latencies[KINDS]
    uint64_t *late           # of the open loop: between the intended time and sending
    # what was wrong
    unsigned int wrong_kind
    bint wrong_unasked
    uint32_t wrong_number
    size_t wrong_at          # byte of the value, if wrong_in_value
    bint wrong_in_value
    char wrong_got[LINE_MOST]
    size_t wrong_length

include "_load_draws.pyx"
include "_load_texts.pyx"
include "_load_replies.pyx"
include "_load_turns.pyx"


cdef dict counted(const uint64_t *buckets):
    """{ns: how many}. The numbers are the least of each HdrHistogram's bucket."""
    cdef int i
    cdef int shift
    cdef dict found = {}
    for i in range(BUCKETS):
        if buckets[i]:
            shift = i // 1024 - 1 if i >= 2048 else 0
            found[<int64_t>(i - shift * 1024) << shift] = buckets[i]
    return found


cdef class Load:
    """A load, and the connections that bear it.

    keys: how many. key_size, value_size: bytes, or by QUANTILES quantiles of their distributions, key_sizes as an
    array("H") and value_sizes as an array("I"): each key has sizes of its own, drawn by its number. exponent: of
    Zipf's law; 0: all keys are as popular. sets, deletes, incrs: parts of the requests, from 0 to 1; the others are
    gets of `multiget` keys. depth: requests under way on a connection; the next follows an answer, or with `batch` all
    answers. think: seconds between an answer and the next request, with batch, think_varies: by an exponential
    distribution with that mean.

    rate: requests a second, over all connections; they leave when they are due, not when others are answered. 0: closed
    loop. rate_varies: at random (Poisson). verify: compare every byte of values, not only keys and lengths. complete: a
    missing key is an error. patience: seconds without an answer after which the server is taken for silent.

    Raises ValueError for wrong arguments, MemoryError, OSError. Not thread-safe; `run` and `fill` let other threads run.
    """

    cdef load load
    cdef list kept           # (Session, Connection) of streams
    cdef list sockets        # that are kept open
    cdef object key_table
    cdef object value_table
    cdef readonly object largest    # bytes of the longest value

    def __cinit__(self):
        memset(&self.load, 0, sizeof(load))
        self.load.epoll = self.load.timer = -1

    def __init__(self, *, keys=10000, key_size=32, value_size=100, key_sizes=None, value_sizes=None, exponent=0.0,
                 sets=0.0, deletes=0.0, incrs=0.0, multiget=1, depth=1, batch=False, think=0.0, think_varies=False,
                 rate=0.0, rate_varies=False, verify=True, complete=False, patience=10.0, seed=1):
        cdef load *l = &self.load
        if not 1 <= keys < 1 << 32:
            raise ValueError(f"{keys} keys: it is 1 to {(1 << 32) - 1}")
        if depth < 1 or multiget < 1:
            raise ValueError("depth and multiget are at least 1")
        if value_size < 0 or not all(part >= 0 for part in (sets, deletes, incrs)) or sets + deletes + incrs > 1:
            raise ValueError("value_size is not negative, and the parts of requests are 0 to 1 together")
        if exponent < 0 or think < 0 or rate < 0 or not patience > 0:
            raise ValueError("exponent, think and rate are not negative, and patience is more than 0")
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
        l.keys = keys
        l.key_size = key_size
        l.key_sizes = <const uint16_t *>table_of(key_sizes, "H")
        l.value_size = value_size
        l.value_sizes = <const uint32_t *>table_of(value_sizes, "I")
        l.exponent = exponent
        l.multiget = multiget
        l.depth = depth
        l.batch = batch or think > 0
        l.think = int(think * 1e9)
        l.think_varies = think_varies
        l.gap = 1e9 / rate if rate else 0
        l.gap_varies = rate_varies
        l.verify = verify
        l.complete = complete
        l.patience = int(patience * 1e9)
        l.random = mix64(seed)
        l.below[SET] = int(sets * (1 << 32))
        l.below[DELETE] = l.below[SET] + int(deletes * (1 << 32))
        l.below[INCR] = l.below[DELETE] + int(incrs * (1 << 32))
        prepare_draws(l)
        prepare_memory(l, self.largest)

    def __dealloc__(self):
        release(&self.load)

    def close(self):
        """Gives the Clients their connections back. It may be repeated."""
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
        # Answers may be under way.
        cdef Connection c
        cdef Session session
        kept, self.kept = self.kept, []
        self.drop_connections()
        for session, c in kept:
            session.drop(c)
        return 0

    # --- connections ---

    def add_socket(self, sock):
        """A connected socket, which is used until `close` and stays the caller's. Raises OSError, ValueError."""
        if self.kept and (<Connection>self.kept[0][1]).stream.remote:
            raise ValueError("sockets and other connections are not for one load")
        self.sockets.append(sock)
        new_connection(&self.load).fd = sock.fileno()

    def add_client(self, Session session not None):
        """A connection of a Client, which nobody else uses until `close`; it may be asked for more than one.

        Raises what connecting does, and ValueError for sockets that need an event loop.
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

    # --- what it does ---

    def fill(self):
        """Stores all keys, each once, and the counters of incr. Raises what `run` does."""
        cdef load *l = &self.load
        cdef int64_t forever = 1 << 62
        counters = l.keys if l.below[INCR] > l.below[DELETE] else 0
        gap, think, batch = l.gap, l.think, l.batch
        l.filling = True
        l.gap = 0
        l.think = 0
        l.batch = False
        l.filled = 0
        l.to_fill = l.keys + counters
        try:
            self.work(now_ns() + forever // 2, None)
        finally:
            l.filling = False
            l.gap, l.think, l.batch = gap, think, batch

    def run(self, seconds, tick=None):
        """Loads the server for so many seconds, then waits for the answers that are due.

        tick: called some times a second with the part that is over, from 0 to 1.

        Returns a dict. "gets", "sets", "deletes", "incrs": requests answered; "requests": all of them; "hits" and
        "misses": keys of gets, and of deletes and incrs; "seconds" until the last answer; "latencies": {ns: how many},
        in the buckets of an HdrHistogram of three digits, and the same by "get", "set", "delete", "incr" in "by_kind".
        A latency is measured from when the request was to be sent. Of the open loop also "late": {ns: how many}: how
        long requests had waited for a connection, or this process, when they left; and "unsent": those that were due
        and had not left at the end. They are among the latencies with what they had waited.

        Raises ConnectionError when a connection is lost, TimeoutError when the server is silent, ValueError for a wrong
        reply, MemoryError, OSError, and what `tick` or a signal handler raises. The connections are of no use then.
        """
        if not seconds > 0:
            raise ValueError("seconds are more than 0")
        begin = now_ns()
        self.work(begin + int(seconds * 1e9), tick)
        return self.told((now_ns() - begin) / 1e9)

    cdef int work(self, int64_t until, tick) except -1:
        cdef load *l = &self.load
        cdef int r
        cdef int64_t begin = now_ns()
        if not l.count:
            raise ValueError("it has no connections")
        start_run(l, begin, until)
        try:
            with nogil:
                r = first_turn(l, begin)
            while True:
                if r == RUNNING:
                    with nogil:
                        r = take_turns(l, now_ns() + SLICE)
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
        # Raises it.
        cdef load *l = &self.load
        if r == WRONG:
            raise ValueError(self.wrong_text())
        if r == LOST:
            raise ConnectionError("the server has closed a connection")
        if r == SILENT:
            raise TimeoutError(f"the server is silent: no answer for {l.patience / 1e9:g} s")
        if r == -ENOMEM:
            raise MemoryError
        if r == -ETIMEDOUT:
            raise TimeoutError("the server is silent")
        raise ConnectionError(f"a connection was lost: {strerror(-r).decode()}")

    cdef str wrong_text(self):
        cdef load *l = &self.load
        got = l.wrong_got[:l.wrong_length]
        if l.wrong_unasked:
            return f"the server has sent what was not asked for: {got!r}"
        names = {GET: "get", SET: "set", DELETE: "delete", INCR: "incr"}
        key = self.counter(l.wrong_number) if l.wrong_kind == INCR else self.key(l.wrong_number)
        name = f"{names[l.wrong_kind]} of {key.decode()}"
        if l.wrong_in_value:
            value = self.value(l.wrong_number)
            want = value[l.wrong_at:l.wrong_at + len(got)]
            return f"{name}: a wrong value came back: {got!r} at byte {l.wrong_at} of {len(value)}, not {want!r}"
        wanted = {
            GET: f"VALUE {key.decode()} 0 {value_size_of(l, l.wrong_number)}",
            SET: "STORED",
            DELETE: "DELETED",
            INCR: "a number",
        }
        if got == b"END\r\n":
            return f"{name}: the key is missing"
        return f"{name}: a wrong reply came back: {got!r}, not {wanted[l.wrong_kind]}"

    cdef dict told(self, seconds):
        cdef load *l = &self.load
        cdef int kind
        cdef dict together = {}
        by_kind = {}
        for kind, name in ((GET, "get"), (SET, "set"), (DELETE, "delete"), (INCR, "incr")):
            by_kind[name] = counted(l.latencies[kind])
            for ns, count in by_kind[name].items():
                together[ns] = together.get(ns, 0) + count
        return {
            "gets": l.done[GET],
            "sets": l.done[SET],
            "deletes": l.done[DELETE],
            "incrs": l.done[INCR],
            "requests": l.done[GET] + l.done[SET] + l.done[DELETE] + l.done[INCR],
            "hits": l.hits,
            "misses": l.misses,
            "seconds": seconds,
            "latencies": together,
            "by_kind": by_kind,
            "late": counted(l.late),
            "unsent": l.unsent,
        }

    # --- what it is made of ---

    def key(self, uint32_t number):
        """The text of a key, as bytes."""
        cdef char text[KEY_MOST]
        return text[:put_key(&self.load, text, number, c'k')]

    def counter(self, uint32_t number):
        """The text of a counter's key, as bytes."""
        cdef char text[KEY_MOST]
        return text[:put_key(&self.load, text, number, c'c')]

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
        """The numbers of so many keys, as they are asked for: an array("I")."""
        cdef Py_ssize_t i
        found = array("I", bytes(4 * count))
        cdef uint32_t[::1] numbers = found
        for i in range(numbers.shape[0]):
            numbers[i] = draw(&self.load)
        return found

    def draw_ranks(self, count):
        """The same as ranks by popularity, from 0 on."""
        cdef Py_ssize_t i
        found = array("I", bytes(4 * count))
        cdef uint32_t[::1] numbers = found
        for i in range(numbers.shape[0]):
            numbers[i] = draw_rank(&self.load)
        return found


def store_commands(first, count, key_size=32, value_size=100):
    """The text protocol's set commands for `count` of the keys that a Load asks for, as bytes. Raises ValueError."""
    cdef Load made = Load(keys=first + count, key_size=key_size, value_size=value_size)
    cdef load *l = &made.load
    cdef uint32_t number
    l.out_length = 0
    for number in range(first, first + count):
        if make_room(l) != 0:
            raise MemoryError
        put_set(l, number)
    return l.out[:l.out_length]
