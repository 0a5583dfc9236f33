"""`python -m rmemcached.perftest` is rmemcached-perftest."""

import sys

from rmemcached.perftest.command import main

sys.exit(main())
