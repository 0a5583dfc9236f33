"""See _pipeline.pxd."""

cimport cython

from rmemcached.client.api._connection cimport AHEAD_WITH_VALUES, Connection
from rmemcached.client.api._meta cimport (
    meta_arithmetic_request,
    meta_delete_request,
    meta_get_request,
    meta_set_request,
)
from rmemcached.client.api._request cimport (
    REQUEST_GET,
    REQUEST_GETS,
    arithmetic_request,
    delete_request,
    get_request,
    load_result,
    put_request,
    store_request,
    take_answer,
    touch_request,
)
from rmemcached.client.wire._modes cimport STORE_ADD, STORE_APPEND, STORE_CAS, STORE_PREPEND, STORE_REPLACE, STORE_SET

from rmemcached.client.exceptions import MemcacheError


@cython.final
cdef class Pipeline:
    """Commands of a Client, sent together: made by `Client.pipeline()`.

    >>> with client.pipeline() as p:
    ...     p.set("a", b"1")
    ...     p.get("a")
    ...     p.delete("b")
    >>> p.results
    [True, b'1', False]

    The methods have the names, arguments and checks of the Client's methods, without noreply: each command has a
    result. The methods queue commands, return nothing, and need no connection. `execute` sends the queued commands. So
    does the end of the `with` block, unless an exception has ended it. Commands are carried out in their order, but not
    as a unit: commands of other clients may come between them. Values are not copied: they must not be changed before
    `execute` has returned.

    Not thread-safe: each thread takes a Pipeline of its own. After `execute` it can be used again.
    """

    def __init__(self, Session client not None):
        self.client = client
        self.requests = []
        self.results = []

    def __len__(self):
        """How many commands are queued."""
        return len(self.requests)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.requests = []
        else:
            self.execute()

    def execute(self):
        """Sends the queued commands. Returns a list with the result of each command, in order, also kept in `results`.

        The result of a failed command is its exception, which is not raised. After the end of the connection, each of
        the remaining commands has the same exception. Raises OSError, TimeoutError and MemcacheServerError when there
        is no connection and none can be made; then nothing was sent.
        """
        cdef list requests = self.requests
        self.requests = []
        self.results = self.run(requests) if requests else []
        return self.results

    cdef list run(self, list requests):
        cdef Connection c = self.client.enter(False, b"pipeline")
        cdef list results = [None] * len(requests)
        cdef list errors = []
        cdef Request r
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t i = 0
        try:
            for r in requests:
                put_request(c, r)
                count += 1
                c.ahead(count, AHEAD_WITH_VALUES)
            while i < len(requests):
                r = requests[i]
                c.name = r.name
                c.read_answer(i == 0)
                results[i] = take_answer(c, r, errors)
                if errors:
                    results[i] = self.failed(r, errors.pop())
                i += 1
            c.values_sent()
            if c.has_more():
                # There are more answers than requests, and any answer may be the surplus. Only the results up to the
                # first refusal are certain; without a refusal, none is.
                i = self.behind_refusal(results)
                raise c.unasked()
        except Exception as error:
            self.client.drop(c)
            while i < len(requests):
                r = requests[i]
                results[i] = self.failed(r, error)
                i += 1
        except BaseException:
            self.client.drop(c)
            raise
        else:
            self.client.leave(c, None)
        if self.client.serde is not None:
            self.load(requests, results)
        return results

    cdef Py_ssize_t behind_refusal(self, list results) except -1:
        # The number of results up to the first refusal; 0: there is none.
        cdef Py_ssize_t i
        for i in range(len(results)):
            if isinstance(results[i], MemcacheError):
                return i + 1
        return 0

    cdef object failed(self, Request r, object error):
        r.found = False
        return r.default if r.ignores and self.client.ignore_exc else error

    cdef int load(self, list requests, list results) except -1:
        # Applies the serde to the results. Called after `leave`, since a serde may use the client.
        cdef Request r
        cdef Py_ssize_t i
        for i in range(len(requests)):
            r = requests[i]
            if not r.found:
                continue
            try:
                results[i] = load_result(self.client, r, results[i])
            except Exception as error:
                results[i] = self.failed(r, error)
        return 0

    # --- commands for the queue ---

    def get(self, key, default=None):
        """Result: the value of key, or default when there is no item."""
        self.requests.append(get_request(self.client, REQUEST_GET, b"get", key, default, None))

    def gets(self, key, default=None, cas_default=None):
        """Result: (value, cas) of key, or (default, cas_default) when there is no item."""
        self.requests.append(get_request(self.client, REQUEST_GETS, b"gets", key, (default, cas_default), None))

    def gat(self, key, expire=0, default=None):
        """Result: as of `get`; the item expires in `expire` seconds (0: never)."""
        self.requests.append(get_request(self.client, REQUEST_GET, b"gat", key, default, expire))

    def gats(self, key, expire=0, default=None, cas_default=None):
        """Result: as of `gets`; the item expires in `expire` seconds (0: never)."""
        self.requests.append(get_request(self.client, REQUEST_GETS, b"gats", key, (default, cas_default), expire))

    def set(self, key, value, expire=0, flags=None):
        """Stores value under key. Result: True."""
        self.requests.append(store_request(self.client, STORE_SET, b"set", key, value, expire, flags, None))

    def add(self, key, value, expire=0, flags=None):
        """Stores value if key has no item. Result: True, or False when there is an item."""
        self.requests.append(store_request(self.client, STORE_ADD, b"add", key, value, expire, flags, None))

    def replace(self, key, value, expire=0, flags=None):
        """Stores value if key has an item. Result: True, or False when there is no item."""
        self.requests.append(store_request(self.client, STORE_REPLACE, b"replace", key, value, expire, flags, None))

    def append(self, key, value, expire=0, flags=None):
        """Appends value to the stored value. Result: True, or False when there is no item."""
        self.requests.append(store_request(self.client, STORE_APPEND, b"append", key, value, expire, flags, None))

    def prepend(self, key, value, expire=0, flags=None):
        """Puts value before the stored value. Result: True, or False when there is no item."""
        self.requests.append(store_request(self.client, STORE_PREPEND, b"prepend", key, value, expire, flags, None))

    def cas(self, key, value, cas, expire=0, flags=None):
        """Stores value if the item's cas is still the given cas. Result: True; False: the item has changed; None: there
        is no item."""
        self.requests.append(store_request(self.client, STORE_CAS, b"cas", key, value, expire, flags, cas))

    def delete(self, key):
        """Removes the item of key. Result: True, or False when there was none."""
        self.requests.append(delete_request(self.client, key))

    def incr(self, key, value):
        """Adds value (0 to 2**64 - 1) to the stored number. Result: the new number; None: there is no item."""
        self.requests.append(arithmetic_request(self.client, b"incr", key, value))

    def decr(self, key, value):
        """Subtracts value, down to 0. Result: the new number, or None when there is no item."""
        self.requests.append(arithmetic_request(self.client, b"decr", key, value))

    def touch(self, key, expire=0):
        """Lets the item of key expire in `expire` seconds (0: never). Result: True, or False when there is none."""
        self.requests.append(touch_request(self.client, key, expire))

    def meta_get(
        self, key, *, value=True, flags=False, cas=False, ttl=False, size=False, hit_before=False, last_access=False,
        bump=True, touch=None, vivify=None, recache=None, new_cas=None, opaque=None,
    ):
        """Result: as of `Client.meta_get`."""
        self.requests.append(meta_get_request(self.client, key, {
            "value": value, "flags": flags, "cas": cas, "ttl": ttl, "size": size, "hit_before": hit_before,
            "last_access": last_access, "bump": bump, "touch": touch, "vivify": vivify, "recache": recache,
            "new_cas": new_cas, "opaque": opaque}))

    def meta_set(
        self, key, value, *, expire=0, flags=None, mode="set", cas=None, new_cas=None, invalidate=False, vivify=None,
        return_cas=False, return_size=False, opaque=None,
    ):
        """Result: as of `Client.meta_set`."""
        self.requests.append(meta_set_request(self.client, key, value, {
            "expire": expire, "flags": flags, "mode": mode, "cas": cas, "new_cas": new_cas, "invalidate": invalidate,
            "vivify": vivify, "return_cas": return_cas, "return_size": return_size, "opaque": opaque}))

    def meta_delete(self, key, *, cas=None, new_cas=None, invalidate=False, clear=False, expire=None, opaque=None):
        """Result: as of `Client.meta_delete`."""
        self.requests.append(meta_delete_request(self.client, key, {
            "cas": cas, "new_cas": new_cas, "invalidate": invalidate, "clear": clear, "expire": expire,
            "opaque": opaque}))

    def meta_arithmetic(
        self, key, delta=1, *, mode="incr", value=True, initial=None, vivify=None, touch=None, cas=None, new_cas=None,
        return_cas=False, ttl=False, opaque=None,
    ):
        """Result: as of `Client.meta_arithmetic`."""
        self.requests.append(meta_arithmetic_request(self.client, key, delta, {
            "mode": mode, "value": value, "initial": initial, "vivify": vivify, "touch": touch, "cas": cas,
            "new_cas": new_cas, "return_cas": return_cas, "ttl": ttl, "opaque": opaque}))
