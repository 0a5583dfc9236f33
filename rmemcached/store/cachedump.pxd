"""The answer to `stats cachedump`: the keys at the head of a class's COLD queue. store.pxd declares the function."""
