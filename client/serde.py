"""Serdes: how objects other than bytes are stored. Pass a serde to a client as ``serde=``.

The serdes with pymemcache's names (pymemcache/serde.py) write the same bytes and flags, and read pymemcache's values.
The rest have flags of their own, and leave values with other flags unchanged. Unpickling runs code: take pickles only
from servers that nobody else can write to.

A serde has ``serialize(key, value) -> (value, flags)`` and ``deserialize(key, value, flags) -> value``. All serdes of
this module are thread-safe, and can be copied and pickled.
"""

from __future__ import annotations

import ast
import io
import logging
import pickle
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any

from .transport._gathered import Gathered

FLAG_BYTES = 0
FLAG_PICKLE = 1 << 0
FLAG_INTEGER = 1 << 1
FLAG_LONG = 1 << 2
FLAG_COMPRESSED = 1 << 3
FLAG_TEXT = 1 << 4
# The flags of this project's own serdes: pymemcache and python-memcached do not know them.
FLAG_BUFFERS = 1 << 16
FLAG_ARRAY = 1 << 17
FLAG_ZSTD = 1 << 18

DEFAULT_PICKLE_VERSION = pickle.HIGHEST_PROTOCOL
ALIGNMENT = 64  # bytes; each buffer in a value begins at a multiple

logger = logging.getLogger(__name__)


# --- pymemcache's ---


def serialize_simple(value: Any) -> tuple[bytes, int] | None:
    """The stored form of bytes, str and int; None for all other objects, and for objects of subclasses."""
    kind = type(value)
    if kind is bytes:
        return value, FLAG_BYTES
    if kind is str:
        return value.encode(), FLAG_TEXT
    if kind is int:
        return b"%d" % value, FLAG_INTEGER
    return None


def deserialize_simple(value: Any, flags: int) -> Any:
    """The value for the flags of serialize_simple, or for no flags."""
    if flags & FLAG_TEXT:
        return str(value, "utf-8")
    if flags & (FLAG_INTEGER | FLAG_LONG):
        return int(bytes(value))
    return value if isinstance(value, bytes) else bytes(value)


def get_python_memcache_serializer(
    pickle_version: int = DEFAULT_PICKLE_VERSION,
) -> Callable[[Any, Any], tuple[Any, int]]:
    """Returns a serializer function like python_memcache_serializer, with this version of pickle's protocol."""
    return PickleSerde(pickle_version).serialize


def python_memcache_serializer(key: Any, value: Any) -> tuple[Any, int]:
    """A serializer function: bytes, str and int as they are, others pickled."""
    return pickle_serde.serialize(key, value)


def python_memcache_deserializer(key: Any, value: Any, flags: int) -> Any:
    """The deserializer function of both serializers. A broken pickle gives None, and a line in the log."""
    if flags & FLAG_PICKLE and not flags & (FLAG_TEXT | FLAG_INTEGER | FLAG_LONG):
        try:
            return pickle.loads(value)
        except Exception:
            logger.info("the value of %r cannot be unpickled", key, exc_info=True)
            return None
    return deserialize_simple(value, flags)


