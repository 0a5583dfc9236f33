# Connections, and the loop that serves them: it sends due requests, takes replies, and then waits.


# --- memory ---


cdef int prepare_memory(load *l, size_t largest) except -1:
    cdef size_t i, words
    cdef int kind
    cdef uint64_t *pool
    cdef uint64_t word = 1
    l.value_size = largest if l.value_sizes != NULL else l.value_size
    words = (OFFSETS + largest) // 8 + 1
    pool = <uint64_t *>malloc(words * 8)
    l.pool = <char *>pool
    l.input = <char *>malloc(INPUT)
    l.late = <uint64_t *>calloc(BUCKETS, sizeof(uint64_t))
    for kind in range(KINDS):
        l.latencies[kind] = <uint64_t *>calloc(BUCKETS, sizeof(uint64_t))
        if l.latencies[kind] == NULL:
            raise MemoryError
    if pool == NULL or l.input == NULL or l.late == NULL:
        raise MemoryError
    for i in range(words):
        word = mix64(word)
        pool[i] = word
    return 0


cdef void free_connections(load *l) noexcept:
    cdef int i
    for i in range(l.count):
        free(l.connections[i].requests)
        free(l.connections[i].numbers)
        free(l.connections[i].pending)
    free(l.connections)
    free(l.ready)
    free(l.thinking)
    l.connections = NULL
    l.ready = l.thinking = NULL
    l.count = 0
    if l.epoll >= 0:
        close(l.epoll)
    if l.timer >= 0:
        close(l.timer)
    l.epoll = l.timer = -1


cdef void release(load *l) noexcept:
    cdef int i
    free_connections(l)
    for i in range(KINDS):
        free(l.latencies[i])
    free(l.late)
    free(l.pool)
    free(l.out)
    free(l.input)


cdef connection *new_connection(load *l) except NULL:
    # Adds a connection. The returned address is valid until the next call.
    cdef connection *made
    cdef void *grown
    if l.epoll >= 0:
        raise ValueError("connections come before the first run")
    grown = realloc(l.connections, (l.count + 1) * sizeof(connection))
    if grown == NULL:
        raise MemoryError
    l.connections = <connection *>grown
    made = &l.connections[l.count]
    memset(made, 0, sizeof(connection))
    made.fd = -1
    made.requests = <request *>calloc(l.depth, sizeof(request))
    made.numbers = <uint32_t *>calloc(<size_t>l.depth * l.multiget, sizeof(uint32_t))
    l.count += 1
    if made.requests == NULL or made.numbers == NULL:
        raise MemoryError
    return made


cdef int watch(load *l, int fd, uint32_t which, int how, uint32_t events) noexcept nogil:
    cdef epoll_event event
    event.events = events
    event.data.u32 = which
    return epoll_ctl(l.epoll, how, fd, &event)


cdef int prepare_waiting(load *l) except -1:
    # start_run calls this function, and only the first call does anything: by then all connections are made.
    cdef int i
    cdef int fd
    if l.epoll >= 0:
        return 0
    l.ready = <connection **>calloc(l.count, sizeof(void *))
    l.thinking = <connection **>calloc(l.count, sizeof(void *))
    if l.ready == NULL or l.thinking == NULL:
        raise MemoryError
    l.epoll = epoll_create1(EPOLL_CLOEXEC)
    l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
    if l.epoll < 0 or l.timer < 0 or watch(l, l.timer, <uint32_t>l.count, EPOLL_CTL_ADD, EPOLLIN) != 0:
        raise OSError(errno, "epoll and timerfd")
    for i in range(l.count):
        if l.connections[i].fd >= 0:
            if watch(l, l.connections[i].fd, i, EPOLL_CTL_ADD, EPOLLIN) != 0:
                raise OSError(errno, "epoll_ctl")
            continue
        for fd in (<Stream>l.connections[i].stream).descriptors():
            # Connections of a queue pair share its descriptors, so epoll may have them already.
            if watch(l, fd, i, EPOLL_CTL_ADD, EPOLLIN) != 0 and errno != EEXIST:
                raise OSError(errno, "epoll_ctl")
    return 0


