"""See _storage.pxd."""

from rmemcached.client.wire._commands cimport (
    answer,
    cas_text,
    delta_text,
    encode_value,
    expire_text,
    integer_text,
    number_of,
    number_text,
    put_arithmetic,
    put_delete,
    put_store,
    put_touch,
)
from rmemcached.client.api._connection cimport AHEAD_WITH_VALUES, Connection
from rmemcached.client.wire._modes cimport (
    STORE_ADD,
    STORE_APPEND,
    STORE_CAS,
    STORE_PREPEND,
    STORE_REPLACE,
    STORE_SET,
    store_mode,
)
from rmemcached.client.wire._reply cimport REPLY_EN, REPLY_HD, REPLY_NF, REPLY_NUMBER, REPLY_VA
from rmemcached.client.transport._stream cimport Stream

from rmemcached.client.exceptions import MemcacheUnknownError


cdef class Storage(Retrieval):

    # --- values ---

    cdef object _serialize(self, object key, object value, object flags, list numbers):
        # The bytes to send for a value. The text of its flags goes to numbers.
        cdef object number = 0
        if self.serde is None and flags is None:
            numbers.append(None)
            return value if type(value) is bytes else encode_value(value, self.encoding)
        if self.serde is not None:
            try:
                value, number = self.serde.serialize(key, value)
            except OSError as error:
                error.of_serde = True
                raise
        numbers.append(number_text(number if flags is None else flags, "flags"))
        return encode_value(value, self.encoding)

    cdef bint are_plain(self, list names, list values):
        # Whether all keys and values are sent unchanged: then none needs a check before the first is sent.
        cdef Py_ssize_t i
        if self.serde is not None:
            return False
        for i in range(len(names)):
            if type(values[i]) is not bytes or self.sendable_key(names[i]) is not names[i]:
                return False
        return True

    cdef tuple prepared(self, dict values, object flags):
        cdef list names = []
        cdef list data = []
        cdef list numbers = []
        cdef list encoded = names
        for key, value in values.items():
            names.append(key)
            data.append(value)
        if flags is not None or not self.are_plain(names, data):
            encoded = [self.sendable_key(key) for key in names]
            data = [self._serialize(names[i], data[i], flags, numbers) for i in range(len(names))]
        return names, encoded, data, numbers

    cdef list store_prepared(self, tuple values, bytes seconds, bint quiet):
        cdef list names = values[0]
        cdef list encoded = values[1]
        cdef list data = values[2]
        cdef list numbers = values[3]
        cdef list failed = []
        cdef list errors = []
        cdef bint exposed = False
        cdef Py_ssize_t i
        cdef Connection c = self.enter(quiet, b"set_many")
        try:
            for i in range(len(names)):
                exposed |= put_store(
                    c.stream, STORE_SET, encoded[i], data[i], numbers[i] if numbers else None, seconds, None, quiet)
                c.ahead(i + 1, AHEAD_WITH_VALUES)
            if exposed and quiet:
                c.synchronise()
            elif quiet:
                c.unanswered(len(names))
            else:
                for i in range(len(names)):
                    c.read_answer(i == 0)
                    if not c.stored(errors):
                        failed.append(names[i])
            c.values_sent()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return failed

    cdef object _store(self, store_mode mode, bytes name, object key, object value, object expire, object noreply,
                       object flags, bytes cas):
        cdef object encoded = self.sendable_key(key)
        cdef bytes seconds = expire_text(expire)
        cdef list numbers = []
        cdef list errors = []
        cdef bint quiet = self.is_quiet(noreply)
        cdef bint exposed
        cdef object data = self._serialize(key, value, flags, numbers)
        cdef object result = True
        cdef Connection c = self.enter(quiet, name)
        try:
            exposed = put_store(c.stream, mode, encoded, data, numbers[0], seconds, cas, quiet)
            if not quiet:
                c.exchange()
                result = c.stored(errors)
            elif exposed:
                # The value must stay in place until the server has read it.
                c.synchronise()
            else:
                c.unanswered(1)
            c.values_sent()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return result

    def set(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value under key, for `expire` seconds (0: for ever), with 32 bits of flags. Returns True."""
        return self._store(STORE_SET, b"set", key, value, expire, noreply, flags, None)

    def add(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has no item. Returns True, or False when there is an item."""
        return self._store(STORE_ADD, b"add", key, value, expire, noreply, flags, None)

    def replace(self, key, value, expire=0, noreply=None, flags=None):
        """Stores value if key has an item. Returns True, or False when there is none."""
        return self._store(STORE_REPLACE, b"replace", key, value, expire, noreply, flags, None)

    def append(self, key, value, expire=0, noreply=None, flags=None):
        """Appends value to the item's. Returns True, or False when there is none. expire and flags have no effect."""
        return self._store(STORE_APPEND, b"append", key, value, expire, noreply, flags, None)

    def prepend(self, key, value, expire=0, noreply=None, flags=None):
        """Puts value before the item's. Returns True, or False when there is none. expire and flags have no effect."""
        return self._store(STORE_PREPEND, b"prepend", key, value, expire, noreply, flags, None)

    def cas(self, key, value, cas, expire=0, noreply=False, flags=None):
        """Stores value if the item's cas is still the given cas (bytes, int or str).

        Returns True, or False when the item has changed, or None when there is none.
        """
        return self._store(
            STORE_CAS, b"cas", key, value, expire, noreply or False, flags, cas_text(cas, self.encoding))

    def set_many(self, values, expire=0, noreply=None, flags=None):
        """Stores the values of a dict, all in one round trip. Returns a list of the keys not stored.

        The first error line is raised when all values have been sent.
        """
        cdef dict given = values if type(values) is dict else dict(values.items())
        cdef bytes seconds = expire_text(expire)
        if not given:
            return []
        return self.store_prepared(self.prepared(given, flags), seconds, self.is_quiet(noreply))

    set_multi = set_many

    # --- without a value ---

    def delete(self, key, noreply=None):
        """Removes the item of key. Returns True, or False when there was none."""
        cdef bint quiet = self.is_quiet(noreply)
        cdef bytes encoded = self.encoded_key(key)
        cdef list errors = []
        cdef Connection c = self.enter(quiet, b"delete")
        cdef Stream s = c.stream
        cdef bint deleted = True
        try:
            put_delete(s, encoded, quiet)
            if quiet:
                c.unanswered(1)
            else:
                c.exchange()
                deleted = c.reply.code == REPLY_HD
                if not deleted and c.reply.code != REPLY_NF:
                    c.refused(errors)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return deleted

    def delete_many(self, keys, noreply=None):
        """Removes the items of the keys, all in one round trip. Returns True, also when some had none."""
        cdef bint quiet = self.is_quiet(noreply)
        cdef list encoded = [self.encoded_key(key) for key in keys]
        cdef list errors = []
        cdef bytes name
        cdef Py_ssize_t i
        cdef Connection c
        cdef Stream s
        if not encoded:
            return True
        c = self.enter(quiet, b"delete_many")
        s = c.stream
        try:
            for name in encoded:
                put_delete(s, name, quiet)
            if quiet:
                c.unanswered(len(encoded))
            else:
                for i in range(len(encoded)):
                    c.read_answer(i == 0)
                    if c.reply.code != REPLY_HD and c.reply.code != REPLY_NF:
                        c.refused(errors)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return True

    delete_multi = delete_many

    cdef object read_number(self, Connection c, list errors):
        # The number in the answer to incr or decr, by the line just read.
        cdef object number
        if c.reply.code == REPLY_VA or c.reply.code == REPLY_NUMBER:
            line = answer(c.stream)
            number = number_of(line if c.reply.code == REPLY_NUMBER else c.value())
            if number is None:
                raise c.named(MemcacheUnknownError(line[:32]))
            return number
        if c.reply.code != REPLY_NF:
            c.refused(errors)
        return None

    cdef object _arithmetic(self, bytes name, bytes mode, object key, object value, bint quiet):
        cdef bytes encoded = self.encoded_key(key)
        cdef bytes delta = delta_text(value, "value")
        cdef list errors = []
        cdef object result = None
        cdef Connection c
        cdef Stream s
        c = self.enter(quiet, name)
        s = c.stream
        try:
            put_arithmetic(s, encoded, mode, delta, quiet)
            if quiet:
                c.unanswered(1)
            else:
                c.exchange()
                result = self.read_number(c, errors)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return result

    def incr(self, key, value, noreply=False):
        """Adds value (0 to 2**64 - 1) to the stored number.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when the
        stored value is no number.
        """
        return self._arithmetic(b"incr", b" D", key, value, self.is_quiet(noreply or False))

    def decr(self, key, value, noreply=False):
        """Subtracts value (0 to 2**64 - 1) from the stored number, down to 0.

        Returns the new number, or None when there is no item (or with noreply). Raises MemcacheClientError when the
        stored value is no number.
        """
        return self._arithmetic(b"decr", b" MD D", key, value, self.is_quiet(noreply or False))

    def touch(self, key, expire=0, noreply=None):
        """Lets the item of key expire in `expire` seconds (0: never). Returns True, or False when there is none."""
        cdef bint quiet = self.is_quiet(noreply)
        cdef bytes encoded = self.encoded_key(key)
        cdef bytes seconds = integer_text(expire, "expire")
        cdef list errors = []
        cdef bint touched = True
        cdef Connection c = self.enter(quiet, b"touch")
        cdef Stream s = c.stream
        try:
            put_touch(s, encoded, seconds, quiet)
            if quiet:
                c.unanswered(1)
            else:
                c.exchange()
                touched = c.reply.code == REPLY_HD
                if not touched and c.reply.code != REPLY_EN and c.reply.code != REPLY_NF:
                    c.refused(errors)
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return touched
