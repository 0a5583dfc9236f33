"""`python -m rmemcached.perftest` is rmemcached-perftest."""

import sys

from rmemcached import import_error

try:
    from rmemcached.perftest.command import main
except ModuleNotFoundError as error:
    sys.exit(str(import_error(error)))

sys.exit(main())
