"""See _queue_pair.pxd."""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EINTR, ENOMEM, ENOTCONN, ETIMEDOUT, errno
from libc.limits cimport INT_MAX
from libc.stdint cimport uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from rmemcached.client.transport._devices cimport device_lost, leave_domain
from rmemcached.client.transport._endpoint cimport CREDITS, MESSAGE_SIZE, READ, RECEIVE
from rmemcached.client.transport._errors cimport os_error
from rmemcached.client.transport._exchange cimport Offer
from rmemcached.client.transport._lane cimport (
    LANE_BYTES, LAST_WORDS, WANTS_BUFFER, WANTS_NOTHING, WANTS_READS, WANTS_ROOM, WANTS_SENT, inbox_drop,
    inbox_is_empty, inbox_put, inbox_take, lane_find, lane_follow, lane_free, lane_make, lane_table_free,
    lane_unfollow, lane_wake, lane_wake_all)
from rmemcached.client.transport._state cimport lock_state, resume_state, shared_state, suspend_state, unlock_state
from rmemcached.client.transport._timeouts cimport poll_timeout, start_deadline
from rmemcached.rdma.wire cimport (
    MESSAGE_CLOSE, MESSAGE_CREDIT, MESSAGE_DATA, MESSAGE_HEADER, MESSAGE_OPEN, MESSAGE_READY, MESSAGE_USED_MAX,
    RDMA_CREDITS_HELD_MAX, RDMA_CREDITS_MIN, get_message_header, message_header, put_message_header)
from rmemcached.sys.atomics cimport load_acquire, relaxed_load, relaxed_store, store_release
from rmemcached.sys.clock cimport now_ns
from rmemcached.sys.debug cimport LIVE_CLIENT_CONN, assert_held, assert_that, live_sub
from rmemcached.sys.linux cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, POLLIN, SHUT_RDWR, close_fd, eventfd, eventfd_clear, eventfd_signal, futex_wait,
    futex_wake, poll, pollfd, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock,
    shutdown)
from rmemcached.verbs.soft cimport CHANNEL_PROGRAM, soft_channel_watch, soft_cq_wait, soft_qp_wakeups
from rmemcached.verbs.system_cm cimport cm_destroy
from rmemcached.verbs.verbs cimport (
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WR_SEND,
    ibv_poll_cq, ibv_post_send, ibv_req_notify_cq, ibv_send_wr, ibv_sge, ibv_wc)

from rmemcached.client.exceptions import MemcacheServerError, MemcacheUnexpectedCloseError

cdef enum:
    POLL_BATCH = 16
    CLOSE_WAIT = 1000        # ms without a message of the server, after which the wait for a CLOSE ends
    CLOSE_WAIT_MOST = 5000   # ms of the whole wait for a CLOSE, at most


