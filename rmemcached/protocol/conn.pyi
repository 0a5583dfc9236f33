memcached_version: str
