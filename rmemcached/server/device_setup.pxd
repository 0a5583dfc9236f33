"""The RDMA devices that a daemon opens at its start, as its Settings ask for them. The main thread."""

from rmemcached.server.layout cimport server

# Opens the software devices and, on TCP, one of the system's; takes connections of rdma_cm if that is asked for.
# Raises ServerError. sockets: Listeners. shm_path: where the streams of soft_shm meet; None: there is no soft_shm.
# device_name: bytes, which live as long as the devices; None: any.
cdef void setup_devices(server *s, settings, sockets, shm_path, bytes device_name) except *
