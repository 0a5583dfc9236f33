"""What the command line said, from the Python Settings object into structures of C. The main thread."""

from rmemcached.protocol.conn cimport protocol
from rmemcached.server.layout cimport settings
from rmemcached.store.store cimport store_config

# `wanted` is a Settings object. Returns what the pointers in `out` point into: it must live as long as they.
cdef object fill_settings(settings *out, wanted)
cdef void fill_store_config(store_config *out, wanted) except *
# Of a name in Settings or of a Listener.
cdef protocol named_protocol(name)
