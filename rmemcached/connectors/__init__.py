"""Where other people's frameworks find rmemcached: one module for each, imported by nothing but its users."""
