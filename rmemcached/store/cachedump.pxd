"""`stats cachedump`: the keys at the head of a class's COLD queue. Public (store.pxd)."""
