"""rmemcached-perftest: latency and bandwidth of SEND, WRITE and READ over any device; see docs/soft-rnic.md.

`command` has the options and the output, `session` the conversation of two processes and the course of a test, `ends`
the queue pairs, `loops` the measured loops, `bare` what to compare with: cache lines, memcpy and TCP.
"""
