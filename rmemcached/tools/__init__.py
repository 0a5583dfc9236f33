"""Commands for operators: they use the daemon as clients do."""
