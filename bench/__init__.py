"""Benchmarks of rmemcached beside memcached, and the command rmemcached-bench. docs/benchmarks.md has the method."""
