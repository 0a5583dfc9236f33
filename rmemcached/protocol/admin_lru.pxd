"""The commands `lru` and `lru_crawler`, with the dumps of `lru_crawler`. memcached: proto_text.c.

Called by `admin` alone. As in memcached, a subcommand may be cut short ("lru_crawler c all"), and noreply is ignored.
"""

from rmemcached.protocol.conn cimport conn
from rmemcached.protocol.parse cimport token

# lru tune ... | mode flat|segmented | temp_ttl <seconds; negative: no TEMP queue>
cdef void process_lru_command(conn *c, const token *t, int n) noexcept nogil
# lru_crawler crawl <classes|all> | metadump|mgdump <classes|all|hash> | tocrawl <items; 0: all>
#     | sleep <microseconds> | enable | disable
cdef void process_lru_crawler_command(conn *c, const token *t, int n) noexcept nogil
