cdef uint32_t pace_note(rdma_pace *pace, int64_t now) noexcept nogil:
    cdef uint32_t longest = 0
    cdef uint32_t second = 0
    cdef uint32_t gap
    cdef int i
    if pace.served == 0:
        for i in range(PACE_GAPS):
            pace.gaps[i] = UINT32_MAX
    else:
        pace.gaps[pace.next % PACE_GAPS] = <uint32_t>min(max(now - pace.served, <int64_t>0), <int64_t>UINT32_MAX)
        pace.next += 1
    pace.served = now
    for i in range(PACE_GAPS):
        gap = pace.gaps[i]
        if gap > longest:
            second = longest
            longest = gap
        elif gap > second:
            second = gap
    return second
