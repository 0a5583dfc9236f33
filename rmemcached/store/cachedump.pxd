"""The answer to `stats cachedump`: the keys at the head of a class's COLD queue; with S3-FIFO of the small queue, then
of the main queue. store.pxd declares the function, store_cachedump.
"""
