"""Benchmarks beside memcached, and the command rmemcached-bench. docs/benchmarks.md says how they measure."""
