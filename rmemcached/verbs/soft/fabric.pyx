# Devices of the fabrics that soft.pyx lists; see fabric.pxd.


cdef const soft_fabric *fabric_of(const ibv_device *device) noexcept nogil:
    cdef int i
    for i in range(FABRICS):
        if fabrics[i].device == device:
            return fabrics[i]
    return NULL


cdef void fabric_device(ibv_device *device, const char *name, ibv_node_type kind) noexcept nogil:
    device.node_type = kind
    device.transport_type = IBV_TRANSPORT_IWARP if kind == IBV_NODE_RNIC else IBV_TRANSPORT_IB
    snprintf(device.name, sizeof(device.name), b"%s", name)
    snprintf(device.dev_name, sizeof(device.dev_name), b"%s", name)


cdef ibv_device **soft_get_device_list(int *num_devices) noexcept nogil:
    # The last entry stays NULL and ends the list.
    cdef ibv_device **devices = <ibv_device **> calloc(FABRICS + 1, sizeof(ibv_device *))
    cdef int i
    if devices == NULL:
        errno.errno = ENOMEM
        return NULL
    for i in range(FABRICS):
        devices[i] = fabrics[i].device
    if num_devices != NULL:
        num_devices[0] = FABRICS
    return devices


cdef void soft_free_device_list(ibv_device **devices) noexcept nogil:
    free(devices)


cdef const char *soft_get_device_name(ibv_device *device) noexcept nogil:
    return device.name
