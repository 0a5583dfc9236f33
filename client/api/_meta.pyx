"""See _meta.pxd."""

import base64
import functools
import re

from rmemcached.client.wire._commands cimport (
    cas_text,
    delta_text,
    exact_bytes,
    integer_text,
)
from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._request cimport REQUEST_META, Request, load_result, no_meta, put_meta, take_answer
from rmemcached.client.transport._stream cimport Stream

from rmemcached.client.api import leases
from rmemcached.client.exceptions import MemcacheIllegalInputError
from rmemcached.client.wire.meta import description_of, item_of, known, number_of, result_of

cdef enum:
    KEY_MAX = 250            # bytes

# Bytes unfit for a key in the text protocol. UTF-8 is fit.
cdef object UNFIT = re.compile(rb"[\x00-\x20\x7f-\xff]")
cdef object OPAQUE = re.compile(rb"[\x21-\x7e]{1,31}")
cdef dict MODES = {"set": b"", "add": b" ME", "replace": b" MR", "append": b" MA", "prepend": b" MP"}
cdef dict DIRECTIONS = {"incr": b"", "decr": b" MD"}


cdef bytes encoded_words(Storage client, object key):
    # The key, and the flag b if it is sent in base64.
    cdef bytes text
    if isinstance(key, str):
        text = key.encode()
    elif isinstance(key, bytes):
        text = exact_bytes(key)
    else:
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    text = client.key_prefix + text
    if not text:
        raise MemcacheIllegalInputError("Key is empty")
    if UNFIT.search(text) is not None:
        text = base64.b64encode(text)
        if len(text) > KEY_MAX:
            raise MemcacheIllegalInputError(
                f"Key is too long: {len(text)} bytes in base64, and {KEY_MAX} are the limit: {key!r}")
        return text + b" b"
    if len(text) > KEY_MAX:
        raise MemcacheIllegalInputError(f"Key is too long: {len(text)} bytes, and {KEY_MAX} are the limit: {key!r}")
    return text


cdef bytes seconds_flag(bytes letter, dict options, str name):
    cdef object seconds = options.get(name)
    return b"" if seconds is None else letter + integer_text(seconds, name)


cdef bytes token_flag(bytes letter, dict options, str name, str encoding):
    cdef object token = options.get(name)
    return b"" if token is None else letter + cas_text(token, encoding)


cdef bytes opaque_flag(dict options):
    cdef object opaque = options.get("opaque")
    if opaque is None:
        return b""
    text = opaque.encode() if isinstance(opaque, str) else opaque
    if not isinstance(text, bytes) or OPAQUE.fullmatch(text) is None:
        raise MemcacheIllegalInputError(f"opaque is 1 to 31 printable ASCII characters without blanks, not {opaque!r}")
    return b" O" + text


cdef bytes asked(dict options, tuple names):
    # The flags without arguments: each flag of (name, flag) whose option is true.
    return b"".join([flag for name, flag in names if options.get(name)])


cdef Request new_meta(bytes name, object key, bytes line, object parse):
    cdef Request r = Request.__new__(Request)
    r.kind = REQUEST_META
    r.name = name
    r.key = key
    r.line = line
    r.parse = parse
    return r


cdef tuple GET_FLAGS = (("flags", b" f"), ("cas", b" c"), ("ttl", b" t"), ("size", b" s"), ("hit_before", b" h"),
                        ("last_access", b" l"))


cdef Request meta_get_request(Storage client, object key, dict options):
    cdef bint wants_value = options["value"]
    cdef bytes line = b"".join([
        b"mg ",
        encoded_words(client, key),
        b" v" if wants_value else b"",
        b" f" if wants_value and client.serde is not None and not options["flags"] else b"",
        asked(options, GET_FLAGS),
        b"" if options["bump"] else b" u",
        seconds_flag(b" T", options, "touch"),
        seconds_flag(b" N", options, "vivify"),
        seconds_flag(b" R", options, "recache"),
        token_flag(b" E", options, "new_cas", client.encoding),
        opaque_flag(options),
    ])
    cdef Request r = new_meta(b"meta_get", key, line, functools.partial(item_of, key))
    r.sized = wants_value
    r.ignores = True
    return r


cdef Request meta_set_request(Storage client, object key, object value, dict options):
    cdef list numbers = []
    cdef object data = client._serialize(key, value, options["flags"], numbers)
    cdef bytes expire = b"" if type(options["expire"]) is int and options["expire"] == 0 else seconds_flag(
        b" T", options, "expire")
    cdef bytes words = encoded_words(client, key)
    cdef bytes word, flag
    if options["mode"] not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {options['mode']!r}")
    word, _, flag = words.partition(b" ")
    cdef Request r = new_meta(b"meta_set", key, b"ms " + word, lambda line, value: result_of(line))
    r.data = data
    r.flags = b"".join([
        b" b" if flag else b"",
        b"" if numbers[0] is None else b" F" + numbers[0],
        expire,
        MODES[options["mode"]],
        b" I" if options["invalidate"] else b"",
        token_flag(b" C", options, "cas", client.encoding),
        token_flag(b" E", options, "new_cas", client.encoding),
        seconds_flag(b" N", options, "vivify"),
        asked(options, (("return_cas", b" c"), ("return_size", b" s"))),
        opaque_flag(options),
    ])
    return r


