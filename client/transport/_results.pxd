"""bytes objects for large values, in memory whose pages the kernel has filled before.

The kernel fills each page of new memory with zeros at the first touch. This takes several times as long as copying a
value there. malloc gives memory of this size back to the system. So a loop that gets several large values and drops
them has new pages each time. This module keeps an object if a value of the same size was dropped at its place before. A
kept object without another owner becomes the next value of its size. (io.BytesIO does the same with its own buffer.)
So a program that drops no values makes this module keep nothing.

The functions need the GIL. In a Python without a GIL nobody can tell whether an object has another owner: nothing is
kept.
"""

cdef enum:
    RESULT_MIN = 1 << 18     # bytes of the smallest object kept
    RESULTS_MOST = 1 << 27   # bytes of all kept objects of the process, with or without another owner

# Returns a bytes object for the caller to fill: a new object, or a kept one without another owner.
cdef bytes new_result(size_t length)
# Drops all kept objects; values that the program still has remain valid. For Client.close.
cdef void drop_results() noexcept
