"""A check of the whole store, for tests and debug builds. Slow."""

from rmemcached.store.store cimport store

# Takes all locks and checks every structure. Returns the first error, or NULL. at_rest: nobody has a reference, so
# every used chunk must belong to a linked item.
cdef const char *store_check(store *s, bint at_rest) noexcept nogil