cdef int start_run(load *l, int64_t begin, int64_t until) except -1:
    cdef int i
    prepare_waiting(l)
    for i in range(KINDS):
        if l.done[i] or l.unsent:
            memset(l.latencies[i], 0, BUCKETS * sizeof(uint64_t))
        l.done[i] = 0
    memset(l.late, 0, BUCKETS * sizeof(uint64_t))
    l.hits = l.misses = l.refused = l.unsent = 0
    l.turn = 0
    l.wrong_in_value = l.wrong_unasked = False
    l.ready_first = l.ready_count = l.thinking_count = 0
    l.until = until
    l.heard = l.answered = begin
    return 0


# --- sending ---


cdef int keep_pending(connection *c, const char *p, size_t length) noexcept nogil:
    if length > c.pending_size:
        free(c.pending)
        c.pending = <char *>malloc(length)
        c.pending_size = length if c.pending != NULL else 0
        if c.pending == NULL:
            return -ENOMEM
    memcpy(c.pending, p, length)
    c.pending_first = 0
    c.pending_last = length
    return RUNNING


cdef inline bint is_pending(const connection *c) noexcept nogil:
    return c.pending_first < c.pending_last


cdef ssize_t send_socket(connection *c, const char *p, size_t length) noexcept nogil:
    # Returns the number of bytes taken by the socket now, or LOST.
    cdef size_t sent = 0
    cdef ssize_t n
    while sent < length:
        n = send(c.fd, p + sent, length - sent, MSG_DONTWAIT | MSG_NOSIGNAL)
        if n >= 0:
            sent += n
        elif errno == EAGAIN:
            break
        elif errno != EINTR:
            return LOST
    return sent


cdef ssize_t send_stream(connection *c, const char *p, size_t length) noexcept nogil:
    # Returns the number of bytes taken by the stream now, LOST, or another negative number: -errno.
    cdef int r
    (<Stream>c.stream).iov[0].iov_base = <void *>p
    (<Stream>c.stream).iov[0].iov_len = length
    (<Stream>c.stream).iov_next = 0
    (<Stream>c.stream).iov_count = 1
    r = (<Stream>c.stream).push()
    if r <= 0 and r != -EINTR:
        return LOST if r == 0 else r
    if (<Stream>c.stream).iov_next == 0:
        length -= (<Stream>c.stream).iov[0].iov_len
    (<Stream>c.stream).iov_next = (<Stream>c.stream).iov_count = 0
    return length


cdef int send_pending(load *l, connection *c) noexcept nogil:
    cdef size_t length = c.pending_last - c.pending_first
    cdef ssize_t n
    if c.fd < 0:
        n = send_stream(c, c.pending + c.pending_first, length)
    else:
        n = send_socket(c, c.pending + c.pending_first, length)
    if n < 0:
        return <int>n
    c.pending_first += n
    if c.watches and not is_pending(c):
        c.watches = False
        if watch(l, c.fd, <uint32_t>(c - l.connections), EPOLL_CTL_MOD, EPOLLIN) != 0:
            return -errno
    return RUNNING


cdef int send_out(load *l, connection *c) noexcept nogil:
    # Sends load.out on a connection without pending bytes, and keeps what has no room as pending.
    cdef size_t length = l.out_length
    cdef ssize_t n
    l.out_length = 0
    if length == 0:
        return RUNNING
    n = send_stream(c, l.out, length) if c.fd < 0 else send_socket(c, l.out, length)
    if n < 0:
        return <int>n
    if <size_t>n == length:
        return RUNNING
    if c.fd >= 0:
        c.watches = True
        if watch(l, c.fd, <uint32_t>(c - l.connections), EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT) != 0:
            return -errno
    return keep_pending(c, l.out + n, length - n)


# --- due requests ---


cdef void think_later(load *l, connection *c, int64_t due) noexcept nogil:
    # Adds the connection to the heap of thinking connections.
    cdef unsigned int at = l.thinking_count
    cdef unsigned int above
    c.due = due
    l.thinking_count += 1
    while at:
        above = (at - 1) // 2
        if l.thinking[above].due <= due:
            break
        l.thinking[at] = l.thinking[above]
        at = above
    l.thinking[at] = c


