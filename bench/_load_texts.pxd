# The bytes of requests, and of values. put_set (after make_room) and put_request write at the end of load.out.

cdef size_t put_key(const load *l, char *out, uint32_t number, char filler) noexcept nogil
cdef char *put_digits(char *out, uint64_t number) noexcept nogil
cdef size_t put_new_key(const load *l, char *out, uint32_t number) noexcept nogil
cdef uint64_t stamp_of(uint32_t number, size_t size) noexcept nogil
cdef void put_value(const load *l, char *out, uint32_t number, size_t size) noexcept nogil
cdef size_t first_wrong(const load *l, uint64_t stamp, size_t at, const char *p, size_t length) noexcept nogil
cdef size_t put_header(const load *l, char *out, uint32_t number, size_t size) noexcept nogil
cdef int make_room(load *l) noexcept nogil
cdef void put_set(load *l, uint32_t number) noexcept nogil
cdef int put_request(load *l, connection *c, int64_t intended) noexcept nogil