class PickleSerde:
    """bytes, str and int are stored as they are, all other objects as pickles. pickle_version: the version of pickle's
    protocol, by default the highest. The module's `pickle_serde` is a PickleSerde with this default."""

    def __init__(self, pickle_version: int = DEFAULT_PICKLE_VERSION) -> None:
        self.pickle_version = pickle_version

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """(bytes, flags). Raises the errors of pickle."""
        return serialize_simple(value) or (pickle.dumps(value, self.pickle_version), FLAG_PICKLE)

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The object. A broken pickle gives None, and a line in the log."""
        return python_memcache_deserializer(key, value, flags)


pickle_serde = PickleSerde()


class CompressedSerde:
    """Another serde's values, compressed if they are longer than min_compress_len bytes and do not get longer.

    min_compress_len: 400 by default; 0: nothing is compressed. serde: the other serde, by default `pickle_serde`, a
    PickleSerde. compress, decompress: functions from bytes to bytes, zlib's by default.
    """

    def __init__(
        self,
        compress: Callable[[bytes], bytes] = zlib.compress,
        decompress: Callable[[bytes], bytes] = zlib.decompress,
        serde: Any = pickle_serde,
        min_compress_len: int = 400,
    ) -> None:
        self._compress = compress
        self._decompress = decompress
        self._serde = serde
        self._min_compress_len = min_compress_len

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """(bytes, flags)."""
        value, flags = self._serde.serialize(key, value)
        if len(value) > self._min_compress_len > 0:
            shorter = self._compress(value.encode() if isinstance(value, str) else bytes(value))
            if len(shorter) <= len(value):
                return shorter, flags | FLAG_COMPRESSED
        return value, flags

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The object. Raises the errors of decompress."""
        if flags & FLAG_COMPRESSED:
            value = self._decompress(value)
        return self._serde.deserialize(key, value, flags)


compressed_serde = CompressedSerde()


class LegacyWrappingSerde:
    """A serializer and a deserializer function, or only the first or the second, as a serde."""

    def __init__(
        self,
        serializer_func: Callable[[Any, Any], tuple[Any, int]] | None,
        deserializer_func: Callable[[Any, Any, int], Any] | None,
    ) -> None:
        self._serializer = serializer_func
        self._deserializer = deserializer_func

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """The result of the serializer function, or the value and no flags."""
        return (value, 0) if self._serializer is None else self._serializer(key, value)

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The result of the deserializer function, or the value."""
        return value if self._deserializer is None else self._deserializer(key, value, flags)


# --- buffers out of the pickle ---

# A value begins with the number of buffers and the pickle's length. Then come 8 bytes for the length of each buffer.
HEAD = struct.Struct("<II")
BUFFERS_MOST = 1 << 16


def aligned(length: int) -> int:
    """The length rounded up to a multiple of ALIGNMENT."""
    return -length % ALIGNMENT + length


def malformed(key: Any) -> ValueError:
    """The exception for a value that contradicts its flags."""
    return ValueError(f"the value of {key!r} is damaged: it is not what its flags say")


class Pickle5Serde:
    """Objects pickled by protocol 5. Buffers of min_buffer bytes or more in the objects (NumPy's arrays,
    pickle.PickleBuffer) are stored behind the pickle: the serde copies the buffers neither into the pickle for storing,
    nor out of it after fetching. min_buffer: 1024 by default.

    Objects returned by `get` hold read-only views of the value's memory, as long as the views are needed; with
    writable=True (default: False) each buffer is a copy. docs/client-values.md has the layout. Raises ValueError for a
    damaged value, and the errors of pickle.
    """

    takes_views = True

    def __init__(self, writable: bool = False, min_buffer: int = 1024) -> None:
        self.writable = writable
        self.min_buffer = min_buffer

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """(bytes or Gathered, flags)."""
        simple = serialize_simple(value)
        if simple is not None:
            return simple
        views: list[memoryview] = []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            # Called by pickle. True: the buffer goes into the pickle.
            try:
                view = buffer.raw()
            except BufferError:
                return True
            if view.nbytes < self.min_buffer or len(views) == BUFFERS_MOST:
                return True
            views.append(view)
            return False

        text = self._dumps(value, keep)
        if not views:
            return text, FLAG_PICKLE
        head = HEAD.pack(len(views), len(text)) + struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
        parts: list[Any] = [head, text]
        at = len(head) + len(text)
        for view in views:
            parts += [bytes(aligned(at) - at), view]
            at = aligned(at) + view.nbytes
        return Gathered(parts), FLAG_BUFFERS

    def _dumps(self, value: Any, keep: Callable[[pickle.PickleBuffer], bool]) -> bytes:
        """The pickle, without the buffers for which `keep` returns false. Subclasses may have another Pickler."""
        return pickle.dumps(value, 5, buffer_callback=keep)

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The object."""
        if flags & FLAG_BUFFERS:
            return self._load(key, memoryview(value))
        if flags & FLAG_PICKLE:
            return pickle.loads(value)
        return deserialize_simple(value, flags)

    def _load(self, key: Any, value: memoryview) -> Any:
        if value.nbytes < HEAD.size:
            raise malformed(key)
        count, length = HEAD.unpack_from(value)
        begin = HEAD.size + 8 * count
        at = begin + length
        if not 0 < count <= BUFFERS_MOST or at > value.nbytes:
            raise malformed(key)
        buffers: list[Any] = []
        for size in struct.unpack_from(f"<{count}Q", value, HEAD.size):
            at = aligned(at)
            if at + size > value.nbytes:
                raise malformed(key)
            buffers.append(bytearray(value[at : at + size]) if self.writable else value[at : at + size])
            at += size
        if at != value.nbytes:
            raise malformed(key)
        return pickle.loads(value[begin : begin + length], buffers=buffers)


