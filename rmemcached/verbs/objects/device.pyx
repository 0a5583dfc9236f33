"""Devices: their list, their attributes, their asynchronous events."""

import enum

cimport cython
from libc cimport errno
from libc.errno cimport EAGAIN, EINVAL
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from rmemcached.verbs.objects.base cimport Base, failure
from rmemcached.verbs.port cimport GID_ANY, PORT_ANY, verbs_port, verbs_take_port, port_spec
from rmemcached.verbs.soft cimport (
    soft_provider, soft_shm_limit, soft_shm_limits, soft_shm_query, soft_shm_usage, soft_start_progress,
    soft_stop_progress,
)
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport *

from rmemcached.verbs.objects.base import VerbsError


class EventType(enum.IntEnum):
    """The kinds of asynchronous events about an object."""

    CQ_ERR = IBV_EVENT_CQ_ERR
    QP_FATAL = IBV_EVENT_QP_FATAL
    QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR
    QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR
    COMM_EST = IBV_EVENT_COMM_EST
    SQ_DRAINED = IBV_EVENT_SQ_DRAINED
    SRQ_LIMIT_REACHED = IBV_EVENT_SRQ_LIMIT_REACHED
    QP_LAST_WQE_REACHED = IBV_EVENT_QP_LAST_WQE_REACHED


# Events of other kinds are about the device or one of its ports.
cdef frozenset KINDS = frozenset(EventType)


