"""``python -m rmemcached``: the daemon."""

import sys

from rmemcached.cli import main

sys.exit(main())