class NumpySerde:
    """NumPy's arrays, in the .npy format of version 1.0 (numpy.lib.format), without pickle: dtype, shape and order.

    `get` returns arrays as read-only views of the value's memory; writable=True: copies. Arrays of Python objects are
    refused, with ValueError. All other objects go to another serde; without another serde bytes, str and int are stored
    as by pymemcache, and the rest is refused, with TypeError.
    """

    takes_views = True

    def __init__(self, serde: Any = None, writable: bool = False) -> None:
        self.serde = serde
        self.writable = writable

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """(Gathered or bytes, flags)."""
        import numpy
        from numpy.lib import format as npy

        # .npy stores elements only. An array of a subclass has more: a mask, a unit.
        if type(value) is not numpy.ndarray and type(value) is not numpy.memmap:
            return self._serialize_other(key, value)
        if value.dtype.hasobject:
            raise ValueError(f"the array for {key!r} has Python objects (dtype {value.dtype}): use Pickle5Serde")
        if not value.dtype.itemsize or npy.descr_to_dtype(npy.dtype_to_descr(value.dtype)) != value.dtype:
            raise ValueError(f"the array for {key!r} has a dtype that .npy has not ({value.dtype}): use Pickle5Serde")
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        header = io.BytesIO()
        npy.write_array_header_1_0(
            header, {"descr": npy.dtype_to_descr(value.dtype), "fortran_order": fortran, "shape": value.shape}
        )
        data = value.T if fortran else numpy.ascontiguousarray(value)
        return Gathered([header.getvalue(), data.reshape(-1).view(numpy.uint8)]), FLAG_ARRAY

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The array, or the result of the other serde. Raises ValueError for a damaged value."""
        if flags & FLAG_ARRAY:
            return self._load(key, memoryview(value))
        if self.serde is None:
            return deserialize_simple(value, flags)
        if not isinstance(value, bytes) and not getattr(self.serde, "takes_views", False):
            value = bytes(value)
        return self.serde.deserialize(key, value, flags)

    def _serialize_other(self, key: Any, value: Any) -> tuple[Any, int]:
        if self.serde is not None:
            other: tuple[Any, int] = self.serde.serialize(key, value)
            return other
        simple = serialize_simple(value)
        if simple is None:
            raise TypeError(
                f"the value for {key!r} is no numpy.ndarray but a {type(value).__name__}: give NumpySerde a serde="
            )
        return simple

    def _load(self, key: Any, value: memoryview) -> Any:
        import numpy
        from numpy.lib import format as npy

        # Magic, version 1.0, the length of the description, and the description.
        if bytes(value[:8]) != b"\x93NUMPY\x01\x00" or value.nbytes < 10:
            raise malformed(key)
        begin = 10 + int.from_bytes(value[8:10], "little")
        try:
            told = ast.literal_eval(str(value[10:begin], "latin-1"))
            dtype = npy.descr_to_dtype(told["descr"])
            shape = tuple(told["shape"])
            if dtype.hasobject or any(type(size) is not int or size < 0 for size in shape):
                raise malformed(key)
            flat = numpy.frombuffer(value[begin:], numpy.uint8) if value.nbytes > begin else numpy.empty(0, numpy.uint8)
            array = numpy.ndarray(shape, dtype, flat, order="F" if told["fortran_order"] else "C")
        except Exception:
            raise malformed(key) from None
        # With elements of 0 bytes any shape would fit the value's length.
        if array.nbytes != value.nbytes - begin or not dtype.itemsize:
            raise malformed(key)
        if self.writable:
            return array.copy(order="K")
        array.flags.writeable = False
        return array


# --- zstd ---


class ZstdSerde:
    """Another serde's values, compressed by zstd if they have min_size bytes (default: 1024) or more and get
    shorter.

    serde: the other serde, by default `pickle_serde`, a PickleSerde. level: zstd's, 3 by default. max_size: bytes
    (default: 1 GB); values with a larger length in the frame, or without a length, are refused with ValueError.
    Needs the library zstandard (``pip install 'rmemcached[zstd]'``), else the constructor raises ImportError.
    """

    takes_views = True

    def __init__(
        self, serde: Any = pickle_serde, min_size: int = 1024, level: int = 3, max_size: int = 1 << 30
    ) -> None:
        self.serde = serde
        self.min_size = min_size
        self.level = level
        self.max_size = max_size
        codec(level)

    def serialize(self, key: Any, value: Any) -> tuple[Any, int]:
        """(bytes or the value of the other serde, flags)."""
        value, flags = self.serde.serialize(key, value)
        data = value.encode() if isinstance(value, str) else value
        if len(data) >= self.min_size:
            shorter = codec(self.level).compress(bytes(data) if isinstance(data, Gathered) else data)
            if len(shorter) < len(data):
                return shorter, flags | FLAG_ZSTD
        return value, flags

    def deserialize(self, key: Any, value: Any, flags: int) -> Any:
        """The object. Raises ValueError for a damaged or too long value."""
        if flags & FLAG_ZSTD:
            value = codec(self.level).decompress(key, bytes(value), self.max_size)
        elif not isinstance(value, bytes) and not getattr(self.serde, "takes_views", False):
            value = bytes(value)
        return self.serde.deserialize(key, value, flags)


class Codec:
    """zstd, for a single thread."""

    def __init__(self, level: int) -> None:
        try:
            import zstandard
        except ImportError:
            raise ImportError("ZstdSerde needs the library zstandard: pip install 'rmemcached[zstd]'") from None
        self._library = zstandard
        self._compressor = zstandard.ZstdCompressor(level=level)
        self._decompressor = zstandard.ZstdDecompressor()

    def compress(self, data: Any) -> bytes:
        """A frame with the length of the data."""
        return self._compressor.compress(data)

    def decompress(self, key: Any, frame: bytes, most: int) -> bytes:
        """The data of a frame, of `most` bytes at most. Raises ValueError."""
        try:
            size = self._library.frame_content_size(frame)
            if size > most:
                raise ValueError(f"the value of {key!r} has {size} bytes, and max_size is {most}")
            # A stored value has at least a byte. -1: the frame does not tell the length.
            if size <= 0:
                raise malformed(key)
            # Without allow_extra_data=False, bytes behind the frame would be lost without an error.
            data: bytes = self._decompressor.decompress(frame, allow_extra_data=False)
        except self._library.ZstdError:
            raise malformed(key) from None
        return data


_codecs = threading.local()


def codec(level: int) -> Codec:
    """This thread's Codec of a level. Raises ImportError."""
    codecs: dict[int, Codec] | None = getattr(_codecs, "codecs", None)
    if codecs is None:
        codecs = _codecs.codecs = {}
    if level not in codecs:
        codecs[level] = Codec(level)
    return codecs[level]
