"""The load generator of bench/: the text protocol on many sockets, or on one Client's connection, from one thread.

Every reply is compared byte for byte with the one expected. Cheap enough to keep one server thread busy.
"""

from libc.errno cimport EAGAIN, EBADMSG, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from rmemcached.client._connection cimport Connection
from rmemcached.client._direct cimport DirectReader
from rmemcached.client._reads cimport time_read
from rmemcached.client._session cimport Session
from rmemcached.client._stream cimport Stream
from rmemcached.direct cimport DIRECT_FOUND, direct_answer, direct_copy, direct_find, direct_hit, direct_memory
from rmemcached.sys.clock cimport now_ns, ns_timespec
from rmemcached.sys.linux cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLL_CTL_MOD,
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    close,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    nanosleep,
    recv,
    send,
    snprintf,
    timespec,
)

cdef enum:
    EVENTS = 256
    STALL_MS = 5000          # a server that is silent for so long has failed
    STORED_LENGTH = 8
    END_LENGTH = 5
    REPLY_SIZE = 256 * 1024
    READ_MOST = 1 << 20      # bytes of the longest value that is read without asking
    ASKED_MOST = 100         # reads that find nothing, before the key is taken for one that is asked for
    TEXT_MORE = 64           # bytes of a request or reply besides key and value, at most

cdef struct client:
    int fd
    char *request            # the batch under way
    size_t request_length
    size_t sent
    char *expected           # the replies to it
    size_t expected_length
    size_t received

cdef struct load:
    int epoll
    client *clients
    int count
    unsigned int keys
    size_t key_size
    size_t value_size
    unsigned int depth
    unsigned int multiget    # keys of a get
    unsigned int set_every
    uint64_t random
    char *set_texts          # for each key: the set command, the reply to get; all of one length
    char *hit_texts
    size_t set_length
    size_t hit_length
    char *request            # of run_client: scratch for what follows
    char *reply              # scratch for input
    size_t reply_size
    uint64_t gets
    uint64_t sets
    char *wrong              # of a wrong reply: the bytes that were expected in its place
    size_t wrong_length


cdef void put_key(load *l, char *out, unsigned int number) noexcept nogil:
    # Exactly key_size characters: zeros and the number at the end.
    cdef char digits[16]
    cdef int n = snprintf(digits, sizeof(digits), "%u", number)
    memset(out, c'k', l.key_size)
    memcpy(out + l.key_size - n, digits, n)


cdef void put_value(load *l, char *out, unsigned int number) noexcept nogil:
    cdef size_t i
    cdef uint32_t x = number * <uint32_t>2654435761 + 1
    for i in range(l.value_size):
        x = x * <uint32_t>1664525 + 1013904223
        out[i] = <char>(c'a' + (x >> 24) % 26)


cdef size_t put_set(load *l, char *out, unsigned int number) noexcept nogil:
    cdef char *p = out
    memcpy(p, <const char *>"set ", 4)
    p += 4
    put_key(l, p, number)
    p += l.key_size
    p += snprintf(p, 48, " 0 0 %zu\r\n", l.value_size)
    put_value(l, p, number)
    p += l.value_size
    memcpy(p, <const char *>"\r\n", 2)
    return p + 2 - out


cdef size_t put_hit(load *l, char *out, unsigned int number) noexcept nogil:
    cdef char *p = out
    memcpy(p, <const char *>"VALUE ", 6)
    p += 6
    put_key(l, p, number)
    p += l.key_size
    p += snprintf(p, 48, " 0 %zu\r\n", l.value_size)
    put_value(l, p, number)
    p += l.value_size
    memcpy(p, <const char *>"\r\nEND\r\n", 7)
    return p + 7 - out


cdef inline unsigned int draw(load *l) noexcept nogil:
    # The number of the next request's key.
    l.random ^= l.random << 13
    l.random ^= l.random >> 7
    l.random ^= l.random << 17
    return <unsigned int>((l.random >> 20) % l.keys)


cdef inline bint draws_set(const load *l) noexcept nogil:
    # Whether the request whose key was drawn last is a set.
    return l.set_every and (l.random >> 8) % l.set_every == 0


