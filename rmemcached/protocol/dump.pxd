"""The lines of `lru_crawler metadump` and `lru_crawler mgdump`. memcached: crawler.c.

Called by `server/dumps`, in the store's crawler thread; `admin_lru` names the kind.
"""

from libc.stdint cimport int64_t

from rmemcached.store.store cimport item

cdef enum dump_kind:
    DUMP_META                # metadump: key=... exp=... la=... cas=... fetch=... cls=... size=... flags=...
    DUMP_MG                  # mgdump: an mg command for the item

cdef enum:
    DUMP_LINE_MAX = 1024     # bytes of a line: 750 of key and 200 of the rest

# Writes the line of an item, whose item lock the caller holds, into DUMP_LINE_MAX bytes. started: Unix time of
# rel_time_t 0. Returns the end.
cdef char *dump_line(dump_kind kind, item *it, int64_t started, char *out) noexcept nogil
# The last line of a dump.
cdef const char *dump_end(dump_kind kind) noexcept nogil
