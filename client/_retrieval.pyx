"""See _retrieval.pxd."""

from rmemcached.client._commands cimport integer_text, put_fetch
from rmemcached.client._reply cimport REPLY_EN, REPLY_VA
from rmemcached.client._stream cimport Stream

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)

MISS = object()


cdef class Retrieval(Session):

    cdef object _load(self, object key, bytes value, uint32_t flags):
        return value if self.serde is None else self.serde.deserialize(key, value, flags)

    cdef object _read_fetch(self, Connection c, bint with_cas, uint32_t *flags, list errors):
        # The value of the mg that the line just read answers, or (value, cas), or MISS.
        cdef Stream s = c.stream
        cdef bytes cas
        if s.reply.code == REPLY_VA:
            flags[0] = s.reply.flags
            if not with_cas:
                return c.value()
            cas = s.line[s.reply.cas_offset:s.reply.cas_offset + s.reply.cas_length]
            return c.value(), cas
        if s.reply.code != REPLY_EN:
            c.refused(errors)
        return MISS

    cdef object _fetch(self, bytes key, bint with_cas, bytes expire, bytes name, uint32_t *flags):
        cdef Connection c = self.enter(False, name)
        cdef Stream s = c.stream
        cdef list errors = []
        try:
            put_fetch(s, key, self.serde is not None, with_cas, expire)
            if s.remote:
                s.put_sink()
            s.put("\r\n", 2)
            c.exchange()
            value = self._read_fetch(c, with_cas, flags, errors)
            s.release_sink()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return value

    def _buffer(self, size_t size):
        # Memory for values, which a server takes from there and puts there without a copy where that can be.
        cdef Connection c = self.enter(True, b"buffer")
        try:
            return c.stream.make_buffer(size)
        finally:
            self.leave(c, None)

    def _get_into(self, key, buffer, default=None):
        # The number of bytes of the value, which is in the buffer, or default. ValueError: it does not fit.
        cdef bytes encoded = self.encoded_key(key)
        cdef list errors = []
        cdef object result = default
        cdef object view = memoryview(buffer)
        cdef Py_buffer *memory = PyMemoryView_GET_BUFFER(view)
        cdef Connection c
        cdef Stream s
        if view.readonly or not view.c_contiguous:
            raise BufferError("a value is received into a writable, contiguous buffer")
        c = self.enter(False, b"get_into")
        s = c.stream
        try:
            s.check_target(<char *>memory.buf, memory.len)
        except BaseException:
            # Nothing was sent.
            self.leave(c, None)
            raise
        try:
            put_fetch(s, encoded, False, False, None)
            if s.remote and memory.len > <Py_ssize_t>s.inline_limit:
                s.put_target(<char *>memory.buf, memory.len)
            s.put("\r\n", 2)
            c.exchange()
            if s.reply.code == REPLY_VA:
                result = c.value_into(<char *>memory.buf, memory.len)
            elif s.reply.code != REPLY_EN:
                c.refused(errors)
            s.release_sink()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        if result is not default and result > memory.len:
            raise ValueError(f"the value has {result} bytes, and the buffer {memory.len}")
        return result

    cdef object _get(self, object key, object default, object expire, bytes name):
        cdef bytes encoded = self.encoded_key(key)
        cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
        cdef uint32_t flags = 0
        try:
            value = self._fetch(encoded, False, seconds, name, &flags)
            if value is not MISS:
                return self._load(key, value, flags)
        except Exception:
            if not self.ignore_exc:
                raise
        return default

    cdef object _gets(self, object key, object default, object cas_default, object expire, bytes name):
        cdef bytes encoded = self.encoded_key(key)
        cdef bytes seconds = None if expire is None else integer_text(expire, "expire")
        cdef uint32_t flags = 0
        try:
            found = self._fetch(encoded, True, seconds, name, &flags)
            if found is not MISS:
                return self._load(key, found[0], flags), found[1]
        except Exception:
            if not self.ignore_exc:
                raise
        return default, cas_default

    cdef dict _get_many(self, object keys, bint with_cas, bytes name):
        cdef list names = list(keys)
        cdef list encoded = [self.encoded_key(key) for key in names]
        if not names:
            return {}
        try:
            return self._fetch_many(names, encoded, with_cas, name)
        except Exception:
            if not self.ignore_exc:
                raise
        return {}

    cdef dict _fetch_many(self, list names, list encoded, bint with_cas, bytes name):
        cdef Connection c = self.enter(False, name)
        cdef Stream s = c.stream
        cdef list errors = []
        cdef list loads = []
        cdef dict found = {}
        cdef uint32_t flags = 0
        cdef bint first = True
        cdef bytes key
        try:
            for key in encoded:
                put_fetch(s, key, self.serde is not None, with_cas, None)
                s.put("\r\n", 2)
            for given in names:
                c.read_answer(first)
                first = False
                value = self._read_fetch(c, with_cas, &flags, errors)
                if value is MISS:
                    continue
                if self.serde is not None:
                    loads.append((given, flags))
                found[given] = value
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        # Only now, since a serde may use this client.
        for given, number in loads:
            value = found[given]
            if with_cas:
                found[given] = (self._load(given, value[0], number), value[1])
            else:
                found[given] = self._load(given, value, number)
        return found

    def get(self, key, default=None):
        """Returns the value of key, or default when there is no item."""
        return self._get(key, default, None, b"get")

    def gets(self, key, default=None, cas_default=None):
        """Returns (value, cas) of key, or (default, cas_default) when there is no item. cas is bytes, for `cas`."""
        return self._gets(key, default, cas_default, None, b"gets")

    def gat(self, key, expire=0, default=None):
        """Returns what `get` does, and lets the item expire in `expire` seconds (0: never)."""
        return self._get(key, default, expire, b"gat")

    def gats(self, key, expire=0, default=None, cas_default=None):
        """Returns what `gets` does, and lets the item expire in `expire` seconds (0: never)."""
        return self._gets(key, default, cas_default, expire, b"gats")

    def get_many(self, keys):
        """Returns {key: value} of the keys that have items. One round trip."""
        return self._get_many(keys, False, b"get")

    def gets_many(self, keys):
        """Returns {key: (value, cas)} of the keys that have items. One round trip."""
        return self._get_many(keys, True, b"gets")

    get_multi = get_many
