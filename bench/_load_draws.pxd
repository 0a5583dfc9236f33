# Draws: the key, its sizes, and the command of a request.

cdef uint64_t mix64(uint64_t x) noexcept nogil
cdef double fraction(load *l) noexcept nogil
cdef uint32_t draw_rank(load *l) noexcept nogil
cdef uint32_t draw(load *l) noexcept nogil
cdef unsigned int draw_kind(load *l) noexcept nogil
cdef double exponential(load *l, double mean) noexcept nogil
cdef void prepare_draws(load *l) noexcept
cdef size_t key_size_of(const load *l, uint32_t number) noexcept nogil
cdef size_t value_size_of(const load *l, uint32_t number) noexcept nogil
cdef const void *table_of(object quantiles, str typecode) except? NULL
