"""The commands for storing a value or changing a number. memcached: memcached.c, do_store_item and do_add_delta.

All functions are public (store.pxd).
"""
