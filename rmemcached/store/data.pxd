"""The data bytes of an item, in one run or in the chunks of a chain. The caller owns the item, or has a reference.

store.pxd declares item_iov.
"""

# Writes length bytes at data byte offset.
cdef void data_write(item *it, size_t offset, const char *src, size_t length) noexcept nogil
# Copies the first length data bytes of src to data byte offset of dst.
cdef void data_copy(item *dst, size_t offset, item *src, size_t length) noexcept nogil
