"""Commands for those who run the daemon."""
