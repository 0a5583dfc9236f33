"""memcached's protocol: commands are written into a stream, and replies are read from it."""
