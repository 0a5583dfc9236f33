"""The load generator of bench/: the text protocol on many sockets, or on one Client's connection, from one thread.

Every reply is compared byte for byte with the one expected. Cheap enough to keep one server thread busy.
"""

from libc.errno cimport EAGAIN, EBADMSG, EINTR, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset, strlen

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
    FIRST_COUNT = 1000000000  # of `incr`: as many digits as it will ever have
    SPAN_BITS = 5            # spans of the histogram have a width of 1/32 of where they begin
    SPANS = 64 << SPAN_BITS

cdef enum ask_kind:
    ASK_GET                  # and sets, one of `set_every`
    ASK_MISS                 # a get of a key that is not there
    ASK_DELETE               # each key once, in turn
    ASK_INCR                 # each connection has its own keys
    ASK_TOUCH
    ASK_META_GET
    ASK_META_SET
    ASK_NEW                  # sets of keys that are new each time

cdef extern from *:
    """
    static const char NO_MEMORY[] = "SERVER_ERROR out of memory storing object\\r\\n";
    """
    const char NO_MEMORY[]

cdef struct client:
    int fd
    int64_t since            # when the batch under way was due
    char *request            # the batch under way
    size_t request_length
    size_t sent
    char *expected           # the replies to it
    size_t expected_length
    size_t received
    size_t lines             # of ASK_NEW

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
    ask_kind ask
    uint64_t number          # ASK_DELETE, ASK_NEW: of the next key
    uint32_t *counts         # ASK_INCR: of each key
    int64_t interval         # ns from one request to the next that is due; 0: each follows a reply
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
    uint64_t others
    uint64_t refused         # of ASK_NEW: for which the server had no memory
    uint64_t[SPANS] spans    # how many batches took how long
    int64_t longest          # ns
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


cdef inline char *put_text(char *out, const char *text) noexcept nogil:
    cdef size_t length = strlen(text)
    memcpy(out, text, length)
    return out + length


cdef inline const char *value_of(const load *l, unsigned int number) noexcept nogil:
    # With its line end.
    return l.set_texts + (number + 1) * l.set_length - l.value_size - 2


