# The bytes of requests, and of values. Functions with an `out` write there: the caller has room for KEY_MOST bytes of a
# key, or LINE_MOST of a header. A result size_t is the length written.

# Writes a key: its number behind as many fillers as its size needs.
cdef size_t put_key(const load *l, char *out, uint32_t number, char filler) noexcept nogil
# Writes a number of up to 20 digits. Returns the place behind the digits.
cdef char *put_digits(char *out, uint64_t number) noexcept nogil
# Writes the key of a NEW, which also has the number of the run (load.run).
cdef size_t put_new_key(const load *l, char *out, uint32_t number) noexcept nogil
# The stamp of the value of this key and size: the replies keep it to compare the value.
cdef uint64_t stamp_of(uint32_t number, size_t size) noexcept nogil
# Writes the `size` bytes of a key's value.
cdef void put_value(const load *l, char *out, uint32_t number, size_t size) noexcept nogil
# Compares the bytes p of the value with this stamp, from its byte `at` on. Returns the number of right bytes before the
# first wrong byte; `length`: all are right.
cdef size_t first_wrong(const load *l, uint64_t stamp, size_t at, const char *p, size_t length) noexcept nogil
# Writes the line before a value in the reply to a get, for the comparison with the received line.
cdef size_t put_header(const load *l, char *out, uint32_t number, size_t size) noexcept nogil
# Makes room for a request of any kind at the end of load.out. Returns 0, or -ENOMEM.
cdef int make_room(load *l) noexcept nogil
# Appends a set of a key to load.out, after make_room.
cdef void put_set(load *l, uint32_t number) noexcept nogil
# Draws the next request of a connection with room, appends it to load.out, and counts it as under way: the caller sends
# load.out then. intended: the time from which the latency counts. Returns 0, or -ENOMEM.
cdef int put_request(load *l, connection *c, int64_t intended) noexcept nogil
