"""A store's beginning and end, and its settings. All functions are public (store.pxd)."""
