"""See _fan_out.pxd."""

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, ETIMEDOUT
from libc.stdint cimport int64_t, uint64_t

from rmemcached.client.api._connection cimport AHEAD_WITH_VALUES
from rmemcached.client.api._fetches cimport new_fetches
from rmemcached.client.api._request cimport (
    REQUEST_GET,
    REQUEST_GETS,
    Request,
    delete_request,
    get_request,
    load_result,
    put_request,
    request_kind,
    store_request,
    take_answer,
)
from rmemcached.client.api._storage cimport prepared, store_prepared
from rmemcached.client.transport._direct cimport DirectReader, cas_bytes
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport encode_key, expire_text
from rmemcached.client.wire._modes cimport STORE_SET
from rmemcached.sys.clock cimport now_ns


@cython.final
cdef class Batch:

    cdef int look(self) except -1:
        cdef DirectReader reader = None if self.client._reader is None else self.client.reader()
        cdef Request r
        cdef uint64_t cas = 0
        cdef Py_ssize_t i
        if reader is None:
            return 0
        self.whole = True
        for i in range(len(self.requests)):
            r = self.requests[i]
            value = reader.read(PyBytes_AS_STRING(r.encoded), PyBytes_GET_SIZE(r.encoded), &r.found_flags, &cas)
            if value is None:
                self.whole = False
                continue
            r.found = True
            self.results[i] = (value, cas_bytes(cas)) if r.kind == REQUEST_GETS else value
            self.client.tell_late(reader)
        return 0

    cdef int ask(self, bytes name) except -1:
        cdef Connection c
        cdef Request r
        cdef list wanted = [r for r in self.requests if not r.found]
        cdef Py_ssize_t count = 0
        cdef int pushed
        try:
            c = self.connection = self.client.enter(False, name)
            r = wanted[0] if wanted else None
            if r is not None and (r.kind == REQUEST_GET or r.kind == REQUEST_GETS):
                self.fetches = new_fetches(
                    c, [r.encoded for r in wanted], r.with_flags, r.kind == REQUEST_GETS, r.expire)
                self.fetches.ask()
                wanted = []
            for r in wanted:
                put_request(c, r)
                count += 1
                c.ahead(count, AHEAD_WITH_VALUES)
            c.stream.commit()
            pushed = c.stream.push()
            if pushed <= 0:
                c.interrupted(pushed)
        except Exception as error:
            self.give_up(error)
        return 0

    cdef bint is_late(self, int64_t asked) except -1:
        cdef Stream s = self.connection.stream
        if asked == 0 or s.timeout_ms < 0 or s.iov_next < s.iov_count:
            return False
        if now_ns() - asked < <int64_t>s.timeout_ms * 1000000:
            return False
        return not s.has_line() and s.take_input() == -EAGAIN

    cdef int take(self, int64_t asked) except -1:
        cdef Connection c = self.connection
        cdef Request r
        cdef bint first = True
        cdef Py_ssize_t i
        try:
            if self.is_late(asked):
                raise c.broken(-ETIMEDOUT)
            for i in range(len(self.requests)):
                r = self.requests[i]
                if r.found:
                    continue
                if self.fetches is not None:
                    self.fetches.answer()
                else:
                    c.read_answer(first)
                first = False
                self.results[i] = take_answer(c, r, self.errors)
            c.values_sent()
            c.release_sink()
            if c.has_more():
                raise self.errors[0] if self.errors else c.unasked()
        except Exception as error:
            return self.give_up(error)
        self.connection = None
        self.client.leave(c, None)
        if self.errors:
            self.error = self.errors[0]
        return 0

    cdef int give_up(self, object error) except -1:
        cdef Connection c = self.connection
        self.error = error
        self.connection = None
        if c is not None:
            self.client.drop(c)
        return 0


cdef list make_batches(list clients):
    cdef list batches = []
    cdef Batch batch
    for client in clients:
        batch = Batch.__new__(Batch)
        batch.client = client
        batch.requests = []
        batch.results = []
        batch.errors = []
        batches.append(batch)
    return batches


