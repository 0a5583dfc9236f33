"""bytes objects for large values, in memory with pages already.

The kernel fills each page of new memory with zeros at the first touch. This takes several times as long as copying a
value there. malloc gives memory of this size back to the system. So a loop that gets several large values and drops
them has new pages each time. This module keeps objects in places where a value of the same size was dropped before. A
kept object without another owner becomes the next value of its size. (io.BytesIO does the same with its own.) For a
program that gathers values nothing is kept the first time.

With the GIL. Without a GIL nobody can tell whether an object has another owner: nothing is kept there.
"""

cdef enum:
    RESULT_MIN = 1 << 18     # bytes of the smallest object kept
    RESULTS_MOST = 1 << 27   # bytes of all kept objects of the process, with or without another owner

# A new bytes object, without its content.
cdef bytes new_result(size_t length)
# Drops all kept objects.
cdef void drop_results() noexcept
