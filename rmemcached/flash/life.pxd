"""The beginning and end of external storage, and its hooks for the store. flash.pxd declares all functions."""