cdef Request meta_delete_request(Storage client, object key, dict options):
    return new_meta(b"meta_delete", key, b"".join([
        b"md ",
        encoded_words(client, key),
        b" I" if options["invalidate"] else b"",
        b" x" if options["clear"] else b"",
        seconds_flag(b" T", options, "expire"),
        token_flag(b" C", options, "cas", client.encoding),
        token_flag(b" E", options, "new_cas", client.encoding),
        opaque_flag(options),
    ]), lambda line, value: result_of(line))


cdef Request meta_arithmetic_request(Storage client, object key, object delta, dict options):
    cdef bytes initial = b""
    if options["mode"] not in DIRECTIONS:
        raise ValueError(f"mode must be one of {', '.join(DIRECTIONS)}, not {options['mode']!r}")
    if options["initial"] is not None:
        initial = b" J" + delta_text(options["initial"], "initial") + (b" N0" if options["vivify"] is None else b"")
    cdef Request r = new_meta(b"meta_arithmetic", key, b"".join([
        b"ma ",
        encoded_words(client, key),
        DIRECTIONS[options["mode"]],
        b" D" + delta_text(delta, "delta"),
        initial,
        seconds_flag(b" N", options, "vivify"),
        seconds_flag(b" T", options, "touch"),
        token_flag(b" C", options, "cas", client.encoding),
        token_flag(b" E", options, "new_cas", client.encoding),
        b" v" if options["value"] else b"",
        asked(options, (("return_cas", b" c"), ("ttl", b" t"))),
        opaque_flag(options),
    ]), number_of)
    r.sized = options["value"]
    return r


cdef bytes debug_line(Storage client, object key):
    cdef bytes words = encoded_words(client, key)
    # memcached 1.6.45 looks at the flag b only if another word follows.
    return b"me " + words + (b" b" if b" " in words else b"")


cdef Request meta_debug_request(Storage client, object key):
    return new_meta(b"meta_debug", key, debug_line(client, key), lambda line, value: description_of(line))


cdef Request meta_noop_request(Storage client):
    return new_meta(b"meta_noop", None, b"mn", lambda line, value: known(line))


cdef Request exists_request(Storage client, object key):
    # mg of a stale item would take the win.
    return new_meta(b"exists", key, debug_line(client, key),
                    lambda line, value: description_of(line) is not None)


cdef Request remaining_request(Storage client, bytes name, object key, object default):
    # ttl, or last_access.
    cdef str word = "exp" if name == b"ttl" else "la"

    def of(line, value):
        found = description_of(line)
        if found is None:
            return default
        if not isinstance(found.get(word), int):
            raise ValueError(line)
        return found[word]

    return new_meta(name, key, debug_line(client, key), of)


