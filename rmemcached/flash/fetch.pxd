"""Gets of headers: a reader (io.pxd) reads the value into an unlinked item of the store, for the waiting reply. A short
value in a write buffer or in the page cache needs no wait: the worker reads it by itself.

A fetch takes the value's place from the header and keeps the page, both with the item lock held. From then on the place
keeps its value, also if a compaction gives the header another place. The worker of the connection begins and completes
a fetch.
"""

# external_values.fetch
cdef external_result flash_fetch(void *arg, conn *c, mc_resp *resp, item *it) noexcept nogil
