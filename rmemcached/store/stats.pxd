"""Statistics, put together from the counters of all parts. All functions are public (store.pxd)."""
