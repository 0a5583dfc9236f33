# The secrets, which the kernel gives when the process starts.
cdef bytes _random = os.urandom(sizeof(store_secrets))
memcpy(&store_secrets, <const char *>_random, sizeof(store_secrets))
store_secrets.low |= 1
_random = None