cdef connection *take_thinking(load *l) noexcept nogil:
    # Takes the connection with the earliest due time out of the heap.
    cdef connection *first = l.thinking[0]
    cdef connection *last
    cdef unsigned int at = 0
    cdef unsigned int below
    l.thinking_count -= 1
    last = l.thinking[l.thinking_count]
    while True:
        below = 2 * at + 1
        if below >= l.thinking_count:
            break
        if below + 1 < l.thinking_count and l.thinking[below + 1].due < l.thinking[below].due:
            below += 1
        if l.thinking[below].due >= last.due:
            break
        l.thinking[at] = l.thinking[below]
        at = below
    l.thinking[at] = last
    return first


cdef inline int64_t thought(load *l) noexcept nogil:
    return <int64_t>exponential(l, <double>l.think) if l.think_varies else l.think


cdef void is_ready(load *l, connection *c) noexcept nogil:
    # Open loop: puts a connection with room behind the others that wait for a request.
    if not c.waits and c.count < l.depth and not is_pending(c):
        c.waits = True
        l.ready[(l.ready_first + l.ready_count) % l.count] = c
        l.ready_count += 1


cdef connection *take_ready(load *l) noexcept nogil:
    cdef connection *c = l.ready[l.ready_first]
    l.ready_first = (l.ready_first + 1) % l.count
    l.ready_count -= 1
    c.waits = False
    return c


cdef inline bint may_send(const load *l, int64_t now) noexcept nogil:
    return l.filled < l.to_fill if l.filling else now < l.until and l.until > 0


cdef int fill_up(load *l, connection *c, int64_t now) noexcept nogil:
    # Closed loop: sends the next requests, as many as the connection has room for.
    while c.count < l.depth and may_send(l, now):
        if put_request(l, c, now) != 0:
            return -ENOMEM
    return send_out(l, c)


cdef int go_on(load *l, connection *c, int64_t now) noexcept nogil:
    # Takes the next step of a connection, after answers or after its pending bytes have left.
    if is_pending(c):
        return RUNNING
    if l.gap:
        is_ready(l, c)
        return RUNNING
    if l.batch and c.count:
        return RUNNING
    if l.think:
        think_later(l, c, now + thought(l))
        return RUNNING
    return fill_up(l, c, now)


cdef int send_due(load *l, int64_t now) noexcept nogil:
    # Sends the requests due by the clock of the open loop, or after think times.
    cdef connection *c
    cdef int64_t intended
    cdef bint alone
    cdef int r
    while l.gap and l.ready_count and l.next <= now and l.next < l.until:
        c = take_ready(l)
        # Several due requests leave together if no other connection has room.
        alone = l.ready_count == 0
        while True:
            intended = <int64_t>l.next
            count_latency(l.late, now - intended)
            if put_request(l, c, intended) != 0:
                return -ENOMEM
            l.next += exponential(l, l.gap) if l.gap_varies else l.gap
            if not alone or c.count == l.depth or l.next > now or l.next >= l.until:
                break
        r = send_out(l, c)
        if r != RUNNING:
            return r
        is_ready(l, c)
    while l.thinking_count and l.thinking[0].due <= now:
        c = take_thinking(l)
        if c.due >= l.until:
            continue
        while c.count < l.depth and c.due < l.until:
            if put_request(l, c, c.due) != 0:
                return -ENOMEM
        r = send_out(l, c)
        if r != RUNNING:
            return r
    return RUNNING


cdef int64_t next_due(const load *l) noexcept nogil:
    # Returns the time of the next due request. 0: no request is due.
    if l.gap:
        return <int64_t>l.next if l.ready_count and l.next < l.until else 0
    return l.thinking[0].due if l.thinking_count else 0


cdef void give_up_unsent(load *l, int64_t now) noexcept nogil:
    # Counts the requests still due at the end of the run, with their waiting time.
    cdef unsigned int kind
    while l.gap and l.next < l.until:
        kind = draw_kind(l)
        count_latency(l.latencies[kind], now - <int64_t>l.next)
        count_latency(l.late, now - <int64_t>l.next)
        l.unsent += 1
        l.next += exponential(l, l.gap) if l.gap_varies else l.gap