cdef void put_other(load *l, client *c, char **request, char **reply) noexcept nogil:
    # One that is neither get nor set of a key that is there.
    cdef char *p = request[0]
    cdef char *e = reply[0]
    cdef unsigned int number
    if l.ask == ASK_INCR:
        number = <unsigned int>(c - l.clients) + l.count * <unsigned int>(draw(l) % (l.keys // l.count))
    elif l.ask == ASK_DELETE:
        number = <unsigned int>l.number
        l.number += 1
    else:
        number = draw(l)
    if l.ask == ASK_INCR:
        p = put_text(p, "incr ")
    elif l.ask == ASK_DELETE:
        p = put_text(p, "delete ")
    elif l.ask == ASK_TOUCH:
        p = put_text(p, "touch ")
    elif l.ask == ASK_META_GET:
        p = put_text(p, "mg ")
    elif l.ask == ASK_META_SET:
        p = put_text(p, "ms ")
    elif l.ask == ASK_MISS:
        p = put_text(p, "get ")
    else:
        p = put_text(p, "set ")
    memcpy(p, l.set_texts + number * l.set_length + 4, l.key_size)
    if l.ask == ASK_MISS:
        p[0] = c'm'
    if l.ask == ASK_NEW:
        l.number += 1
        p[0] = c'n'
        put_number(p + l.key_size, l.number)
    p += l.key_size
    if l.ask == ASK_INCR:
        l.counts[number] += 1
        p = put_text(p, " 1\r\n")
        e += snprintf(e, TEXT_MORE, "%u\r\n", FIRST_COUNT + l.counts[number])
    elif l.ask == ASK_DELETE:
        p = put_text(p, "\r\n")
        e = put_text(e, "DELETED\r\n")
    elif l.ask == ASK_TOUCH:
        p = put_text(p, " 0\r\n")
        e = put_text(e, "TOUCHED\r\n")
    elif l.ask == ASK_META_GET:
        p = put_text(p, " v\r\n")
        e += snprintf(e, TEXT_MORE, "VA %zu\r\n", l.value_size)
        memcpy(e, value_of(l, number), l.value_size + 2)
        e += l.value_size + 2
    elif l.ask == ASK_MISS:
        p = put_text(p, "\r\n")
        e = put_text(e, "END\r\n")
    else:
        p += snprintf(p, TEXT_MORE, " %zu\r\n" if l.ask == ASK_META_SET else " 0 0 %zu\r\n", l.value_size)
        memcpy(p, value_of(l, number), l.value_size + 2)
        p += l.value_size + 2
        e = put_text(e, "HD\r\n" if l.ask == ASK_META_SET else "STORED\r\n")
    l.others += 1
    request[0] = p
    reply[0] = e


cdef void put_number(char *end, uint64_t number) noexcept nogil:
    # Its ten last digits, before `end`.
    for _ in range(10):
        end -= 1
        end[0] = c'0' + <char>(number % 10)
        number //= 10


cdef void put_batch(load *l, client *c) noexcept nogil:
    # Empty when no key is left.
    cdef char *p = c.request
    cdef char *e = c.expected
    cdef unsigned int number, key
    for _ in range(l.depth):
        if l.ask == ASK_DELETE and l.number == l.keys:
            break
        if l.ask != ASK_GET:
            put_other(l, c, &p, &e)
            continue
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
    c.lines = 0


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


cdef int take_stored(load *l, client *c, size_t n) noexcept nogil:
    # As `take`. A server that must evict may say that it has no memory; the lengths tell how often it did.
    cdef size_t more = sizeof(NO_MEMORY) - 1 - STORED_LENGTH
    cdef size_t i
    for i in range(n):
        c.lines += l.reply[i] == c'\n'
    c.received += n
    if c.lines < l.depth:
        return 0
    if c.lines > l.depth or c.received < c.expected_length or (c.received - c.expected_length) % more:
        l.wrong = c.expected
        l.wrong_length = n
        return -2
    l.refused += (c.received - c.expected_length) // more
    return 1


cdef int take(load *l, client *c) noexcept nogil:
    # 1: the batch is complete; 0: more is to come; -1: the connection was lost; -2: wrong bytes.
    cdef ssize_t n = recv(c.fd, l.reply, l.reply_size, MSG_DONTWAIT)
    if n < 0 and (errno == EAGAIN or errno == EINTR):
        return 0
    if n <= 0:
        return -1
    if l.ask == ASK_NEW:
        return take_stored(l, c, n)
    if <size_t>n > c.expected_length - c.received or memcmp(l.reply, c.expected + c.received, n) != 0:
        l.wrong = c.expected + c.received
        l.wrong_length = n
        return -2
    c.received += n
    return 1 if c.received == c.expected_length else 0


cdef inline void note_time(load *l, int64_t ns) noexcept nogil:
    # Spans 0 to 31 are of one ns each; then come 32 for each power of two.
    cdef int shift = 0
    if ns > l.longest:
        l.longest = ns
    while ns >> shift >= 2 << SPAN_BITS:
        shift += 1
    l.spans[(shift << SPAN_BITS) + (ns >> shift)] += 1


cdef double share_within(const load *l, double share) noexcept nogil:
    # The ns that this share of all batches took at most.
    cdef uint64_t total = 0
    cdef uint64_t seen = 0
    cdef int64_t i
    cdef int64_t shift
    for i in range(SPANS):
        total += l.spans[i]
    for i in range(SPANS):
        seen += l.spans[i]
        if seen and seen >= share * total:
            shift = max(0, (i >> SPAN_BITS) - 1)
            return <double>((i - (shift << SPAN_BITS) + 1) << shift)
    return 0


cdef int begin_batch(load *l, client *c, int64_t now) noexcept nogil:
    # 1: it is under way; 0: there is nothing left to ask; -1: the connection was lost.
    c.since = now
    put_batch(l, c)
    if c.request_length == 0:
        return 0
    return 1 if push(l, c) == 0 else -1


cdef int answered(load *l, const epoll_event *event) noexcept nogil:
    # What `take` returns.
    cdef client *c = &l.clients[event.data.u32]
    if event.events & EPOLLOUT and push(l, c) != 0:
        return -1
    if not event.events & ~<uint32_t>EPOLLOUT:
        return 0
    return take(l, c)


cdef int work(load *l, int64_t until) noexcept nogil:
    # 0; -1: a connection was lost; -2: wrong bytes; -3: silence.
    cdef epoll_event events[EVENTS]
    cdef client *c
    cdef int64_t now
    cdef int i, n, r
    cdef int running = 0
    for i in range(l.count):
        r = begin_batch(l, &l.clients[i], now_ns())
        if r < 0:
            return r
        running += r
    while running:
        n = epoll_wait(l.epoll, events, EVENTS, STALL_MS)
        if n == 0:
            return -3
        for i in range(n):
            r = answered(l, &events[i])
            if r < 0:
                return r
            if r == 0:
                continue
            c = &l.clients[events[i].data.u32]
            now = now_ns()
            note_time(l, now - c.since)
            r = begin_batch(l, c, now) if now < until else 0
            if r < 0:
                return r
            running -= r == 0
    return 0


cdef int work_paced(load *l, int *idle, int64_t until) noexcept nogil:
    # As `work`; but batches are due at fixed times, whether those before them are answered or not. One for which no
    # connection is idle waits, and its time counts from when it was due.
    cdef epoll_event events[EVENTS]
    cdef client *c
    cdef int64_t due = now_ns()
    cdef int64_t heard = due
    cdef int64_t now
    cdef int i, n, r
    cdef int count = l.count
    for i in range(count):
        idle[i] = i
    while due < until or count < l.count:
        now = now_ns()
        while count and due < until and due <= now:
            r = begin_batch(l, &l.clients[idle[count - 1]], due)
            if r < 0:
                return r
            count -= r
            # Nothing is left to ask: the time is over.
            due = due + l.interval if r else until
        n = epoll_wait(l.epoll, events, EVENTS, 0)
        now = now_ns()
        if n > 0 or count == l.count:
            heard = now
        if now - heard > STALL_MS * <int64_t>1000000:
            return -3
        for i in range(n):
            r = answered(l, &events[i])
            if r < 0:
                return r
            if r == 0:
                continue
            c = &l.clients[events[i].data.u32]
            note_time(l, now - c.since)
            idle[count] = <int>(c - l.clients)
            count += 1
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
    free(l.counts)


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


cdef int check_end(const load *l, int r) except -1:
    # r: what `work` has returned.
    if r == -1:
        raise ConnectionError("the server closed a connection")
    if r == -2:
        raise ValueError(f"wrong reply {l.reply[:l.wrong_length]!r}, expected {l.wrong[:l.wrong_length]!r}")
    if r == -3:
        raise TimeoutError("the server is silent")
    return 0


ASKS = {
    "": ASK_GET, "miss": ASK_MISS, "delete": ASK_DELETE, "incr": ASK_INCR, "touch": ASK_TOUCH, "mg": ASK_META_GET,
    "ms": ASK_META_SET, "new": ASK_NEW,
}


def run(descriptors, seconds, keys=10000, key_size=32, value_size=100, depth=1, set_every=10, seed=1,
        multiget=1, ask="", rate=0):
    """Loads a server through connected sockets for a time, one batch of `depth` requests at a time on each.

    Args: descriptors of the sockets; seconds; number of keys (which must be stored, see `store_commands`) and their
    size; value size in bytes; one request in set_every is a set (0: none), the others are gets of `multiget` keys each.

    ask: other requests in their place. "miss": gets of keys that are not there; "touch", "mg" and "ms"; "delete", of
    each key once, which ends the run; "incr" by 1, of keys that have been stored with `count_commands`; "new": sets of
    keys that are new each time.

    rate: requests a second that are due, answered or not, each on a connection that is idle; 0: as many as there can
    be, each batch when the one before it has been answered.

    Returns {"requests", "gets", "sets", "seconds", "p50_us", "p99_us", "longest_us", "refused"}. How long a batch took
    counts from when it was due; percentiles are within 3 %. refused: sets of "new" for which the server had no memory;
    they are among the requests. Raises ConnectionError, TimeoutError, OSError, MemoryError, or
    ValueError for wrong arguments or a wrong reply. Thread-safe; it runs without the GIL.
    """
    cdef load l
    cdef int64_t begin, until
    cdef int r
    cdef int *idle = NULL
    cdef size_t text = key_size + value_size + TEXT_MORE
    check_arguments(keys, key_size, value_size, depth, set_every)
    if multiget < 1 or rate < 0:
        raise ValueError("multiget is at least 1, rate at least 0")
    if ask not in ASKS:
        raise ValueError(f"ask is one of {', '.join(ASKS)}")
    if ask == "incr" and keys < len(descriptors):
        raise ValueError("incr needs a key for each socket")
    start_load(&l, keys, key_size, value_size, depth, set_every, seed)
    l.multiget = multiget
    l.count = len(descriptors)
    l.reply_size = REPLY_SIZE
    l.ask = ASKS[ask]
    l.interval = int(1e9 * depth / rate) if rate else 0
    if ask == "new":
        l.number = <uint64_t>seed << 32
    try:
        l.counts = <uint32_t *>calloc(l.keys, sizeof(uint32_t))
        idle = <int *>calloc(l.count + 1, sizeof(int))
        if l.counts == NULL or idle == NULL:
            raise MemoryError
        prepare_texts(&l)
        prepare(&l, descriptors, depth * max(text, multiget * (key_size + 1) + TEXT_MORE), depth * multiget * text)
        begin = now_ns()
        until = begin + int(seconds * 1e9)
        with nogil:
            r = work_paced(&l, idle, until) if l.interval else work(&l, until)
        elapsed = (now_ns() - begin) / 1e9
        check_end(&l, r)
        return {
            "requests": l.gets + l.sets + l.others, "gets": l.gets, "sets": l.sets, "seconds": elapsed,
            "p50_us": share_within(&l, 0.5) / 1e3, "p99_us": share_within(&l, 0.99) / 1e3,
            "longest_us": l.longest / 1e3, "refused": l.refused,
        }
    finally:
        free(idle)
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


def count_commands(first, count, key_size=32):
    """As store_commands, for `run` with ask="incr": the value of each is a number. Raises ValueError."""
    cdef load l
    cdef bytearray key = bytearray(key_size)
    if key_size < 10 or key_size > 250:
        raise ValueError("key_size is 10 to 250")
    memset(&l, 0, sizeof(l))
    l.key_size = key_size
    made = []
    for number in range(first, first + count):
        put_key(&l, key, number)
        made.append(b"set %b 0 0 10\r\n%d\r\n" % (key, FIRST_COUNT))
    return b"".join(made)


include "_load_reads.pyx"
