"""See _meta.pxd."""

import base64
import functools
import re

from rmemcached.client.api._connection cimport Connection
from rmemcached.client.api._request cimport REQUEST_META, Request, load_result, no_meta, put_meta, take_answer
from rmemcached.client.transport._stream cimport Stream
from rmemcached.client.wire._commands cimport (
    KEY_MAX,
    cas_text,
    delta_text,
    exact_bytes,
    integer_text,
)

from rmemcached.client.exceptions import MemcacheIllegalInputError
from rmemcached.client.wire.meta import description_of, item_of, known, number_of, result_of

# Bytes other than printable ASCII. A key with such a byte is sent in base64.
cdef object UNFIT = re.compile(rb"[\x00-\x20\x7f-\xff]")
cdef object OPAQUE = re.compile(rb"[\x21-\x7e]{1,31}")
cdef dict MODES = {"set": b"", "add": b" ME", "replace": b" MR", "append": b" MA", "prepend": b" MP"}
cdef dict DIRECTIONS = {"incr": b"", "decr": b" MD"}


cdef bytes encoded_words(Session session, object key):
    # The key's text, and the flag b if the text is base64.
    cdef bytes text
    if isinstance(key, str):
        text = key.encode()
    elif isinstance(key, bytes):
        text = exact_bytes(key)
    else:
        raise TypeError(f"a key is bytes or str, not {type(key).__name__}")
    text = session.key_prefix + text
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


cdef Request meta_get_request(Session session, object key, dict options):
    cdef bint wants_value = options["value"]
    cdef bytes line = b"".join([
        b"mg ",
        encoded_words(session, key),
        b" v" if wants_value else b"",
        b" f" if wants_value and session.serde is not None and not options["flags"] else b"",
        asked(options, GET_FLAGS),
        b"" if options["bump"] else b" u",
        seconds_flag(b" T", options, "touch"),
        seconds_flag(b" N", options, "vivify"),
        seconds_flag(b" R", options, "recache"),
        token_flag(b" E", options, "new_cas", session.encoding),
        opaque_flag(options),
    ])
    cdef Request r = new_meta(b"meta_get", key, line, functools.partial(item_of, key))
    r.sized = wants_value
    r.ignores = True
    return r


cdef Request meta_set_request(Session session, object key, object value, dict options):
    cdef list numbers = []
    cdef object data = session.serialize(key, value, options["flags"], numbers)
    cdef bytes expire = b"" if type(options["expire"]) is int and options["expire"] == 0 else seconds_flag(
        b" T", options, "expire")
    cdef bytes words = encoded_words(session, key)
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
        token_flag(b" C", options, "cas", session.encoding),
        token_flag(b" E", options, "new_cas", session.encoding),
        seconds_flag(b" N", options, "vivify"),
        asked(options, (("return_cas", b" c"), ("return_size", b" s"))),
        opaque_flag(options),
    ])
    return r


cdef Request meta_delete_request(Session session, object key, dict options):
    return new_meta(b"meta_delete", key, b"".join([
        b"md ",
        encoded_words(session, key),
        b" I" if options["invalidate"] else b"",
        b" x" if options["clear"] else b"",
        seconds_flag(b" T", options, "expire"),
        token_flag(b" C", options, "cas", session.encoding),
        token_flag(b" E", options, "new_cas", session.encoding),
        opaque_flag(options),
    ]), lambda line, value: result_of(line))


cdef Request meta_arithmetic_request(Session session, object key, object delta, dict options):
    cdef bytes initial = b""
    if options["mode"] not in DIRECTIONS:
        raise ValueError(f"mode must be one of {', '.join(DIRECTIONS)}, not {options['mode']!r}")
    if options["initial"] is not None:
        initial = b" J" + delta_text(options["initial"], "initial") + (b" N0" if options["vivify"] is None else b"")
    cdef Request r = new_meta(b"meta_arithmetic", key, b"".join([
        b"ma ",
        encoded_words(session, key),
        DIRECTIONS[options["mode"]],
        b" D" + delta_text(delta, "delta"),
        initial,
        seconds_flag(b" N", options, "vivify"),
        seconds_flag(b" T", options, "touch"),
        token_flag(b" C", options, "cas", session.encoding),
        token_flag(b" E", options, "new_cas", session.encoding),
        b" v" if options["value"] else b"",
        asked(options, (("return_cas", b" c"), ("ttl", b" t"))),
        opaque_flag(options),
    ]), number_of)
    r.sized = options["value"]
    return r


cdef bytes debug_line(Session session, object key):
    cdef bytes words = encoded_words(session, key)
    # The flag b is sent twice: memcached 1.6.45 looks at the flag only if another word follows.
    return b"me " + words + (b" b" if b" " in words else b"")


cdef Request meta_debug_request(Session session, object key):
    return new_meta(b"meta_debug", key, debug_line(session, key), lambda line, value: description_of(line))


cdef Request meta_noop_request(Session session):
    return new_meta(b"meta_noop", None, b"mn", lambda line, value: known(line))


cdef Request exists_request(Session session, object key):
    # The command is me, since mg of a stale item would win the item (MetaItem.won).
    return new_meta(b"exists", key, debug_line(session, key),
                    lambda line, value: description_of(line) is not None)


cdef Request remaining_request(Session session, bytes name, object key, object default):
    # The request of ttl and of last_access.
    cdef str word = "exp" if name == b"ttl" else "la"

    def of(line, value):
        found = description_of(line)
        if found is None:
            return default
        if not isinstance(found.get(word), int):
            raise ValueError(line)
        return found[word]

    return new_meta(name, key, debug_line(session, key), of)


cdef object exchange(Session session, Request r):
    cdef Connection c = session.enter(False, r.name)
    cdef Stream s = c.stream
    cdef list errors = []
    if s.classic:
        error = c.named(no_meta())
        session.leave(c, None)
        raise error
    try:
        put_meta(c, r, True)
        c.exchange()
        result = take_answer(c, r, errors)
        c.values_sent()
        c.release_sink()
    except BaseException:
        session.drop(c)
        raise
    session.leave(c, errors)
    return result


cdef object call(Session session, Request r):
    try:
        result = exchange(session, r)
        return load_result(session, r, result) if r.found and session.serde is not None else result
    except Exception:
        if not (r.ignores and session.ignore_exc):
            raise
    return None
