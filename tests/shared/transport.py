"""Which RDMA transport the tests of the data path use."""

from __future__ import annotations

import os

RDMA = os.environ.get("RMEMCACHED_TEST_TRANSPORT", "soft_iw")
"""A transport of rmemcached.client: the software device's unless the environment names another."""
