"""bytes objects for large values, whose memory is there already.

The kernel fills each page of new memory with zeros when it is first touched, which takes several times as long as to
copy a value there. malloc gives memory of this size back to the system, so that a loop that gets several large values
and drops them has new pages each time. So those are kept that lie where a value of their size was dropped before. One
that nobody else has any more becomes the next value of its size. (io.BytesIO does the same with its own.) For a
program that gathers values nothing is kept the first time.

With the GIL. Without one nobody can say that an object has no other owner: nothing is kept there.
"""

cdef enum:
    RESULT_MIN = 1 << 18     # bytes of the smallest that is kept
    RESULTS_MOST = 1 << 27   # bytes of all that are kept, of the process, whether somebody else has them or not

# Without its content.
cdef bytes new_result(size_t length)
# Keeps none of those that are there.
cdef void drop_results() noexcept
