# Draws: the key, its sizes, and the command of a request. A draw changes load.random, so a seed decides all draws.

# Mixes the bits of a number: equal numbers give equal results, and different numbers different results.
cdef uint64_t mix64(uint64_t x) noexcept nogil
# Draws a number between 0 and 1, both excluded.
cdef double fraction(load *l) noexcept nogil
# Draws the rank of a key by its popularity, from 0 on.
cdef uint32_t draw_rank(load *l) noexcept nogil
# Draws the number of a key.
cdef uint32_t draw(load *l) noexcept nogil
# Draws the kind of a request; load.only, if the load has a single kind.
cdef unsigned int draw_kind(load *l) noexcept nogil
# Draws from an exponential distribution with this mean, for times between requests.
cdef double exponential(load *l, double mean) noexcept nogil
# Computes the constants for draw and draw_rank from `keys` and `exponent`. Load's constructor calls this function.
cdef void prepare_draws(load *l) noexcept
# The sizes of a key and of its value, in bytes. A key's number decides both.
cdef size_t key_size_of(const load *l, uint32_t number) noexcept nogil
cdef size_t value_size_of(const load *l, uint32_t number) noexcept nogil
# The memory of an array of QUANTILES sizes, which the Load keeps alive; NULL for None: the sizes do not vary. Raises
# ValueError for any other object.
cdef const void *table_of(object quantiles, str typecode) except? NULL