@cython.no_gc_clear
cdef class Context(Base):
    """An open device. `name` is in devices("soft") or devices("system")."""

    def __init__(self, str name="soft_iw0"):
        cdef const char *absent = NULL
        if self.context != NULL:
            raise RuntimeError("already open")
        if not self.open(soft_provider(), name) and not self.open(system_provider(&absent), name):
            raise VerbsError(2, f"no such device: {name}")

    cdef bint open(self, const verbs_provider *provider, str name) except -1:
        cdef int i, count = 0
        cdef ibv_device **found
        if provider == NULL:
            return False
        found = provider.get_device_list(&count)
        if found == NULL:
            raise failure("get_device_list", errno.errno)
        try:
            for i in range(count):
                if provider.get_device_name(found[i]).decode() == name:
                    self.context = provider.open_device(found[i])
                    if self.context == NULL:
                        raise failure(f"open_device {name}", errno.errno)
                    self.p = provider
                    self.name = name
                    return True
        finally:
            provider.free_device_list(found)
        return False

    cdef const verbs_port *route(self) except NULL:
        cdef port_spec spec
        cdef char why[256]
        if self.port.context == NULL:
            memset(&spec, 0, sizeof(spec))
            spec.device = NULL
            spec.port = PORT_ANY
            spec.gid_index = GID_ANY
            self.port.provider = self.p
            self.port.context = self.handle()
            if verbs_take_port(&spec, &self.port, why, sizeof(why)) != 0:
                self.port.context = NULL
                raise VerbsError(19, (<bytes> why).decode())
        return &self.port

    def start_progress(self, unsigned int spin=50):
        """Starts a thread that makes progress for all completion queues of this device.

        The thread serves READs and WRITEs of peers, and makes channels readable, while the program does something else.
        The program takes completions by poll() as before. After work the thread polls for up to `spin` microseconds, as
        long as polling pays, and then sleeps. It ends with stop_progress() or when the device is closed. A child
        process has no such thread. Devices of the system make progress by themselves; for them the call does nothing.
        Raises VerbsError (EALREADY) if there is such a thread.
        """
        cdef ibv_context *context = self.handle()
        cdef int error
        if self.p == soft_provider():
            with nogil:
                error = soft_start_progress(context, spin)
            if error:
                raise failure("start_progress", error)

    def stop_progress(self):
        """Ends the thread of start_progress(), if there is one. No other thread may call start_progress() meanwhile."""
        cdef ibv_context *context = self.handle()
        if self.p == soft_provider():
            with nogil:
                soft_stop_progress(context)

    def limit_windows(self, *, uint32_t pair_regions=256, uint32_t regions=16384, uint64_t pair_bytes=1 << 36,
                      uint64_t bytes=1 << 40, bint paid=False, uint32_t nobody=0xFFFFFFFF):
        """Limits the mappings of peers' memory by this soft_shm0, for each queue pair and in total.

        The program calls it before it attaches a queue pair. READs and WRITEs of regions beyond the limits go through
        the ring. With `paid` the device maps only memory whose pages the peer has touched itself and cannot take back,
        so this process never allocates a page for a peer; a region writable by the peer is then mapped by one queue
        pair only. `nobody` is the user id of peers without a user id in this user namespace: their bells are not rung.
        Raises VerbsError: EINVAL for another device, or limits above 256 regions and 2^40 octets for a queue pair or
        2^46 octets in all; EBUSY if a region is mapped already.
        """
        cdef soft_shm_limits limits
        cdef int error
        limits.pair_regions = pair_regions
        limits.regions = regions
        limits.pair_bytes = pair_bytes
        limits.bytes = bytes
        limits.paid = paid
        limits.nobody = nobody
        if self.p != soft_provider():
            raise failure("limit_windows", EINVAL)
        error = soft_shm_limit(self.handle(), &limits)
        if error:
            raise failure("limit_windows", error)

    def windows(self):
        """A dict: regions and bytes of peers' memory mapped now by this soft_shm0, and number of declined offers."""
        cdef soft_shm_usage usage
        if self.p != soft_provider() or soft_shm_query(self.handle(), &usage) != 0:
            raise failure("windows", EINVAL)
        return {"regions": usage.regions, "bytes": usage.bytes, "declined": usage.declined}

    cdef int release(self) except -1:
        cdef int error
        if self.context != NULL:
            error = self.p.close_device(self.context)
            if error:
                raise failure("close_device", error)
            self.context = NULL
        return 0

    def __dealloc__(self):
        if self.context != NULL:
            self.p.close_device(self.context)

    def query_device(self):
        """The device's limits as a dict, by libibverbs' field names."""
        cdef ibv_device_attr attr
        cdef int error = self.p.query_device(self.handle(), &attr)
        if error:
            raise failure("query_device", error)
        return {
            "max_mr_size": attr.max_mr_size, "max_qp": attr.max_qp, "max_qp_wr": attr.max_qp_wr,
            "max_sge": attr.max_sge, "max_sge_rd": attr.max_sge_rd, "max_cq": attr.max_cq, "max_cqe": attr.max_cqe,
            "max_mr": attr.max_mr, "max_pd": attr.max_pd, "max_qp_rd_atom": attr.max_qp_rd_atom,
            "max_qp_init_rd_atom": attr.max_qp_init_rd_atom, "atomic_cap": attr.atomic_cap,
            "max_srq": attr.max_srq, "max_srq_wr": attr.max_srq_wr, "max_srq_sge": attr.max_srq_sge,
            "device_cap_flags": attr.device_cap_flags, "max_pkeys": attr.max_pkeys,
            "phys_port_cnt": attr.phys_port_cnt, "transport_type": self.context.device.transport_type,
            "node_type": self.context.device.node_type,
        }

    def query_port(self, uint8_t port=1):
        cdef ibv_port_attr attr
        cdef int error = self.p.query_port(self.handle(), port, &attr)
        if error:
            raise failure("query_port", error)
        return {
            "state": attr.state, "active_mtu": attr.active_mtu, "max_msg_sz": attr.max_msg_sz,
            "gid_tbl_len": attr.gid_tbl_len, "lid": attr.lid, "link_layer": attr.link_layer,
        }

    def query_gid(self, uint8_t port=1, int index=0):
        cdef ibv_gid gid
        if self.p.query_gid(self.handle(), port, index, &gid) < 0:
            raise failure("query_gid", errno.errno)
        return bytes(gid.raw[:16])

    def query_pkey(self, uint8_t port=1, int index=0):
        cdef uint16_t key
        if self.p.query_pkey(self.handle(), port, index, &key) < 0:
            raise failure("query_pkey", errno.errno)
        return key

    def async_fileno(self):
        """A descriptor, readable while asynchronous events are pending."""
        return self.handle().async_fd

    def get_async_event(self):
        """Takes and acknowledges an event: (EventType, the QP, CQ or SRQ of the event).

        An event of the device or a port is (its number in libibverbs, this Context). Returns None if there is no event
        and async_fileno() is non-blocking. A software device reports events while it makes progress: a thread waiting
        here makes no progress.
        """
        cdef ibv_context *context = self.handle()
        cdef ibv_async_event event
        cdef void *element
        cdef int result
        with nogil:
            result = self.p.get_async_event(context, &event)
        if result < 0:
            if errno.errno == EAGAIN:
                return None
            raise failure("get_async_event", errno.errno)
        if event.event_type not in KINDS:
            self.p.ack_async_event(&event)
            return int(event.event_type), self
        if event.event_type == IBV_EVENT_CQ_ERR:
            element = event.element.cq.cq_context
        elif event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED:
            element = event.element.srq.srq_context
        else:
            element = event.element.qp.qp_context
        found = EventType(event.event_type), <object> element
        self.p.ack_async_event(&event)
        return found

    cdef ibv_context *handle(self) except NULL:
        if self.context == NULL:
            raise ValueError("the device is closed")
        return self.context


def devices(str provider not None="soft"):
    """Names of the devices of a provider: "soft", or "system" (libibverbs; VerbsError if it is not installed)."""
    cdef int i, count = 0
    cdef const char *absent = NULL
    cdef const verbs_provider *p
    cdef ibv_device **found
    if provider not in ("soft", "system"):
        raise ValueError(f'the provider is "system" or "soft", not {provider!r}')
    p = soft_provider() if provider == "soft" else system_provider(&absent)
    if p == NULL:
        raise VerbsError(2, absent.decode())
    found = p.get_device_list(&count)
    if found == NULL:
        raise failure("get_device_list", errno.errno)
    try:
        return [p.get_device_name(found[i]).decode() for i in range(count)]
    finally:
        p.free_device_list(found)


def event_text(event):
    """The text of an EventType, as from ibv_event_type_str."""
    return soft_provider().event_type_str(<ibv_event_type> <int> event).decode()
