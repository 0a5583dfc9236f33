"""The storage commands."""

cdef enum store_mode:
    STORE_SET
    STORE_ADD
    STORE_REPLACE
    STORE_APPEND
    STORE_PREPEND
    STORE_CAS
