"""Statistics, put together from the counters of all parts. All of it is public (store.pxd)."""
