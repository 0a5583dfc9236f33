"""See _rendezvous.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef enum:
    KEY_ROOM = 512           # bytes of the longest key hashed on the stack


# MurmurHash3 (x86, 32 bits) by Austin Appleby, in the public domain.

cdef inline uint32_t rotated(uint32_t x, int n) noexcept nogil:
    return x << n | x >> (32 - n)


cdef inline uint32_t scrambled(uint32_t word) noexcept nogil:
    return rotated(word * <uint32_t>0xCC9E2D51, 15) * <uint32_t>0x1B873593


cdef uint32_t with_words(uint32_t state, const unsigned char *p, size_t words) noexcept nogil:
    cdef const unsigned char *end = p + 4 * words
    while p < end:
        state ^= scrambled(p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24)
        state = rotated(state, 13) * 5 + <uint32_t>0xE6546B64
        p += 4
    return state


cdef uint32_t finished(uint32_t state, const unsigned char *p, size_t length, size_t whole) noexcept nogil:
    # The hash of `whole` bytes, whose last bytes are at p.
    cdef uint32_t tail = 0
    cdef size_t words = length // 4
    cdef size_t i
    state = with_words(state, p, words)
    for i in range(4 * words, length):
        tail |= <uint32_t>p[i] << (8 * (i % 4))
    state ^= scrambled(tail)
    state ^= <uint32_t>whole
    state = (state ^ state >> 16) * <uint32_t>0x85EBCA6B
    state = (state ^ state >> 13) * <uint32_t>0xC2B2AE35
    return state ^ state >> 16


cdef bytes low_bytes(str text):
    # pymemcache hashes the lowest byte of each character.
    return bytes([ord(character) & 0xFF for character in text])


cdef Node make_node(object name):
    cdef Node node = Node.__new__(Node)
    cdef bytes text = low_bytes(f"{name}-")
    cdef size_t words = len(text) // 4
    node.name = name
    node.length = len(text)
    node.state = with_words(0, <const unsigned char *>PyBytes_AS_STRING(text), words)
    node.rest = text[4 * words:]
    return node


cdef object winner(tuple nodes, unsigned char *key, size_t length):
    # The name of the key's node. Before the key there are 4 free bytes.
    cdef Node node
    cdef object best = None
    cdef int64_t most = -1
    cdef uint32_t score
    cdef size_t rest
    for node in nodes:
        rest = PyBytes_GET_SIZE(node.rest)
        memcpy(key - rest, PyBytes_AS_STRING(node.rest), rest)
        score = finished(node.state, key - rest, rest + length, node.length + length)
        if score > most:
            most = score
            best = node.name
        elif score == most:
            best = max(str(node.name), str(best))
    return best


cdef class RendezvousHash:
    """RendezvousHash(nodes=())
--

    The node of a key has the highest hash of node and key: a node that comes or goes moves only its own keys.

    Places keys where pymemcache.client.rendezvous.RendezvousHash does. A str and the bytes of the same text are not the
    same key, as there. Thread-safe.
    """

    def __init__(self, nodes=()):
        self._nodes = ()
        for node in nodes:
            self.add_node(node)

    def __reduce__(self):
        return type(self), (self.nodes,)

    @property
    def nodes(self):
        """The names of the nodes, in a list."""
        return [(<Node>node).name for node in self._nodes]

    def add_node(self, node):
        """Adds a node by its name, unless present."""
        if node not in self.nodes:
            self._nodes = (*self._nodes, make_node(node))

    def remove_node(self, node):
        """Removes a node. Raises ValueError for an unknown node."""
        if node not in self.nodes:
            raise ValueError(f"No such node {node} to remove")
        self._nodes = tuple([one for one in self._nodes if (<Node>one).name != node])

    def get_node(self, key):
        """Returns the name of the node of a key, or None when there is no node."""
        cdef str text = key if type(key) is str else repr(key) if isinstance(key, bytes) else str(key)
        cdef const char *data
        cdef Py_ssize_t length
        cdef unsigned char room[KEY_ROOM]
        cdef unsigned char *copied = room
        cdef bytes narrow
        if PyUnicode_IS_ASCII(text):
            data = PyUnicode_AsUTF8AndSize(text, &length)
        else:
            narrow = low_bytes(text)
            data = PyBytes_AS_STRING(narrow)
            length = PyBytes_GET_SIZE(narrow)
        if length + 4 > KEY_ROOM:
            copied = <unsigned char *>PyMem_Malloc(length + 4)
            if copied == NULL:
                raise MemoryError
        try:
            memcpy(copied + 4, data, length)
            return winner(self._nodes, copied + 4, length)
        finally:
            if copied != room:
                PyMem_Free(copied)