cdef int run(list batches, bytes name, bint sends_values, bint looks) except -1:
    # Carries out a call at all servers. looks: by direct reads first.
    cdef Batch batch
    cdef int64_t asked
    try:
        for batch in batches:
            batch.results = [None] * len(batch.requests)
            if looks and batch.error is None:
                batch.look()
        # Connecting takes time: batches with a connection are sent first.
        for batch in batches:
            if batch.error is None and not batch.whole and batch.client._idle is not None:
                batch.ask(name)
        for batch in batches:
            if batch.error is None and not batch.whole and batch.connection is None:
                batch.ask(name)
        # No limit for sent values: the servers may have waited for this side, which served other servers.
        asked = 0 if sends_values else now_ns()
        for batch in batches:
            if batch.error is None and not batch.whole:
                batch.take(asked)
    except BaseException as error:
        # An exception of a signal handler: nobody will take the rest of the answers.
        for batch in batches:
            if batch.connection is not None:
                batch.give_up(error)
        raise
    return 0


cdef dict found(Batch batch):
    # Called after all answers, since a serde may use the client.
    cdef dict values = {}
    cdef Request r
    for r, value in zip(batch.requests, batch.results):
        if r.found:
            values[r.key] = value if batch.client.serde is None else load_result(batch.client, r, value)
    return values


def check_key(key, bytes prefix, bint unicode_keys):
    """Raises MemcacheIllegalInputError, or TypeError, for a key that memcached does not take behind a prefix."""
    encode_key(key, prefix, unicode_keys)


def fetch_all(list clients, list keys, bint with_cas):
    """Asks each client for its list of keys.

    Returns a list with {key: value}, or {key: (value, cas)}, for each client; or with the exception of its failure.
    Raises MemcacheIllegalInputError, and TypeError for a key, before anything is sent.
    """
    cdef list batches = make_batches(clients)
    cdef Batch batch
    cdef list results = []
    cdef request_kind kind = REQUEST_GETS if with_cas else REQUEST_GET
    cdef bytes called = b"gets_many" if with_cas else b"get_many"
    for batch, names in zip(batches, keys):
        for name in names:
            batch.requests.append(get_request(batch.client, kind, called, name, None, None))
    run(batches, called, False, True)
    for batch in batches:
        try:
            results.append(found(batch) if batch.error is None else batch.error)
        except Exception as error:
            results.append(error)
    return results


def store_all_quietly(list clients, list values, expire, flags, bint ignore_exc):
    """As `store_all`, but with noreply: waits for no answers."""
    cdef bytes seconds = None
    cdef list ready = []
    cdef list results = []
    cdef bint wrong = False
    for client, pairs in zip(clients, values):
        try:
            seconds = expire_text(expire)
            ready.append(prepared(client, pairs, flags))
        except Exception as error:
            ready.append(error)
            wrong = True
    for client, batch in zip(clients, ready):
        if isinstance(batch, Exception):
            results.append(batch)
        elif wrong and not ignore_exc:
            results.append([])
        else:
            try:
                results.append(store_prepared(client, batch, seconds, True))
            except Exception as error:
                results.append(error)
    return results


def store_all(list clients, list values, expire, flags, bint ignore_exc):
    """Has each client store its dict of values.

    Returns a list with the keys not stored, for each client; or with the exception of its failure, also for a bad
    value. With a bad value nothing is sent to any server, unless exceptions are ignored.
    """
    cdef list batches = make_batches(clients)
    cdef Batch batch
    cdef Request r
    for batch, pairs in zip(batches, values):
        try:
            for key, value in pairs.items():
                batch.requests.append(
                    store_request(batch.client, STORE_SET, b"set_many", key, value, expire, flags, None))
        except Exception as error:
            batch.error = error
    if ignore_exc or all([(<Batch>one).error is None for one in batches]):
        run(batches, b"set_many", True, False)
    return [
        [r.key for r, stored in zip(batch.requests, batch.results) if not stored]
        if batch.error is None else batch.error
        for batch in batches
    ]


def delete_all(list clients, list keys):
    """Has each client delete its list of keys. Returns a list with True, or the exception of each."""
    cdef list batches = make_batches(clients)
    cdef Batch batch
    for batch, names in zip(batches, keys):
        for name in names:
            batch.requests.append(delete_request(batch.client, name))
    run(batches, b"delete_many", False, False)
    return [True if batch.error is None else batch.error for batch in batches]
