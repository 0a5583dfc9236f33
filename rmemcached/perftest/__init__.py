"""rmemcached-perftest: latency and bandwidth of SEND, WRITE and READ over any device; see docs/soft-rnic.md.

`command` has the options and the output, `session` the conversation of two processes and a test's course, `ends` the
queue pairs and the measured loops, `bare` what to compare with: cache lines, memcpy and TCP.
"""