cdef class QueuePair(Endpoint):
    """A queue pair: it is connected once, then shared by lanes."""

    def __cinit__(self, *_):
        self.leaving = []
        pthread_mutex_init(&self.lock, NULL)

    def __dealloc__(self):
        self.close()

    # --- connecting ---

    def connect(self, client, Offer offer, lifeline, timeout):
        """Connects the queue pair to the server's, which the offer names.

        client: the options of the second connection, if there is one. lifeline: the socket of the exchange; its
        descriptor belongs to the QueuePair afterwards. timeout: seconds or None. Raises OSError, TimeoutError,
        MemcacheServerError, MemcacheUnexpectedCloseError.
        """
        try:
            self.connect_to(offer)
            if self.row.attach is not None:
                self.row.attach(client, self, offer, lifeline)
            self.take_lifeline(client, lifeline)
            self.start(start_deadline(timeout))
        except BaseException:
            # The server keeps its queue pair until the lifeline is closed, and a traceback would keep this object.
            self.close()
            raise

    def connect_cm(self, timeout):
        """Connects the queue pair through rdma_cm, along its route. timeout: seconds or None.

        Raises TransportRefused with the server's reason, when the server refuses; ConnectionRefusedError when nobody
        listens there; OSError, TimeoutError, MemcacheServerError, MemcacheUnexpectedCloseError.
        """
        try:
            self.agree(start_deadline(timeout))
            self.start(start_deadline(timeout))
        except BaseException:
            self.close()
            raise

    cdef int start(self, int64_t deadline) except -1:
        # Sends READY and waits for the server's READY.
        cdef int r
        cdef bint sent
        pthread_mutex_lock(&self.lock)
        sent = self.post_message(MESSAGE_READY, NULL, 0) > 0
        pthread_mutex_unlock(&self.lock)
        if not sent:
            raise MemcacheServerError("READY could not be sent")
        while not self.ready:
            with nogil:
                r = self.reap(None, NULL, 1)
                if r > 0 and not self.ready:
                    r = self.wait(None, NULL, False, deadline)
            if r <= 0 and r != -EINTR:
                if r == -ETIMEDOUT:
                    raise TimeoutError("timed out")
                raise MemcacheUnexpectedCloseError(self.failure_text(NULL, -1))
            PyErr_CheckSignals()
        return 0

    # --- messages: the lock is held ---

    cdef int post_message(self, uint8_t kind, lane_state *lane, size_t payload) noexcept nogil:
        # Posts the next free send buffer with the payload in it. 1, or a negative errno.
        cdef unsigned int index
        cdef char *message
        cdef ibv_sge sge
        cdef ibv_send_wr wr
        cdef ibv_send_wr *bad
        cdef size_t used = 0
        cdef bint silent
        cdef int error
        assert_held(&self.lock)
        assert_that(self.free_count > 0 and self.tx_credits > 0)
        self.free_count -= 1
        index = self.free_sends[self.free_count]
        message = self.buffer + <size_t>(CREDITS + index) * MESSAGE_SIZE
        if kind == MESSAGE_DATA:
            used = min(lane.unsaid, <size_t>MESSAGE_USED_MAX)
            lane.unsaid -= used
            lane.room -= payload
        put_message_header(message, kind, <uint16_t>self.owed, <uint16_t>used,
                           <uint16_t>lane.id if lane != NULL else 0)
        sge.addr = <uint64_t><uintptr_t>message
        sge.length = <uint32_t>(MESSAGE_HEADER + payload)
        sge.lkey = self.mr.lkey
        memset(&wr, 0, sizeof(wr))
        wr.wr_id = index
        wr.sg_list = &sge
        wr.num_sge = 1
        wr.opcode = IBV_WR_SEND
        wr.send_flags = IBV_SEND_SOLICITED
        silent = sge.length <= self.inline_bytes and not (lane != NULL and lane.told)
        wr.send_flags |= IBV_SEND_INLINE if silent else IBV_SEND_SIGNALED
        error = ibv_post_send(self.qp, &wr, &bad)
        if error:
            store_release(&self.failed, True)
            return -error
        if silent:
            # The device has copied the bytes: the buffer is free. The send queue has room for each SEND with a credit.
            self.free_count += 1
        else:
            self.send_lanes[index] = lane
            if lane != NULL:
                lane.sends += 1
        self.owed = 0
        self.tx_credits -= 1
        return 1

    cdef char *data_buffer(self) noexcept nogil:
        # Where the payload of the next DATA message goes; NULL: no message can be sent now. The last credit is for a
        # CREDIT message, and the server always gives this credit back: a server with blocked replies takes no more
        # input, and only a CREDIT message can unblock them.
        if self.free_count == 0 or self.tx_credits < RDMA_CREDITS_MIN or self.failed:
            return NULL
        return self.buffer + <size_t>(CREDITS + self.free_sends[self.free_count - 1]) * MESSAGE_SIZE + MESSAGE_HEADER

    cdef int post_data(self, lane_state *lane, size_t payload) noexcept nogil:
        return self.post_message(MESSAGE_DATA, lane, payload)

    cdef int push_locked(self, Stream s, lane_state *lane) noexcept nogil:
        # Sends as much of the stream's output as goes without waiting. 1, or a negative errno.
        cdef char *payload
        cdef size_t room, left, n
        cdef int r
        assert_held(&self.lock)
        while s.iov_next < s.iov_count and not lane.closed:
            payload = self.data_buffer()
            if payload == NULL:
                return 1
            if not lane.opened:
                lane.opened = True
                r = self.post_message(MESSAGE_OPEN, lane, 0)
                if r <= 0:
                    return r
                continue
            room = left = min(self.room, lane.room)
            if room == 0:
                return 1
            while left and s.iov_next < s.iov_count:
                n = min(left, <size_t>s.iov[s.iov_next].iov_len)
                memcpy(payload, s.iov[s.iov_next].iov_base, n)
                s.sent(n)
                payload += n
                left -= n
            r = self.post_data(lane, room - left)
            if r <= 0:
                return r
        return 1

    cdef void send_closes(self) noexcept nogil:
        # Sends the CLOSE of lanes whose owners left while there was no buffer or credit for it.
        cdef lane_state *lane
        cdef unsigned int id
        for id in range(self.lanes.size):
            if self.unclosed == 0 or self.data_buffer() == NULL:
                return
            lane = lane_find(&self.lanes, id)
            if lane != NULL and lane.closing and not lane.close_sent:
                lane.close_sent = True
                self.unclosed -= 1
                self.post_message(MESSAGE_CLOSE, lane, 0)
                self.finish_lane(lane)

    cdef bint must_say(self, lane_state *lane) noexcept nogil:
        # Whether the server must hear of the bytes used by the owner, before its room for the lane runs out.
        return lane.unsaid * 2 >= LANE_BYTES

    cdef void return_credits(self, Stream s, lane_state *lane) noexcept nogil:
        # Sends the number of the lane's used bytes when must_say, and the owed credits if they are half of all. As a
        # rule output of the stream carries both, and nothing is sent here. But without room on the lane, output may
        # wait for replies that need these credits.
        if (lane != NULL and self.must_say(lane) and not lane.closed
                and (s is None or s.iov_next == s.iov_count or lane.room == 0) and self.data_buffer() != NULL):
            self.post_data(lane, 0)
        if self.owed * 2 < CREDITS or self.tx_credits == 0 or self.free_count == 0 or self.failed:
            return
        if s is None or s.iov_next == s.iov_count or lane.room == 0 or self.data_buffer() == NULL:
            self.post_message(MESSAGE_CREDIT, NULL, 0)

    cdef int take_data(self, Stream s, lane_state *own, lane_state *lane, const char *data,
                       size_t length) noexcept nogil:
        # Gives a DATA message's payload to its lane. Returns the same as take_message.
        cdef int r
        if length == 0 or lane.closing:
            return 1
        if lane.unsaid + (lane.last - lane.first) + length > LANE_BYTES:
            return self.breaks(b"more for a lane than the client keeps")
        if lane != own or s is None or not inbox_is_empty(lane):
            r = inbox_put(lane, data, length)
            if r > 0 and lane != own:
                lane_wake(&self.followers, lane)
            return r
        r = s.deliver(data, length)
        if r > 0:
            lane.unsaid += length
        return r

    cdef int breaks(self, const char *rule) noexcept nogil:
        # Notes the rule broken by the server. Returns 0, the result of take_message.
        self.broken = rule
        return 0

    cdef int take_message(self, Stream s, lane_state *own, unsigned int index, size_t length) noexcept nogil:
        # 1; 0: the server breaks the protocol, or the queue pair has failed; a negative errno.
        cdef char *message = self.buffer + <size_t>index * MESSAGE_SIZE
        cdef lane_state *lane = NULL
        cdef message_header header
        cdef int r
        if not get_message_header(message, length, &header):
            return self.breaks(b"a message shorter than its header")
        if self.owed + self.used_count >= CREDITS:
            return self.breaks(b"a message without a credit")
        relaxed_store(&self.heard, self.heard + 1)
        self.tx_credits += header.credits
        if self.tx_credits > RDMA_CREDITS_HELD_MAX:
            return self.breaks(b"more credits than any server has")
        if header.kind == MESSAGE_DATA or header.kind == MESSAGE_CLOSE:
            lane = lane_find(&self.lanes, header.lane)
            if lane == NULL or lane.closed or not lane.opened:
                return self.breaks(b"a message for a lane that is not open")
        if header.kind == MESSAGE_READY:
            self.ready = True
        elif header.kind == MESSAGE_DATA:
            if header.used:
                lane.room += header.used
                if lane.room > self.lane_bytes:
                    return self.breaks(b"more used than was sent")
                if lane.want == WANTS_ROOM:
                    lane_wake(&self.followers, lane)
            r = self.take_data(s, own, lane, message + MESSAGE_HEADER, length - MESSAGE_HEADER)
            if r <= 0:
                return r
        elif header.kind == MESSAGE_CLOSE:
            if lane.closing:
                self.unanswered -= 1
            length = min(length - MESSAGE_HEADER, <size_t>LAST_WORDS - 1)
            memcpy(lane.last_words, message + MESSAGE_HEADER, length)
            store_release(&lane.closed, True)
            lane_wake(&self.followers, lane)
            self.finish_lane(lane)
        elif header.kind != MESSAGE_CREDIT:
            return self.breaks(b"a message of unknown type")
        return self.use_again(index)

    cdef int use_again(self, unsigned int index) noexcept nogil:
        # Posts the receive anew, together with others. 0: the queue pair has failed.
        self.used[self.used_count] = <uint16_t>index
        self.used_count += 1
        if self.used_count == RECEIVES_AT_A_TIME:
            if self.post_receives(self.used, RECEIVES_AT_A_TIME) != 0:
                return 0
            self.owed += RECEIVES_AT_A_TIME
            self.used_count = 0
        return 1

    cdef void take_sent(self, unsigned int index) noexcept nogil:
        # A signaled SEND has completed: its buffer is free.
        if self.send_lanes[index] != NULL:
            self.send_lanes[index].sends -= 1
            self.send_lanes[index] = NULL
        self.free_sends[self.free_count] = <uint16_t>index
        self.free_count += 1

    cdef int poll_locked(self, Stream s, lane_state *own) noexcept nogil:
        # Takes the present completions, as reap. Returns their number, or a negative errno.
        cdef ibv_wc wc[POLL_BATCH]
        cdef int i, r
        cdef int n = POLL_BATCH
        cdef int total = 0
        assert_held(&self.lock)
        while n == POLL_BATCH and not self.failed:
            n = ibv_poll_cq(self.cq, POLL_BATCH, wc)
            if n < 0:
                store_release(&self.failed, True)
                break
            total += n
            for i in range(n):
                if wc[i].status != IBV_WC_SUCCESS:
                    # The reason is the first error other than a flush: a flush only follows the queue pair's failure.
                    if not self.failed or self.status == IBV_WC_WR_FLUSH_ERR:
                        self.status = wc[i].status
                    store_release(&self.failed, True)
                elif wc[i].wr_id & RECEIVE:
                    if not self.failed:
                        r = self.take_message(s, own, <unsigned int>(wc[i].wr_id & (RECEIVE - 1)), wc[i].byte_len)
                        if r <= 0:
                            store_release(&self.failed, True)
                        if r < 0:
                            return r
                elif wc[i].wr_id & READ:
                    self.reads -= 1
                    if self.reads == 0:
                        lane_wake(&self.followers, self.reader)
                        self.reader = NULL
                else:
                    self.take_sent(<unsigned int>wc[i].wr_id)
        return total

    cdef void finish_lane(self, lane_state *lane) noexcept nogil:
        # Frees the lane, if both ends have sent CLOSE and the former owner no longer asks lane_is_closed (lane.kept).
        # Called when one of these conditions has become true. The caller does not touch the lane afterwards.
        cdef unsigned int i
        if not (lane.closed and lane.close_sent) or lane.kept:
            return
        for i in range(<unsigned int>SEND_BUFFERS):
            if self.send_lanes[i] == lane:
                self.send_lanes[i] = NULL
        lane_free(&self.lanes, lane)

    # --- for the owners of lanes ---

    cdef lane_state *join(self) except NULL:
        cdef lane_state *lane
        lock_state(&shared_state)
        try:
            lane = self.add_lane()
        finally:
            unlock_state(&shared_state)
        return lane

    cdef lane_state *add_lane(self) except NULL:
        cdef lane_state *lane
        cdef int error
        if load_acquire(&self.failed) or self.protection_domain == NULL:
            # The last owner may have left after the caller found the queue pair usable.
            raise OSError(ENOTCONN, "the queue pair has ended")
        if self.kick_fd < 0:
            self.kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            if self.kick_fd < 0 or (self.soft and soft_channel_watch(self.channel, self.kick_fd) < 0):
                raise os_error("lane", errno)
        pthread_mutex_lock(&self.lock)
        lane = lane_make(&self.lanes, self.most_lanes)
        error = errno
        pthread_mutex_unlock(&self.lock)
        if lane == NULL and error == EAGAIN:
            raise OSError(EAGAIN, "the server allows no more lanes")
        if lane == NULL:
            raise MemoryError
        lane.room = self.lane_bytes
        self.users += 1
        return lane

    cdef int push(self, Stream s, lane_state *lane, bint *slept) noexcept nogil:
        cdef uint32_t wakeups
        cdef int r
        pthread_mutex_lock(&self.lock)
        r = self.push_locked(s, lane)
        if self.soft and self.qp != NULL:
            wakeups = soft_qp_wakeups(self.qp)
            slept[0] |= wakeups != self.wakeups
            self.wakeups = wakeups
        pthread_mutex_unlock(&self.lock)
        return r

    cdef bint all_sent(self, lane_state *lane) noexcept nogil:
        cdef bint sent
        pthread_mutex_lock(&self.lock)
        sent = lane.sends == 0
        pthread_mutex_unlock(&self.lock)
        return sent

    cdef int reap(self, Stream s, lane_state *lane, int polls) noexcept nogil:
        cdef int r
        pthread_mutex_lock(&self.lock)
        r = self.reap_locked(s, lane, polls)
        pthread_mutex_unlock(&self.lock)
        return r

    cdef int reap_locked(self, Stream s, lane_state *lane, int polls) noexcept nogil:
        cdef int n = 0, r = 1
        assert_held(&self.lock)
        if lane != NULL and s is not None and not inbox_is_empty(lane):
            r = inbox_take(lane, s)
        # Nobody polls while a thread sleeps: the poll would take away the completions that should wake the thread.
        while r > 0 and n == 0 and polls > 0 and not self.sleeping and not self.failed:
            n = self.poll_locked(s, lane)
            polls -= 1
        if n < 0:
            r = -ENOMEM
        if self.failed and r > 0:
            lane_wake_all(&self.followers)
            r = 0
        elif r > 0:
            self.return_credits(s, lane)
            if self.unclosed:
                self.send_closes()
            if self.followers.first != NULL:
                self.wake_wanting()
            if lane != NULL and lane.closed and inbox_is_empty(lane):
                r = 0
        return r

    # --- waiting ---

    cdef void wake_wanting(self) noexcept nogil:
        # Wakes the followers that need not wait any more.
        cdef lane_state *lane = self.followers.first
        cdef lane_state *following
        while lane != NULL:
            following = lane.next
            if self.can_have(lane, lane.want):
                lane_wake(&self.followers, lane)
            lane = following

    cdef lane_want want_of(self, Stream s, lane_state *lane, bint drains) noexcept nogil:
        # What the owner of a lane waits for besides input.
        assert_held(&self.lock)
        if lane == NULL:
            return WANTS_NOTHING
        if lane.closing:
            return WANTS_NOTHING if lane.close_sent else WANTS_BUFFER
        if lane == self.reader:
            return WANTS_READS
        if self.must_say(lane):
            return WANTS_BUFFER
        if s is not None and s.iov_next < s.iov_count:
            return WANTS_BUFFER if lane.room else WANTS_ROOM
        return WANTS_SENT if drains else WANTS_NOTHING

    cdef bint can_have(self, lane_state *lane, lane_want want) noexcept nogil:
        # Whether the owner need not wait. A thread woken in vain wakes the next thread by its next `reap`.
        assert_held(&self.lock)
        if want == WANTS_BUFFER:
            return self.data_buffer() != NULL
        if want == WANTS_ROOM:
            return lane.room != 0
        return lane != self.reader if want == WANTS_READS else want == WANTS_SENT and lane.sends == 0

    cdef int wait(self, Stream s, lane_state *lane, bint drains, int64_t deadline) noexcept nogil:
        cdef lane_want want
        cdef int r = 1
        pthread_mutex_lock(&self.lock)
        want = self.want_of(s, lane, drains)
        if self.failed:
            r = 0
        elif self.by_cm and load_acquire(&self.lifeline_ended):
            # The last answer may have come just before the end.
            r = 1 if self.poll_locked(s, lane) > 0 else 0
            if r == 0:
                store_release(&self.failed, True)
        elif lane != NULL and (lane.closed or not inbox_is_empty(lane)) or self.can_have(lane, want):
            # Another thread may have polled since this thread's last look.
            r = 1
        elif self.sleeping:
            return self.follow(lane, want, deadline)
        elif not self.soft and ibv_req_notify_cq(self.cq, 0) != 0:
            r = 1
        elif (not self.soft or want != WANTS_NOTHING) and self.poll_locked(s, lane) != 0:
            # The poll has found completions that will make no event: completions from before the request for an event,
            # or, on software devices, of SENDs. Later completions make an event.
            r = 1
        else:
            self.sleeping = True
            pthread_mutex_unlock(&self.lock)
            r = self.sleep(deadline)
            pthread_mutex_lock(&self.lock)
            self.sleeping = False
            if self.kicked:
                self.kicked = False
                eventfd_clear(self.kick_fd)
            if self.awaiters:
                relaxed_store(&self.slept, self.slept + 1)
                futex_wake(&self.slept, INT_MAX)
            if r == 0:
                store_release(&self.failed, True)
        pthread_mutex_unlock(&self.lock)
        return r

    cdef int follow(self, lane_state *lane, lane_want want, int64_t deadline) noexcept nogil:
        # Another thread sleeps for the queue pair: sleeps until that thread wakes this lane's owner. Releases the lock.
        cdef uint32_t seen = lane.wake
        cdef int error
        assert_held(&self.lock)
        lane_follow(&self.followers, lane, want)
        if (want == WANTS_BUFFER or want == WANTS_SENT) and self.soft and not self.kicked:
            # On a software device a SEND completes at its post, without an event: the sleeping thread must poll.
            self.kicked = True
            eventfd_signal(self.kick_fd)
        pthread_mutex_unlock(&self.lock)
        error = futex_wait(&lane.wake, seen, deadline)
        pthread_mutex_lock(&self.lock)
        if lane.follows:
            lane_unfollow(&self.followers, lane)
        pthread_mutex_unlock(&self.lock)
        return -error if error == EINTR or error == ETIMEDOUT else 1

    cdef void hand_over(self) noexcept nogil:
        if relaxed_load(&self.followers.first) == 0:
            return
        pthread_mutex_lock(&self.lock)
        if self.followers.first != NULL and not self.sleeping:
            lane_wake(&self.followers, self.followers.first)
        pthread_mutex_unlock(&self.lock)

    cdef int sleep(self, int64_t deadline) noexcept nogil:
        # Sleeps for completions of the queue pair. For one thread at a time, without the lock. 1; 0: the queue pair has
        # failed; a negative errno.
        cdef pollfd waiting[5]
        cdef int timeout = -1
        cdef int n
        if deadline:
            timeout = poll_timeout(deadline, now_ns())
            if timeout == 0:
                return -ETIMEDOUT
        if self.soft:
            return self.sleep_soft(timeout)
        waiting[0].fd = self.channel.fd
        waiting[1].fd = self.fd
        waiting[2].fd = self.device.alarm
        waiting[3].fd = self.port.context.async_fd
        waiting[4].fd = self.kick_fd
        for n in range(5):
            waiting[n].events = POLLIN
            waiting[n].revents = 0
        n = poll(waiting, 5, timeout)
        if n < 0:
            return -errno
        if n == 0:
            return -ETIMEDOUT
        if waiting[0].revents:
            self.take_event()
        if waiting[1].revents and not self.look_at_lifeline():
            return 0
        if (waiting[2].revents or waiting[3].revents) and device_lost(self.device):
            return 0
        return 1

    cdef int sleep_soft(self, int timeout) noexcept nogil:
        # Sleeps as sleep does, on a software device, which is never lost.
        cdef pollfd lifeline
        cdef int found
        if not self.watching:
            if soft_channel_watch(self.channel, self.fd) < 0:
                return -errno
            self.watching = True
        found = soft_cq_wait(self.cq, timeout)
        if found < 0:
            return -errno
        if found == 0:
            return -ETIMEDOUT
        if found & CHANNEL_PROGRAM:
            # The program's descriptor is kick_fd or the lifeline.
            lifeline.fd = self.fd
            lifeline.events = POLLIN
            if poll(&lifeline, 1, 0) > 0 and not self.look_at_lifeline():
                return 0
        return 1

    # --- the end ---

    cdef str failure_text(self, lane_state *lane, int limit):
        # The server's last line about the lane or the connection, else the reason known to this side.
        if lane != NULL and load_acquire(&lane.closed) and not load_acquire(&self.failed):
            return lane.last_words.decode("ascii", "replace").strip()
        if self.broken != NULL:
            return f"the server has broken the protocol: {self.broken.decode()}"
        if self.given_up:
            return "the client has ended the connection: the server did not give back the memory of another request"
        text = self.hear_last_words(limit)
        if not text and self.device != NULL and device_lost(self.device):
            text = self.device.why.decode()
        if not text and self.status != IBV_WC_SUCCESS and self.status != IBV_WC_WR_FLUSH_ERR:
            text = f"the queue pair failed: {self.provider.wc_status_str(self.status).decode()}"
        if not text and self.soft:
            lock_state(&shared_state)
            self.note_fault()
            text = self.fault
            unlock_state(&shared_state)
        if not text and self.by_cm and self.lifeline_ended:
            text = "the server has ended the connection"
        return text

    def ended(self):
        """Whether no lane should join: the connection is another process's, has ended, or is silent."""
        cdef bint found
        lock_state(&shared_state)
        found = self.has_ended()
        unlock_state(&shared_state)
        return found

    cdef bint has_ended(self) noexcept:
        return (self.foreign() or load_acquire(&self.failed) or self.fd < 0 or self.users == 0
                or self.peer_has_ended() or self.is_silent())

    cdef bint is_silent(self) noexcept nogil:
        # Whether the server has not closed a lane in time, and has sent nothing since. Then no lane joins: a new
        # connection shows whether the server is alive. Owners of present lanes may go on waiting for their replies.
        cdef bint silent
        if self.unanswered == 0:
            return False
        self.poll_beside_sleeper()
        pthread_mutex_lock(&self.lock)
        silent = (self.unanswered != 0 and self.heard == self.heard_then
                  and now_ns() - self.waits_since > <int64_t>CLOSE_WAIT * 1000000)
        pthread_mutex_unlock(&self.lock)
        return silent

    def usable(self):
        """Whether another lane can join now."""
        return not self.ended() and self.users < self.most_lanes

    cdef bint leave(self, lane_state *lane, bint must_close, int patience) except -1:
        cdef unsigned int suspended
        cdef bint open = False
        cdef bint alone = self.users == 1 and not (must_close and patience and self.near)
        if alone or load_acquire(&self.failed) or self.qp == NULL:
            self.disconnect()
            return False
        pthread_mutex_lock(&self.lock)
        lane.closing = True
        inbox_drop(lane)
        if lane.opened:
            lane.kept = open = True
            if not lane.closed:
                if self.unanswered == 0 or self.heard != self.heard_then:
                    self.heard_then = self.heard
                    self.waits_since = now_ns()
                self.unanswered += 1
            self.unclosed += 1
            self.send_closes()
        else:
            lane.closed = lane.close_sent = True
            self.finish_lane(lane)
        pthread_mutex_unlock(&self.lock)
        if open and must_close:
            suspended = suspend_state(&shared_state)
            with nogil:
                self.await_close(lane, patience)
            resume_state(&shared_state, suspended)
            open = False
            if not self.lane_is_closed(lane):
                # The end of the queue pair takes the memory away from the server.
                self.fail(True)
        if load_acquire(&self.failed):
            self.disconnect()
        return open and not load_acquire(&self.failed)

    cdef void fail(self, bint given_up) noexcept:
        pthread_mutex_lock(&self.lock)
        self.given_up |= given_up and not self.failed
        store_release(&self.failed, True)
        pthread_mutex_unlock(&self.lock)

    cdef bint lane_is_closed(self, lane_state *lane) noexcept:
        cdef bint closed
        pthread_mutex_lock(&self.lock)
        closed = lane.closed
        if closed:
            lane.kept = False
            self.finish_lane(lane)
        pthread_mutex_unlock(&self.lock)
        return closed

    cdef void await_close(self, lane_state *lane, int patience) noexcept nogil:
        # Waits until the server has closed the lane or was silent for CLOSE_WAIT, up to CLOSE_WAIT_MOST and patience
        # (both ms).
        cdef int64_t most = now_ns() + 1000000 * <int64_t>min(<unsigned int>CLOSE_WAIT_MOST, <unsigned int>patience)
        cdef int64_t deadline = 0
        cdef unsigned int heard = 0
        cdef int r = 1
        while (r > 0 or r == -EINTR) and not load_acquire(&lane.closed):
            if deadline == 0 or relaxed_load(&self.heard) != heard:
                heard = relaxed_load(&self.heard)
                deadline = min(now_ns() + <int64_t>CLOSE_WAIT * 1000000, most)
            r = self.reap(None, NULL, 1)
            if r > 0:
                r = self.wait(None, lane, True, deadline)
            if r == -ETIMEDOUT:
                self.poll_beside_sleeper()
                if relaxed_load(&self.heard) != heard and now_ns() < most:
                    r = 1
        self.hand_over()

    cdef void poll_beside_sleeper(self) noexcept nogil:
        # Polls although another thread sleeps: if this process stood still, the sleeping thread may not have run since.
        # Wakes the sleeping thread, whose completions the poll may have taken.
        pthread_mutex_lock(&self.lock)
        if not self.failed:
            self.poll_locked(None, NULL)
            if self.sleeping and not self.kicked:
                self.kicked = True
                eventfd_signal(self.kick_fd)
        pthread_mutex_unlock(&self.lock)

    cdef void await_sleeper(self) noexcept nogil:
        # Waits until no thread sleeps for the queue pair. The queue pair has failed, or has a single lane.
        cdef uint32_t seen
        pthread_mutex_lock(&self.lock)
        lane_wake_all(&self.followers)
        while self.sleeping:
            seen = self.slept
            if not self.kicked:
                self.kicked = True
                eventfd_signal(self.kick_fd)
            self.awaiters += 1
            pthread_mutex_unlock(&self.lock)
            futex_wait(&self.slept, seen, 0)
            pthread_mutex_lock(&self.lock)
            self.awaiters -= 1
        pthread_mutex_unlock(&self.lock)

    cdef void disconnect(self) noexcept:
        cdef unsigned int suspended
        if self.qp != NULL and not self.foreign():
            self.fail(False)
            self.note_fault()
            suspended = suspend_state(&shared_state)
            with nogil:
                self.await_sleeper()
            resume_state(&shared_state, suspended)
            pthread_mutex_lock(&self.lock)
            if self.qp != NULL:
                self.provider.destroy_qp(self.qp)
                self.qp = NULL
            pthread_mutex_unlock(&self.lock)
        if self.fd >= 0:
            # shutdown: another process may hold a copy of the lifeline, and the server shall see the end now. The
            # descriptor stays open until the last user leaves: owners of lanes still read the server's last words.
            if self.by_cm and not self.foreign():
                cm_destroy(self.fd, self.cm_id)
            elif not self.foreign():
                shutdown(self.fd, SHUT_RDWR)
            if self.users == 0 or self.foreign():
                close_fd(self.fd)
                self.fd = -1
                self.close_secure()

    cdef void close(self) noexcept:
        self.disconnect()
        self.direct = self.remote = None
        if self.protection_domain == NULL or self.foreign():
            return
        if self.cq != NULL:
            self.provider.destroy_cq(self.cq)
            self.cq = NULL
        if self.channel != NULL:
            self.provider.destroy_comp_channel(self.channel)
            self.channel = NULL
        if self.kick_fd >= 0:
            close_fd(self.kick_fd)
            self.kick_fd = -1
        if self.mr != NULL:
            self.provider.dereg_mr(self.mr)
            self.mr = NULL
        lane_table_free(&self.lanes)
        free(self.buffer)
        self.buffer = NULL
        leave_domain(self.protection_domain)
        self.protection_domain = NULL
        self.device = NULL
        pthread_mutex_destroy(&self.lock)
        live_sub(LIVE_CLIENT_CONN)
