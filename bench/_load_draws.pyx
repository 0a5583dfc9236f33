# Draws: the key, its sizes, and the command of a request.


cdef uint64_t mix64(uint64_t x) noexcept nogil:
    # A bijection with influence of every bit on all (the finalizer of SplitMix64).
    x += <uint64_t>0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * <uint64_t>0x94D049BB133111EB
    return x ^ (x >> 31)


cdef inline uint64_t chance(load *l) noexcept nogil:
    l.random += <uint64_t>0x9E3779B97F4A7C15
    return mix64(l.random)


cdef double fraction(load *l) noexcept nogil:
    # A random number from 0 to 1, both excluded.
    return ((chance(l) >> 11) + 0.5) / 9007199254740992.0


# --- Zipf's law, by rejection-inversion (Hoermann and Derflinger 1996): exact, for any exponent, without a table ---
#
# H is an antiderivative of x ** -s, with the exponent s. The inverse of H turns a random area into a place x with this
# density, and x is rounded to a rank. A rank's area exceeds the rank's probability: a draw in the excess is repeated.


cdef inline double zipf_area(double x, double s) noexcept nogil:
    # Returns H(x), where H(1) = 0. The computation is stable near s = 1.
    cdef double t = log(x)
    cdef double u = (1 - s) * t
    return t * (expm1(u) / u if fabs(u) > 1e-9 else 1 + u / 2)


cdef inline double zipf_place(double area, double s) noexcept nogil:
    # Returns x of H(x) = area: the inverse of zipf_area.
    cdef double u = max((1 - s) * area, -1.0 + 1e-15)
    return exp(area * (log1p(u) / u if fabs(u) > 1e-9 else 1 - u / 2))


cdef void prepare_zipf(load *l) noexcept nogil:
    # The area is drawn from zipf_first - zipf_span to zipf_first. A place up to zipf_near below its rank is accepted
    # without a further test.
    cdef double s = l.exponent
    l.zipf_first = zipf_area(l.keys + 0.5, s)
    l.zipf_span = l.zipf_first - (zipf_area(1.5, s) - 1)
    l.zipf_near = 2 - zipf_place(zipf_area(2.5, s) - exp(-s * log(2.0)), s)


cdef uint32_t draw_rank(load *l) noexcept nogil:
    cdef double s = l.exponent
    cdef double area, place, rank
    if s == 0:
        return <uint32_t>(((chance(l) >> 32) * l.keys) >> 32)
    while True:
        area = l.zipf_first - fraction(l) * l.zipf_span
        place = zipf_place(area, s)
        rank = min(max(<double><int64_t>(place + 0.5), 1.0), <double>l.keys)
        if rank - place <= l.zipf_near or area >= zipf_area(rank + 0.5, s) - exp(-s * log(rank)):
            return <uint32_t>(rank - 1)


cdef uint32_t draw(load *l) noexcept nogil:
    # The ranks are scattered over the numbers: keys are stored in the order of their numbers, and the order of storing
    # must say nothing about popularity.
    cdef uint64_t rank = draw_rank(l)
    return <uint32_t>(rank * l.scatter % l.keys) if l.exponent else <uint32_t>rank


cdef unsigned int draw_kind(load *l) noexcept nogil:
    cdef uint64_t by_chance
    if l.only != GET:
        return l.only
    if l.below[INCR] == 0:
        return GET
    by_chance = chance(l) >> 32
    if by_chance < l.below[SET]:
        return SET
    if by_chance < l.below[DELETE]:
        return DELETE
    return INCR if by_chance < l.below[INCR] else GET


cdef double exponential(load *l, double mean) noexcept nogil:
    return -mean * log(fraction(l))


cdef void prepare_draws(load *l) noexcept:
    # `keys` and the factor (a prime, or 1) have no common divisor, so all ranks have different numbers.
    l.scatter = 2654435761 if l.keys % 2654435761 else 1
    if l.exponent:
        prepare_zipf(l)


# --- sizes, determined by a key ---


cdef size_t key_size_of(const load *l, uint32_t number) noexcept nogil:
    return l.key_size if l.key_sizes == NULL else l.key_sizes[mix64(number) >> 48]


cdef size_t value_size_of(const load *l, uint32_t number) noexcept nogil:
    return l.value_size if l.value_sizes == NULL else l.value_sizes[mix64(number) & (QUANTILES - 1)]


cdef const void *table_of(object quantiles, str typecode) except? NULL:
    # Returns NULL if the sizes do not vary.
    if quantiles is None:
        return NULL
    if not isinstance(quantiles, array) or quantiles.typecode != typecode or len(quantiles) != QUANTILES:
        raise ValueError(f"a distribution of sizes is an array({typecode!r}) of {QUANTILES} quantiles")
    return <const void *><size_t>quantiles.buffer_info()[0]
