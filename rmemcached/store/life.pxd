"""A store's beginning and end, and its settings. All of it is public (store.pxd)."""