cdef int first_turn(load *l, int64_t now) noexcept nogil:
    cdef connection *c
    cdef int i, r
    l.next = <double>now + (exponential(l, l.gap) if l.gap_varies else 0)
    for i in range(l.count):
        c = &l.connections[i]
        c.waits = False
        if l.gap:
            is_ready(l, c)
        elif l.think:
            # The connections do not begin all at once.
            think_later(l, c, now + <int64_t>(fraction(l) * l.think))
        else:
            # Each connection sends at least one request, even in the shortest run.
            now = now_ns()
            r = put_request(l, c, now) if may_send(l, l.until - 1) else 0
            if r == 0:
                r = fill_up(l, c, now)
            if r != RUNNING:
                return r
    return RUNNING


# --- replies ---


cdef int take_socket(load *l, connection *c) noexcept nogil:
    cdef ssize_t n = recv(c.fd, l.input, INPUT, MSG_DONTWAIT)
    cdef int64_t now
    cdef int r
    if n < 0 and (errno == EAGAIN or errno == EINTR):
        return RUNNING
    if n <= 0:
        return LOST
    now = now_ns()
    l.heard = now
    r = take_bytes(l, c, l.input, n, now)
    return go_on(l, c, now) if r == 0 else r


cdef int take_read(load *l, connection *c) noexcept nogil:
    # Takes the bytes that a stream has read.
    cdef size_t first = (<Stream>c.stream).rpos
    cdef size_t length = (<Stream>c.stream).rend - first
    cdef int64_t now = now_ns()
    cdef int r
    (<Stream>c.stream).rpos = (<Stream>c.stream).rend
    l.heard = now
    r = take_bytes(l, c, (<Stream>c.stream).rbuf + first, length, now)
    return go_on(l, c, now) if r == 0 else r


cdef int take_stream(load *l, connection *c, bint *some) noexcept nogil:
    # Takes the bytes received by now, and sends pending bytes as far as there is room.
    cdef int r = (<RdmaStream>c.stream).queue.reap(<RdmaStream>c.stream, (<RdmaStream>c.stream).lane, 1)
    if r <= 0:
        return LOST if r == 0 else r
    if is_pending(c):
        r = send_pending(l, c)
        if r != RUNNING:
            return r
        if not is_pending(c):
            some[0] = True
            if (<Stream>c.stream).rpos == (<Stream>c.stream).rend:
                return go_on(l, c, now_ns())
    if (<Stream>c.stream).rpos == (<Stream>c.stream).rend:
        return RUNNING
    some[0] = True
    return take_read(l, c)


# --- waiting ---


