"""See _results.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from rmemcached.sys.linux cimport HUGE_PAGE, MADV_HUGEPAGE, madvise

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define keeps_results 0
    #else
    #define keeps_results 1
    #endif

    static inline void forget_hash(PyObject *value)
    {
    #pragma GCC diagnostic push
    #pragma GCC diagnostic ignored "-Wdeprecated-declarations"
        ((PyBytesObject *)value)->ob_shash = -1;
    #pragma GCC diagnostic pop
    }
    """
    bint keeps_results
    void forget_hash(PyObject *value) noexcept

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)

cdef enum:
    KEPT_MOST = 256          # objects kept at most
    SEEN_MOST = 256          # places of objects made lately
    FREE_MOST = 8            # an unused object is dropped after so many new objects of unfit sizes,
    VAIN_MOST = 1024         # ... and an object in use after so many, to make room for keeping others

cdef struct place:
    const PyObject *at               # an object that may be gone
    size_t length

cdef PyObject *kept[KEPT_MOST]
cdef unsigned int used[KEPT_MOST]    # `fresh_ones` at the last use
cdef unsigned int count = 0
cdef size_t kept_bytes = 0
cdef place seen[SEEN_MOST]
cdef unsigned int made = 0           # entries ever written to `seen`
cdef unsigned int fresh_ones = 0     # objects made because no kept object could be used again


cdef bytes fresh(size_t length):
    # Asks for pages of 2 MB, which the kernel fills faster than small pages.
    cdef bytes value = PyBytes_FromStringAndSize(NULL, length)
    cdef size_t begin = (<size_t>PyBytes_AS_STRING(value) + HUGE_PAGE - 1) & ~<size_t>(HUGE_PAGE - 1)
    cdef size_t end = (<size_t>PyBytes_AS_STRING(value) + length) & ~<size_t>(HUGE_PAGE - 1)
    if begin < end:
        madvise(<void *>begin, end - begin, MADV_HUGEPAGE)
    return value


cdef bint comes_again(const PyObject *at, size_t length) noexcept:
    # Whether an earlier object of this size was at this place, and is gone. If not, notes the object.
    global made
    cdef unsigned int i
    for i in range(<unsigned int>SEEN_MOST):
        if seen[i].at == at and seen[i].length == length:
            return True
    seen[made % SEEN_MOST].at = at
    seen[made % SEEN_MOST].length = length
    made += 1
    return False


cdef void keep(bytes value) noexcept:
    # Without room, older objects stay: as a rule they are at lower addresses, and malloc gives back memory above them.
    global count, kept_bytes
    if count < KEPT_MOST and kept_bytes + PyBytes_GET_SIZE(value) <= RESULTS_MOST:
        Py_INCREF(value)
        kept[count] = <PyObject *>value
        used[count] = fresh_ones
        count += 1
        kept_bytes += PyBytes_GET_SIZE(value)


cdef void drop(unsigned int i) noexcept:
    global count, kept_bytes
    cdef PyObject *dropped = kept[i]
    kept_bytes -= PyBytes_GET_SIZE(<bytes>dropped)
    count -= 1
    kept[i] = kept[count]
    used[i] = used[count]
    Py_DECREF(<bytes>dropped)


cdef bytes new_result(size_t length):
    global fresh_ones
    cdef unsigned int i
    cdef bytes value
    if not keeps_results or not RESULT_MIN <= length <= RESULTS_MOST // 2:
        return fresh(length)
    for i in range(count):
        if <size_t>PyBytes_GET_SIZE(<bytes>kept[i]) == length and Py_REFCNT(kept[i]) == 1:
            forget_hash(kept[i])
            used[i] = fresh_ones
            return <bytes>kept[i]
    fresh_ones += 1
    i = 0
    while i < count:
        # Drop objects of sizes no longer needed, and values that the program gathers.
        if fresh_ones - used[i] > <unsigned int>(FREE_MOST if Py_REFCNT(kept[i]) == 1 else VAIN_MOST):
            drop(i)
        else:
            i += 1
    value = fresh(length)
    if comes_again(<PyObject *>value, length):
        keep(value)
    return value


cdef void drop_results() noexcept:
    while count:
        drop(count - 1)
