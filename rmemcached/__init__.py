"""memcached with an RDMA transport.

The daemon is started by the console script ``rmemcached`` (:mod:`rmemcached.cli`); the client is
:class:`rmemcached.client.Client`. Importing this package has no side effect.
"""

__version__ = "0.1.0"

MEMCACHED_VERSION = "1.6.45"
"""The memcached whose protocol, flags and statistics the daemon follows."""
