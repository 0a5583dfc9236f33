"""memcached with an RDMA transport.

The daemon is started by the console script ``rmemcached`` (:mod:`rmemcached.cli`); the client is
:class:`rmemcached.client.Client`. Importing this package has no side effect.
"""

__version__ = "0.1.0"

MEMCACHED_VERSION = "1.6.45"
"""The memcached whose protocol, flags and statistics the daemon follows."""

VERSIONS = f"memcached {MEMCACHED_VERSION} (rmemcached {__version__})"
"""The beginning of the output of -V, -h and -i. Scripts take the second word as memcached's version."""


def import_error(error: ModuleNotFoundError) -> ImportError:
    """The error to raise when a module of the package is missing: in a clone without a build the text says so."""
    if error.name is None or not error.name.startswith("rmemcached."):
        return error
    folder = __path__[0]
    return ImportError(
        f"rmemcached in {folder} is not built for this Python ({error}): run script/build or pip install -e . there, "
        "or start Python elsewhere, or with -P, for a rmemcached that is installed",
        name=error.name,
    )
