"""libibverbs as a provider (see system.pxd). Its functions are found by dlsym, so nothing is linked with it.

Most entries of the table are the library's own functions. Two differ. get_device_list returns an empty list when the
library fails with ENOSYS, on a kernel without RDMA, or with EPERM; and leaves out the software devices of a process
under rmemcached-verbs. query_port sets the structure to zeros first: the
symbol ibv_query_port is the function for programs from before 2018, and fills only the structure's older part.
"""

from libc.errno cimport ENOSYS, EPERM, errno
from libc.stdint cimport uint8_t
from libc.string cimport memset

from rmemcached.sys.debug cimport assert_held
from rmemcached.sys.linux cimport (
    RTLD_LOCAL, RTLD_NOW, dlclose, dlopen, dlsym, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from rmemcached.verbs.verbs cimport ibv_context, ibv_device, ibv_port_attr

cdef extern from *:
    """
    static pthread_mutex_t rmc_system_lock = PTHREAD_MUTEX_INITIALIZER;
    """
    pthread_mutex_t bind_lock "rmc_system_lock"

ctypedef ibv_device **(*get_device_list_fn)(int *num) noexcept nogil
ctypedef void (*free_device_list_fn)(ibv_device **devices) noexcept nogil
ctypedef int (*query_port_fn)(ibv_context *context, uint8_t port, ibv_port_attr *out) noexcept nogil

# Written under bind_lock until `bound` is set; constant afterwards.
cdef verbs_provider table
cdef bint bound = False
cdef get_device_list_fn lib_get_device_list
cdef free_device_list_fn lib_free_device_list
cdef query_port_fn lib_query_port
# The empty list for a failed call; free_device_list does not free it.
cdef ibv_device *no_devices[1]


cdef void leave_out_soft(ibv_device **devices, int *num) noexcept nogil:
    """Takes devices unknown to the kernel out of the list: rmemcached-verbs' library allows changes of its list."""
    cdef int kept = 0
    cdef int i = 0
    while devices[i] != NULL:
        if devices[i].ibdev_path[0]:
            devices[kept] = devices[i]
            kept += 1
        i += 1
    devices[kept] = NULL
    if num != NULL:
        num[0] = kept


cdef ibv_device **system_get_device_list(int *num) noexcept nogil:
    cdef ibv_device **devices = lib_get_device_list(num)
    if devices == NULL and (errno == ENOSYS or errno == EPERM):
        if num != NULL:
            num[0] = 0
        no_devices[0] = NULL
        return no_devices
    if devices != NULL:
        leave_out_soft(devices, num)
    return devices


cdef void system_free_device_list(ibv_device **devices) noexcept nogil:
    if devices != NULL and devices != no_devices:
        lib_free_device_list(devices)


cdef int system_query_port(ibv_context *context, uint8_t port_num, ibv_port_attr *out) noexcept nogil:
    memset(out, 0, sizeof(ibv_port_attr))
    return lib_query_port(context, port_num, out)


cdef bint find(void *library, const char *name, void **out) noexcept nogil:
    out[0] = dlsym(library, name)
    return out[0] != NULL


cdef bint bind(void *library) noexcept nogil:
    """Fills the table; False if the library lacks a function."""
    assert_held(&bind_lock)
    table.name = b"system"
    table.get_device_list = system_get_device_list
    table.free_device_list = system_free_device_list
    table.query_port = system_query_port
    return (
        find(library, b"ibv_get_device_list", <void **>&lib_get_device_list)
        and find(library, b"ibv_free_device_list", <void **>&lib_free_device_list)
        and find(library, b"ibv_query_port", <void **>&lib_query_port)
        and find(library, b"ibv_get_device_name", <void **>&table.get_device_name)
        and find(library, b"ibv_open_device", <void **>&table.open_device)
        and find(library, b"ibv_close_device", <void **>&table.close_device)
        and find(library, b"ibv_query_device", <void **>&table.query_device)
        and find(library, b"ibv_query_gid", <void **>&table.query_gid)
        and find(library, b"ibv_alloc_pd", <void **>&table.alloc_pd)
        and find(library, b"ibv_dealloc_pd", <void **>&table.dealloc_pd)
        and find(library, b"ibv_reg_mr", <void **>&table.reg_mr)
        and find(library, b"ibv_dereg_mr", <void **>&table.dereg_mr)
        and find(library, b"ibv_create_comp_channel", <void **>&table.create_comp_channel)
        and find(library, b"ibv_destroy_comp_channel", <void **>&table.destroy_comp_channel)
        and find(library, b"ibv_create_cq", <void **>&table.create_cq)
        and find(library, b"ibv_destroy_cq", <void **>&table.destroy_cq)
        and find(library, b"ibv_get_cq_event", <void **>&table.get_cq_event)
        and find(library, b"ibv_ack_cq_events", <void **>&table.ack_cq_events)
        and find(library, b"ibv_create_qp", <void **>&table.create_qp)
        and find(library, b"ibv_modify_qp", <void **>&table.modify_qp)
        and find(library, b"ibv_query_qp", <void **>&table.query_qp)
        and find(library, b"ibv_destroy_qp", <void **>&table.destroy_qp)
        and find(library, b"ibv_wc_status_str", <void **>&table.wc_status_str)
        and find(library, b"ibv_query_pkey", <void **>&table.query_pkey)
        and find(library, b"ibv_get_async_event", <void **>&table.get_async_event)
        and find(library, b"ibv_ack_async_event", <void **>&table.ack_async_event)
        and find(library, b"ibv_resize_cq", <void **>&table.resize_cq)
        and find(library, b"ibv_create_srq", <void **>&table.create_srq)
        and find(library, b"ibv_modify_srq", <void **>&table.modify_srq)
        and find(library, b"ibv_query_srq", <void **>&table.query_srq)
        and find(library, b"ibv_destroy_srq", <void **>&table.destroy_srq)
        and find(library, b"ibv_event_type_str", <void **>&table.event_type_str)
    )


cdef const verbs_provider *system_provider(const char **why) noexcept nogil:
    global bound
    cdef void *library
    why[0] = NULL
    pthread_mutex_lock(&bind_lock)
    if not bound:
        library = dlopen(b"libibverbs.so.1", RTLD_NOW | RTLD_LOCAL)
        if library == NULL:
            why[0] = b"libibverbs.so.1 is not installed"
        elif not bind(library):
            dlclose(library)
            why[0] = b"libibverbs.so.1 lacks functions that are needed"
        else:
            bound = True
    pthread_mutex_unlock(&bind_lock)
    return &table if why[0] == NULL else NULL
