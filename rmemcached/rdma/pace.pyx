cdef bint pace_tries(rdma_pace *pace) noexcept nogil:
    """Whether a gap beyond the limit is polled through."""
    if pace.trying:
        pace.trying -= 1
        return True
    pace.untried += 1
    if pace.untried < pace.every:
        return False
    pace.untried = 0
    pace.every = min(2 * pace.every, <uint32_t>PACE_TRY_RARE)
    pace.trying = PACE_GAPS - 1
    return True


cdef uint32_t pace_gap(rdma_pace *pace, int64_t limit) noexcept nogil:
    """The gap to poll through: the second longest of the last gaps. UINT32_MAX: the gaps are too long for polling."""
    cdef uint32_t longest = 0
    cdef uint32_t second = 0
    cdef uint32_t gap
    cdef int i
    for i in range(PACE_GAPS):
        gap = pace.gaps[i]
        if gap > longest:
            second = longest
            longest = gap
        elif gap > second:
            second = gap
    if second <= (limit + limit // 2 if pace.polled else limit):
        pace.every = PACE_TRY_FIRST
        pace.untried = 0
        pace.polled = True
    else:
        pace.polled = second <= PACE_TRY_GAP * limit and pace_tries(pace)
    return second if pace.polled else UINT32_MAX


cdef uint32_t pace_note(rdma_pace *pace, int64_t now, int64_t limit) noexcept nogil:
    cdef int i
    if pace.served == 0:
        for i in range(PACE_GAPS):
            pace.gaps[i] = UINT32_MAX
        pace.every = PACE_TRY_FIRST
    else:
        pace_begin(pace, now)
        pace.gaps[pace.next % PACE_GAPS] = <uint32_t>min(pace.waited, <int64_t>UINT32_MAX)
        pace.next += 1
    pace.served = now
    pace.waited = 0
    pace.expected = pace_gap(pace, limit)
    return pace.expected


cdef inline void pace_begin(rdma_pace *pace, int64_t now) noexcept nogil:
    if pace.served:
        pace.waited = max(pace.waited, now - pace.served)


cdef inline uint32_t pace_end(rdma_pace *pace, int64_t now) noexcept nogil:
    if pace.served == 0:
        return UINT32_MAX
    pace.served = now
    return pace.expected
