"""The RDMA devices wanted by a daemon's Settings, opened at its start. The main thread."""

from rmemcached.server.layout cimport server

# Opens the software devices and, on TCP, a device of the system; takes connections of rdma_cm if the settings say so.
# Server.start calls it, when the store is made. Raises ServerError. sockets: Listeners. shm_path: where the clients of
# soft_shm connect; None: nowhere.
# device_name: bytes, kept alive as long as the devices; None: any.
cdef void setup_devices(server *s, settings, sockets, shm_path, bytes device_name) except *
