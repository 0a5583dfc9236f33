"""The settings of the command line, from the Python Settings object into structures of C. The main thread."""

from rmemcached.flash.flash cimport flash_config
from rmemcached.protocol.conn cimport protocol
from rmemcached.server.layout cimport settings
from rmemcached.store.store cimport store_config

# `wanted` is a Settings object. Returns the owner of the memory behind the pointers in `out`, to be kept as long as
# `out`.
cdef object fill_settings(settings *out, wanted)
# Fills the settings of the store, for store_create.
cdef void fill_store_config(store_config *out, wanted) except *
# Fills the configuration of external storage. Returns the owner of the names of files, to be kept as long as `out` and
# what is made of it.
cdef object fill_flash_config(flash_config *out, wanted)
# Returns the protocol for its name in Settings or in a Listener.
cdef protocol named_protocol(name)
