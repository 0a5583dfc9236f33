"""A check of the whole store, for tests and debug builds. Slow."""

from rmemcached.store.store cimport store

# Takes all locks and checks every structure. NULL, or what is wrong. at_rest: nobody has a reference, so that every
# used chunk must belong to a linked item.
cdef const char *store_check(store *s, bint at_rest) noexcept nogil
