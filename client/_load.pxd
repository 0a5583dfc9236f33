# The load generator; nothing of it is called from C.
include "_load_reads.pxd"