cdef class Meta(Storage):

    cdef object call(self, Request r):
        try:
            result = self.exchange_meta(r)
            return load_result(self, r, result) if r.found and self.serde is not None else result
        except Exception:
            if not (r.ignores and self.ignore_exc):
                raise
        return None

    cdef object exchange_meta(self, Request r):
        cdef Connection c = self.enter(False, r.name)
        cdef Stream s = c.stream
        cdef list errors = []
        if s.classic:
            error = c.named(no_meta())
            self.leave(c, None)
            raise error
        try:
            put_meta(c, r, True)
            c.exchange()
            result = take_answer(self, c, r, errors)
            c.values_sent()
            s.release_sink()
        except BaseException:
            self.drop(c)
            raise
        self.leave(c, errors)
        return result

    def meta_get(
        self, key, *, value=True, flags=False, cas=False, ttl=False, size=False, hit_before=False, last_access=False,
        bump=True, touch=None, vivify=None, recache=None, new_cas=None, opaque=None,
    ):
        """Returns a MetaItem of key, or None when there is no item: `mg`.

        value, flags, cas, ttl, size, hit_before, last_access: the wanted fields of the MetaItem; with a serde also
        flags. bump=False: the call is no access of the item. touch: the item expires in so many seconds. vivify: a
        missing item is made, without a value, for so many seconds; this caller has won it, later callers wait. recache:
        if the item expires in less than so many seconds, a single caller wins it. new_cas: the cas of an item made by
        vivify. opaque: 1 to 31 characters, repeated in the answer.
        """
        return self.call(meta_get_request(self, key, {
            "value": value, "flags": flags, "cas": cas, "ttl": ttl, "size": size, "hit_before": hit_before,
            "last_access": last_access, "bump": bump, "touch": touch, "vivify": vivify, "recache": recache,
            "new_cas": new_cas, "opaque": opaque}))

    def meta_set(
        self, key, value, *, expire=0, flags=None, mode="set", cas=None, new_cas=None, invalidate=False, vivify=None,
        return_cas=False, return_size=False, opaque=None,
    ):
        """Stores value under key: `ms`. Returns a MetaResult, true if the value was stored.

        mode: "set", "add", "replace", "append" or "prepend". cas: only if the item has this cas; with invalidate also
        if the item's cas is higher: then the value is stored as stale. new_cas: the item's new cas. vivify: "append"
        and "prepend" make a missing item, for so many seconds. return_cas, return_size: for these fields of the
        MetaResult.
        """
        return self.call(meta_set_request(self, key, value, {
            "expire": expire, "flags": flags, "mode": mode, "cas": cas, "new_cas": new_cas, "invalidate": invalidate,
            "vivify": vivify, "return_cas": return_cas, "return_size": return_size, "opaque": opaque}))

    def meta_delete(self, key, *, cas=None, new_cas=None, invalidate=False, clear=False, expire=None, opaque=None):
        """Removes the item of key: `md`. Returns a MetaResult, true if the server has done so.

        cas: only if the item has this cas. invalidate: the item stays and is stale, so the next meta_get wins it;
        expire: for so many seconds; new_cas: with this cas. clear: the value and the flags are removed, and the item
        stays.
        """
        return self.call(meta_delete_request(self, key, {
            "cas": cas, "new_cas": new_cas, "invalidate": invalidate, "clear": clear, "expire": expire,
            "opaque": opaque}))

    def meta_arithmetic(
        self, key, delta=1, *, mode="incr", value=True, initial=None, vivify=None, touch=None, cas=None, new_cas=None,
        return_cas=False, ttl=False, opaque=None,
    ):
        """Adds delta (0 to 2**64 - 1) to the number of key; mode="decr": subtracts delta, down to 0: `ma`. Returns a
        MetaNumber, true if the server has done so.

        initial: the number of a missing item, made for `vivify` seconds (0 or None: for ever). touch: the item expires
        in so many seconds. value, return_cas, ttl: for these fields of the MetaNumber.
        """
        return self.call(meta_arithmetic_request(self, key, delta, {
            "mode": mode, "value": value, "initial": initial, "vivify": vivify, "touch": touch, "cas": cas,
            "new_cas": new_cas, "return_cas": return_cas, "ttl": ttl, "opaque": opaque}))

    def meta_noop(self):
        """Waits for an answer of the server: `mn`. Returns True."""
        return self.call(meta_noop_request(self))

    def meta_debug(self, key):
        """Returns the server's description of an item, without an access: `me`. A dict of exp (seconds until expiry;
        -1: never), la (seconds since the last access), cas, fetch, cls, size (bytes of memory); None: there is no
        item."""
        return self.call(meta_debug_request(self, key))

    def exists(self, key):
        """Whether key has an item. The call is no access of the item."""
        return self.call(exists_request(self, key))

    def ttl(self, key, default=None):
        """Returns the seconds until the item of key expires; -1: never; default: there is no item. The call is no
        access of the item."""
        return self.call(remaining_request(self, b"ttl", key, default))

    def last_access(self, key, default=None):
        """Returns the seconds since the last access of key's item; default: there is no item. The call is no access."""
        return self.call(remaining_request(self, b"last_access", key, default))

    def invalidate(self, key, expire=30):
        """Makes the item of key stale: the next `get_or_set` computes it anew, while others take the old value, for at
        most `expire` seconds. Returns True, or False when there is no item.

        Read such a key by `get_or_set` or `meta_get`: the first reader has won it, which `get` does not tell.
        """
        return bool(self.meta_delete(key, invalidate=True, expire=expire))

    def get_or_set(self, key, compute, expire=0, *, lease=30, wait=None, refresh=None, stale=True):
        """Returns the value of key; without an item, calls compute() and stores its result for `expire` seconds.

        Of all clients a single caller computes, and the rest wait for the value. If this caller fails, or does not
        return within `lease` seconds, the next caller computes. wait: the most seconds of waiting; after them the call
        computes by itself, and does not store. A stale item (`invalidate`) is returned to the waiting callers, unless
        stale=False: then they wait, too. refresh: if the item expires in less than so many seconds, a single caller
        computes it anew while the rest take the present value. A value invalidated or deleted during compute() is not
        stored.

        The keys may be any bytes (1 to 250, or up to 186 if some are not printable ASCII), as in all meta commands. A
        compute() with an exception leaves the key to the next caller. Raises ValueError for a lease below 1.
        """
        return leases.drive(self, compute, leases.steps(key, expire, lease, wait, refresh, stale))
