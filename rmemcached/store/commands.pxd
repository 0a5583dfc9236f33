"""The commands that store a value or change a number. memcached: memcached.c, do_store_item and do_add_delta.

All of it is public (store.pxd).
"""