cdef void put_batch(load *l, client *c) noexcept nogil:
    cdef char *p = c.request
    cdef char *e = c.expected
    cdef unsigned int number, key
    for _ in range(l.depth):
        number = draw(l)
        if draws_set(l):
            memcpy(p, l.set_texts + number * l.set_length, l.set_length)
            p += l.set_length
            memcpy(e, <const char *>"STORED\r\n", STORED_LENGTH)
            e += STORED_LENGTH
            l.sets += 1
            continue
        memcpy(p, <const char *>"get", 3)
        p += 3
        for key in range(l.multiget):
            if key:
                number = draw(l)
            p[0] = c' '
            memcpy(p + 1, l.set_texts + number * l.set_length + 4, l.key_size)
            p += 1 + l.key_size
            memcpy(e, l.hit_texts + number * l.hit_length, l.hit_length)
            e += l.hit_length - END_LENGTH
        memcpy(p, <const char *>"\r\n", 2)
        p += 2
        e += END_LENGTH
        l.gets += 1
    c.request_length = p - c.request
    c.sent = 0
    c.expected_length = e - c.expected
    c.received = 0


cdef int push(load *l, client *c) noexcept nogil:
    # Sends what the socket takes of the batch. 0, or -1: the connection was lost.
    cdef epoll_event event
    cdef bint waited = c.sent != 0
    cdef ssize_t n
    while c.sent < c.request_length:
        n = send(c.fd, c.request + c.sent, c.request_length - c.sent, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n > 0:
            c.sent += n
        elif errno == EAGAIN:
            break
        elif errno != EINTR:
            return -1
    if waited or c.sent < c.request_length:
        event.events = EPOLLIN if c.sent == c.request_length else EPOLLIN | EPOLLOUT
        event.data.u32 = <uint32_t>(c - l.clients)
        if epoll_ctl(l.epoll, EPOLL_CTL_MOD, c.fd, &event) != 0:
            return -1
    return 0


cdef int send_batch(load *l, client *c) noexcept nogil:
    put_batch(l, c)
    return push(l, c)


cdef int take(load *l, client *c) noexcept nogil:
    # 1: the batch is complete; 0: more is to come; -1: the connection was lost; -2: wrong bytes.
    cdef ssize_t n = recv(c.fd, l.reply, l.reply_size, MSG_DONTWAIT)
    if n < 0 and (errno == EAGAIN or errno == EINTR):
        return 0
    if n <= 0:
        return -1
    if <size_t>n > c.expected_length - c.received or memcmp(l.reply, c.expected + c.received, n) != 0:
        l.wrong = c.expected + c.received
        l.wrong_length = n
        return -2
    c.received += n
    return 1 if c.received == c.expected_length else 0


cdef int work(load *l, int64_t until) noexcept nogil:
    # 0; -1: a connection was lost; -2: wrong bytes; -3: silence.
    cdef epoll_event events[EVENTS]
    cdef int i, n, r
    cdef int running = l.count
    for i in range(l.count):
        if send_batch(l, &l.clients[i]) != 0:
            return -1
    while running:
        n = epoll_wait(l.epoll, events, EVENTS, STALL_MS)
        if n == 0:
            return -3
        for i in range(n):
            if events[i].events & EPOLLOUT and push(l, &l.clients[events[i].data.u32]) != 0:
                return -1
            if not events[i].events & ~<uint32_t>EPOLLOUT:
                continue
            r = take(l, &l.clients[events[i].data.u32])
            if r < 0:
                return r
            if r == 0:
                continue
            if now_ns() >= until:
                running -= 1
            elif send_batch(l, &l.clients[events[i].data.u32]) != 0:
                return -1
    return 0


cdef int prepare_texts(load *l) except -1:
    # Formats the requests and replies of all keys.
    cdef size_t text = l.key_size + l.value_size + TEXT_MORE
    cdef unsigned int i
    l.set_texts = <char *>calloc(l.keys, text)
    l.hit_texts = <char *>calloc(l.keys, text)
    if l.set_texts == NULL or l.hit_texts == NULL:
        raise MemoryError
    for i in range(l.keys):
        l.set_length = put_set(l, l.set_texts + i * l.set_length, i)
        l.hit_length = put_hit(l, l.hit_texts + i * l.hit_length, i)
    return 0


cdef int prepare(load *l, descriptors, size_t request, size_t expected) except -1:
    # Allocates everything else, and watches the sockets.
    cdef epoll_event event
    cdef int i
    l.clients = <client *>calloc(l.count + 1, sizeof(client))
    l.reply = <char *>calloc(1, l.reply_size)
    if l.clients == NULL or l.reply == NULL:
        raise MemoryError
    l.epoll = epoll_create1(EPOLL_CLOEXEC)
    if l.epoll < 0:
        raise OSError(errno, "epoll_create1")
    for i in range(l.count):
        l.clients[i].fd = descriptors[i]
        l.clients[i].request = <char *>calloc(1, request)
        l.clients[i].expected = <char *>calloc(1, expected)
        if l.clients[i].request == NULL or l.clients[i].expected == NULL:
            raise MemoryError
        event.events = EPOLLIN
        event.data.u32 = i
        if epoll_ctl(l.epoll, EPOLL_CTL_ADD, l.clients[i].fd, &event) != 0:
            raise OSError(errno, "epoll_ctl")
    return 0


cdef void release(load *l) noexcept:
    cdef int i
    if l.epoll >= 0:
        close(l.epoll)
    if l.clients != NULL:
        for i in range(l.count):
            free(l.clients[i].request)
            free(l.clients[i].expected)
    free(l.clients)
    free(l.set_texts)
    free(l.hit_texts)
    free(l.request)
    free(l.reply)


cdef size_t put_request(load *l, char *out, uint32_t *sent) noexcept nogil:
    # sent: its key's number, twice, and 1 for a set.
    cdef unsigned int number = draw(l)
    cdef const char *text = l.set_texts + number * l.set_length
    if draws_set(l):
        sent[0] = number << 1 | 1
        l.sets += 1
        memcpy(out, text, l.set_length)
        return l.set_length
    sent[0] = number << 1
    l.gets += 1
    memcpy(out, <const char *>"get ", 4)
    memcpy(out + 4, text + 4, l.key_size)
    memcpy(out + 4 + l.key_size, <const char *>"\r\n", 2)
    return 6 + l.key_size


cdef struct flight:
    uint32_t *sent           # requests under way, in turn: depth of them at most
    unsigned int first       # the oldest that has no answer yet
    unsigned int count       # that have none


cdef void send_more(load *l, flight *f, Stream s) noexcept nogil:
    # The requests that may follow, once those before them have left.
    cdef char *p = l.request
    while f.count < l.depth:
        p += put_request(l, p, &f.sent[(f.first + f.count) % l.depth])
        f.count += 1
    s.iov[0].iov_base = l.request
    s.iov[0].iov_len = p - l.request
    s.iov_next = 0
    s.iov_count = 1 if p != l.request else 0


cdef bint take_replies(load *l, flight *f, Stream s) noexcept nogil:
    # Compares the replies that have come whole. False: l.wrong was expected.
    cdef size_t length
    cdef size_t come
    cdef uint32_t request
    cdef const char *expected
    while f.count:
        request = f.sent[f.first]
        if request & 1:
            expected = "STORED\r\n"
            length = STORED_LENGTH
        else:
            expected = l.hit_texts + (request >> 1) * l.hit_length
            length = l.hit_length
        come = min(s.rend - s.rpos, length)
        if memcmp(s.rbuf + s.rpos, expected, come) != 0:
            l.wrong = <char *>expected
            l.wrong_length = length
            return False
        if come < length:
            return True
        s.rpos += length
        f.first = (f.first + 1) % l.depth
        f.count -= 1
    return True


cdef int keep_in_flight(load *l, flight *f, Stream s, int64_t until) noexcept nogil:
    # `depth` requests are under way until the time is over, then those that are left are answered. 1, what the stream
    # says, or -EBADMSG: l.wrong was expected.
    cdef bint over = False
    cdef int r
    while f.count or not over:
        if s.iov_next == s.iov_count and not over:
            send_more(l, f, s)
        r = s.push()
        if r > 0:
            r = s.fill()
        if r <= 0:
            return r
        if not take_replies(l, f, s):
            return -EBADMSG
        over = now_ns() >= until
    return 1


cdef int fly(load *l, flight *f, Connection c, int64_t until) except -1:
    cdef Stream s = c.stream
    cdef int r = 0
    while r <= 0:
        with nogil:
            r = keep_in_flight(l, f, s, until)
        if r <= 0 and l.wrong != NULL:
            raise ValueError(f"wrong reply {s.rbuf[s.rpos:s.rend]!r}, expected {l.wrong[:l.wrong_length]!r}")
        if r <= 0:
            c.interrupted(r)
    return 0


def run_client(Session session not None, seconds, keys=10000, key_size=32, value_size=100, depth=32, set_every=0,
               seed=1):
    """Loads a server through a Client's connection, whatever its transport, with `depth` requests always under way.

    A request follows as soon as a reply has come; it waits for no other. Arguments, result and exceptions are those of
    `run`, and the Client's. The Client can be used for nothing else meanwhile; it is closed if an exception is raised.
    Other threads run meanwhile: requests are made and replies compared without the GIL.
    """
    cdef load l
    cdef flight f
    cdef Connection c
    cdef int64_t begin
    check_arguments(keys, key_size, value_size, depth, set_every)
    start_load(&l, keys, key_size, value_size, depth, set_every, seed)
    memset(&f, 0, sizeof(f))
    c = session.enter(False, b"load")
    try:
        f.sent = <uint32_t *>calloc(l.depth, sizeof(uint32_t))
        l.request = <char *>calloc(l.depth, l.key_size + l.value_size + TEXT_MORE)
        if f.sent == NULL or l.request == NULL:
            raise MemoryError
        prepare_texts(&l)
        begin = now_ns()
        fly(&l, &f, c, begin + int(seconds * 1e9))
        elapsed = (now_ns() - begin) / 1e9
        session.leave(c, None)
        return {"requests": l.gets + l.sets, "gets": l.gets, "sets": l.sets, "seconds": elapsed}
    except BaseException:
        session.drop(c)
        raise
    finally:
        free(f.sent)
        release(&l)


def read_direct(Session session not None, bytes key, seconds, pause=0.0, most=1000000):
    """Reads a key without asking, at C speed, and waits `pause` seconds between reads: sleeping from 50 us on.

    Returns what each read took, in nanoseconds, as a list of `most` at most; the clock is in it. Raises ValueError when
    the server is to be asked: there is no connection, or it does not offer this.
    """
    cdef DirectReader reader = session.reader()
    cdef size_t length = len(key)
    cdef const char *text = key
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef int64_t gap = <int64_t>(pause * 1e9)
    cdef int64_t begin, end
    cdef size_t limit = most
    cdef size_t count = 0
    cdef direct_answer answer = DIRECT_FOUND
    cdef direct_hit hit
    cdef direct_memory *m
    cdef timespec sleeping = ns_timespec(gap)
    cdef char *to = <char *>malloc(READ_MOST)
    cdef int64_t *took = <int64_t *>malloc(limit * sizeof(int64_t))
    try:
        if to == NULL or took == NULL:
            raise MemoryError()
        if reader is None:
            raise ValueError("the server does not let this client read without asking")
        m = &reader.memory.memory
        with nogil:
            end = now_ns()
            while answer == DIRECT_FOUND and count < limit and end < until:
                begin = now_ns()
                answer = direct_find(m, text, length, &hit)
                if answer == DIRECT_FOUND and hit.length <= READ_MOST:
                    answer = direct_copy(m, &hit, to)
                end = now_ns()
                took[count] = end - begin
                count += 1
                if gap >= 50000:
                    nanosleep(&sleeping, NULL)
                while gap and now_ns() - end < gap:
                    pass
        if answer != DIRECT_FOUND:
            raise ValueError("the key is not to be had without asking")
        return [took[i] for i in range(count)]
    finally:
        free(to)
        free(took)


def read_remote(Session session not None, bytes key, seconds, anew=False, most=1000000):
    """Reads a key by READs over a device: what each read took, in nanoseconds, as a list of `most` at most.

    anew: as if it had not been read before. Raises ValueError as read_direct does; a read now and then may find that
    the server is to be asked, and is not in the list.
    """
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef Py_ssize_t limit = most
    cdef Py_ssize_t asked = 0
    cdef list took = []
    cdef bint again = anew
    cdef Connection c
    cdef int64_t ns
    while len(took) < limit and now_ns() < until:
        c = session.enter(False, b"get")
        try:
            ns = time_read(c, key, again)
        finally:
            session.leave(c, None)
        if ns:
            took.append(ns)
            continue
        asked += 1
        if asked > len(took) + ASKED_MOST:
            raise ValueError("the key is not to be had without asking")
    return took


def count_direct(Session session not None, keys, seconds):
    """Reads keys (bytes) without asking, at C speed, for so many seconds. Returns (reads, those that were to be asked
    for). Raises ValueError as read_direct does."""
    cdef DirectReader reader = session.reader()
    cdef list names = list(keys)
    cdef int64_t until = now_ns() + <int64_t>(seconds * 1e9)
    cdef size_t count = len(names)
    cdef size_t read = 0
    cdef size_t asked = 0
    cdef size_t place = 0
    cdef const char **texts = <const char **>malloc(count * sizeof(char *))
    cdef size_t *lengths = <size_t *>malloc(count * sizeof(size_t))
    cdef char *to = <char *>malloc(READ_MOST)
    cdef direct_hit hit
    cdef direct_memory *m
    try:
        if texts == NULL or lengths == NULL or to == NULL:
            raise MemoryError()
        if reader is None:
            raise ValueError("the server does not let this client read without asking")
        m = &reader.memory.memory
        for name in names:
            texts[place] = name
            lengths[place] = len(name)
            place += 1
        with nogil:
            while read % 1024 or now_ns() < until:
                place = read % count
                read += 1
                if direct_find(m, texts[place], lengths[place], &hit) != DIRECT_FOUND or hit.length > READ_MOST \
                        or direct_copy(m, &hit, to) != DIRECT_FOUND:
                    asked += 1
        return read, asked
    finally:
        free(texts)
        free(lengths)
        free(to)


def check_arguments(keys, key_size, value_size, depth, set_every):
    if key_size < 10 or key_size > 250 or depth < 1 or keys < 1 or value_size < 0 or set_every < 0:
        raise ValueError("key_size is 10 to 250, depth and keys are at least 1")


cdef void start_load(load *l, unsigned int keys, size_t key_size, size_t value_size, unsigned int depth,
                     unsigned int set_every, uint64_t seed) noexcept:
    memset(l, 0, sizeof(l[0]))
    l.epoll = -1
    l.keys = keys
    l.key_size = key_size
    l.value_size = value_size
    l.depth = depth
    l.multiget = 1
    l.set_every = set_every
    l.random = seed * <uint64_t>0x9E3779B97F4A7C15 + 1
    if l.random == 0:
        l.random = 1


def run(descriptors, seconds, keys=10000, key_size=32, value_size=100, depth=1, set_every=10, seed=1,
        multiget=1):
    """Loads a server through connected sockets for a time, one batch of `depth` requests at a time on each.

    Args: descriptors of the sockets; seconds; number of keys (which must be stored, see `store_commands`) and their
    size; value size in bytes; one request in set_every is a set (0: none), the others are gets of `multiget` keys each.

    Returns {"requests", "gets", "sets", "seconds"}. Raises ConnectionError, TimeoutError, OSError, MemoryError, or
    ValueError for wrong arguments or a wrong reply. Thread-safe; it runs without the GIL.
    """
    cdef load l
    cdef int64_t begin, until
    cdef int r
    cdef size_t text = key_size + value_size + TEXT_MORE
    check_arguments(keys, key_size, value_size, depth, set_every)
    if multiget < 1:
        raise ValueError("multiget is at least 1")
    start_load(&l, keys, key_size, value_size, depth, set_every, seed)
    l.multiget = multiget
    l.count = len(descriptors)
    l.reply_size = REPLY_SIZE
    try:
        prepare_texts(&l)
        prepare(&l, descriptors, depth * max(text, multiget * (key_size + 1) + TEXT_MORE), depth * multiget * text)
        begin = now_ns()
        until = begin + int(seconds * 1e9)
        with nogil:
            r = work(&l, until)
        elapsed = (now_ns() - begin) / 1e9
        if r == -1:
            raise ConnectionError("the server closed a connection")
        if r == -2:
            raise ValueError(f"wrong reply {l.reply[:l.wrong_length]!r}, expected {l.wrong[:l.wrong_length]!r}")
        if r == -3:
            raise TimeoutError("the server is silent")
        return {"requests": l.gets + l.sets, "gets": l.gets, "sets": l.sets, "seconds": elapsed}
    finally:
        release(&l)


def store_commands(first, count, key_size=32, value_size=100):
    """The text protocol's set commands that store `count` of the keys which `run` asks for, as bytes.

    Raises ValueError for a wrong key_size.
    """
    cdef load l
    cdef bytearray out = bytearray(count * (key_size + value_size + TEXT_MORE))
    cdef char *p = out
    cdef unsigned int number
    if key_size < 10 or key_size > 250:
        raise ValueError("key_size is 10 to 250")
    memset(&l, 0, sizeof(l))
    l.key_size = key_size
    l.value_size = value_size
    for number in range(first, first + count):
        p += put_set(&l, p, number)
    return bytes(out[:p - <char *>out])