cdef int await_events(load *l, epoll_event *events, int64_t now, int64_t slice_end) noexcept nogil:
    # Waits for an event, a due request, or the end of the slice. Returns the number of events.
    cdef int64_t due = next_due(l)
    cdef itimerspec at
    cdef int n
    # The loop stays awake when a request is due soon.
    if due and due - now < SPIN:
        n = epoll_wait(l.epoll, events, EVENTS, 0)
        if n == 0:
            sched_yield()
        return max(n, 0)
    due = min(due, slice_end) if due else slice_end
    if l.gap or l.think:
        memset(&at, 0, sizeof(at))
        # The timer rings a little early: the loop stays awake for the rest.
        at.it_value = ns_timespec(max(due - SPIN // 2, now + 1))
        timerfd_settime(l.timer, TFD_TIMER_ABSTIME, &at, NULL)
        return max(epoll_wait(l.epoll, events, EVENTS, -1), 0)
    return max(epoll_wait(l.epoll, events, EVENTS, <int>((due - now) // 1000000 + 1)), 0)


cdef int state_of(load *l, int64_t now) noexcept nogil:
    # Looks whether the run is over, or the server silent. Returns a step (RUNNING: the run goes on), or -errno.
    # At the end of an open loop's time, also sends its due requests as far as there is room, and gives up the rest.
    cdef int r
    if not may_send(l, now):
        if l.gap and l.next < l.until:
            # Requests due before the end leave now, as far as there is room.
            r = send_due(l, now)
            if r != RUNNING:
                return r
            give_up_unsent(l, now)
        if l.in_flight == 0:
            return OVER
    if l.in_flight == 0:
        l.heard = l.answered = now
    elif now - l.heard > l.patience or now - l.answered > SLOWEST * l.patience:
        return SILENT
    return RUNNING


cdef int turn_of_sockets(load *l, int64_t slice_end) noexcept nogil:
    cdef epoll_event events[EVENTS]
    cdef connection *c
    cdef int64_t now = now_ns()
    cdef int i, n
    cdef int r = state_of(l, now)
    while r == RUNNING and now < slice_end:
        if l.gap or l.think:
            r = send_due(l, now)
            if r != RUNNING:
                return r
        n = await_events(l, events, now, slice_end)
        for i in range(n):
            if events[i].data.u32 == <uint32_t>l.count:
                continue
            c = &l.connections[events[i].data.u32]
            if events[i].events & EPOLLOUT:
                r = send_pending(l, c)
                if r == RUNNING:
                    r = go_on(l, c, now_ns())
            if r == RUNNING and events[i].events & ~<uint32_t>EPOLLOUT:
                r = take_socket(l, c)
            if r != RUNNING:
                return r
        now = now_ns()
        r = state_of(l, now)
    return r


cdef inline bint is_alive(connection *c) noexcept nogil:
    # Whether the queue pair lives. Costs a system call.
    return queue_lives((<RdmaStream>c.stream).queue)


cdef int turn_of_streams(load *l, int64_t slice_end) noexcept nogil:
    # Looks at the streams in turn for as long as bytes come, and SPIN longer. Then waits for an event.
    cdef epoll_event events[EVENTS]
    cdef int64_t now = now_ns()
    cdef int64_t last = now
    cdef bint some
    cdef uint32_t which
    cdef int i, n
    cdef int r = state_of(l, now)
    while r == RUNNING and now < slice_end:
        if l.gap or l.think:
            r = send_due(l, now)
        some = False
        i = 0
        while r == RUNNING and i < l.count:
            r = take_stream(l, &l.connections[i], &some)
            i += 1
        if r != RUNNING:
            return r
        if some:
            last = now
        elif now - last < SPIN:
            sched_yield()
        else:
            # From now on new bytes make an event on each queue pair.
            for i in range(l.count):
                if (<Stream>l.connections[i].stream).arm():
                    some = True
            n = 0 if some else await_events(l, events, now, slice_end)
            for i in range(n):
                which = events[i].data.u32
                if which != <uint32_t>l.count and not is_alive(&l.connections[which]):
                    return LOST
        now = now_ns()
        r = state_of(l, now)
    return r


cdef int fill_stream(connection *c) noexcept nogil:
    # Waits for bytes, and sends pending bytes meanwhile.
    cdef size_t length = c.pending_last - c.pending_first
    cdef int r
    if length == 0:
        return (<Stream>c.stream).fill()
    (<Stream>c.stream).iov[0].iov_base = c.pending + c.pending_first
    (<Stream>c.stream).iov[0].iov_len = length
    (<Stream>c.stream).iov_next = 0
    (<Stream>c.stream).iov_count = 1
    r = (<Stream>c.stream).fill()
    if (<Stream>c.stream).iov_next == 0:
        length -= (<Stream>c.stream).iov[0].iov_len
    c.pending_first += length
    (<Stream>c.stream).iov_next = (<Stream>c.stream).iov_count = 0
    return r


cdef int turn_of_one_stream(load *l, int64_t slice_end) noexcept nogil:
    # Closed loop: waits as a Client does, also beside other threads on the same queue pair.
    cdef connection *c = l.connections
    cdef int64_t now = now_ns()
    cdef int r = state_of(l, now)
    while r == RUNNING and now < slice_end:
        r = fill_stream(c)
        if r == -EINTR:
            return RUNNING
        if r <= 0:
            return LOST if r == 0 else r
        r = take_read(l, c)
        if r == RUNNING:
            now = l.heard
            r = state_of(l, now)
    return r


cdef int take_turns(load *l, int64_t slice_end) noexcept nogil:
    # Runs until the end of the slice (RUNNING), or of the run.
    if now_ns() < l.until:
        slice_end = min(slice_end, l.until)
    if l.connections[0].fd >= 0:
        return turn_of_sockets(l, slice_end)
    if l.count == 1 and not l.gap and not l.think:
        return turn_of_one_stream(l, slice_end)
    return turn_of_streams(l, slice_end)
