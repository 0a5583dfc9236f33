"""Parts of the daemon for Python tests: its devices, with registrations as slow as the test likes; a worker's epoll
data; the pace of a connection; and the limit of connections. Not an interface."""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport UINT32_MAX, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from rmemcached.direct cimport direct_bytes
from rmemcached.protocol.stats_text cimport stat_buf
from rmemcached.rdma.device cimport MAX_EXTENTS, MAX_INDEX, RDMA_DEVICES
from rmemcached.rdma.transport cimport transport_of
from rmemcached.rdma.wire cimport RDMA_TRANSPORTS, TRANSPORT_SOFT_IW, transport_name
from rmemcached.rdma_conn cimport pace_begin, pace_end, pace_note, rdma_pace
from rmemcached.server.devices cimport (
    devices_close, devices_extent_added, devices_init, devices_open, devices_stats, rdma_devices,
)
from rmemcached.server.layout cimport MAIN_FDS, server
from rmemcached.server.listener cimport admit_lane
from rmemcached.server.udp cimport UDP_TAG
from rmemcached.server.worker cimport (
    EVENT_CHANNEL, EVENT_CONNECTION, EVENT_QUEUE, EVENT_SOFT, EVENT_UDP, QUEUE_DATA, channel_bit, channel_data,
    event_kind,
)
from rmemcached.store.store cimport ARENA_EXTENT
from rmemcached.sys.atomics cimport fetch_sub
from rmemcached.sys.linux cimport (
    EFD_CLOEXEC, MAP_ANONYMOUS, MAP_FAILED, MAP_NORESERVE, MAP_PRIVATE, PROT_NONE, epoll_event, eventfd,
    eventfd_clear, eventfd_signal, mmap, munmap,
)
from rmemcached.verbs.port cimport GID_ANY, port_spec
from rmemcached.verbs.soft cimport SOFT_EVENT, soft_provider
from rmemcached.verbs.verbs cimport ibv_mr, ibv_pd, verbs_provider

cdef int began = eventfd(0, EFD_CLOEXEC)        # a registration waits
cdef int proceed = eventfd(0, EFD_CLOEXEC)      # the registration may go on
cdef verbs_provider slow = soft_provider()[0]


cdef ibv_mr *register_slowly(ibv_pd *pd, void *addr, size_t length, int access) noexcept nogil:
    """Registers as slowly as a device of the system, which pins every page."""
    eventfd_signal(began)
    eventfd_clear(proceed)
    return soft_provider().reg_mr(pd, addr, length, access)

slow.reg_mr = register_slowly


@cython.final
cdef class Devices:
    """The devices of a daemon with soft_iw only. A test has one object at a time."""
    cdef rdma_devices d
    cdef void *memory

    def __cinit__(self):
        cdef port_spec spec
        cdef char why[256]
        devices_init(&self.d)
        memset(&spec, 0, sizeof(spec))
        spec.device = b"soft_iw0"
        spec.gid_index = GID_ANY
        self.d.limits.credits = self.d.limits.ird = self.d.limits.ord = 16
        self.d.limits.msgsize = 4096
        self.memory = mmap(NULL, ARENA_EXTENT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.memory == MAP_FAILED:
            raise MemoryError
        if not devices_open(&self.d, &slow, &spec, TRANSPORT_SOFT_IW, NULL, why, sizeof(why)):
            raise OSError((<bytes>why).decode())

    def __dealloc__(self):
        devices_close(&self.d)
        if self.memory != MAP_FAILED:
            munmap(self.memory, ARENA_EXTENT)

    def add_extent(self):
        """Adds item memory. Returns when the memory is registered."""
        with nogil:
            devices_extent_added(&self.d, self.memory, ARENA_EXTENT)

    def await_registration(self):
        """Waits for the beginning of a registration, which then waits for `proceed`."""
        with nogil:
            eventfd_clear(began)

    def proceed(self):
        eventfd_signal(proceed)

    def stats(self):
        """The text of `stats rdma`."""
        cdef stat_buf out
        memset(&out, 0, sizeof(out))
        with nogil:
            devices_stats(&self.d, &out)
        text = out.data[:out.used]
        free(out.data)
        return text


def channel_events():
    """Each device's completion channel: its epoll data, and the device's bit as read by a worker."""
    cdef epoll_event event
    found = []
    for k in range(<unsigned int>RDMA_DEVICES):
        event.data.u64 = channel_data(k)
        found.append((event.data.u64, channel_bit(&event)))
    return found


def event_kind_of(uint64_t data):
    """The kind, of EVENT_KINDS, of an event with these epoll data."""
    cdef epoll_event event
    event.data.u64 = data
    return <int>event_kind(&event)


EVENT_KINDS = {
    "queue": <int>EVENT_QUEUE, "channel": <int>EVENT_CHANNEL, "soft": <int>EVENT_SOFT, "udp": <int>EVENT_UDP,
    "connection": <int>EVENT_CONNECTION,
}
# The epoll data of the worker's queue, and the tags of epoll data with an address.
QUEUE = <uint64_t>QUEUE_DATA
TAGS = {"soft": <uint64_t>SOFT_EVENT, "udp": <uint64_t>UDP_TAG}


# The most registrable parts of an index, and the extents of the index when all registrable item memory is in use.
INDEX_PARTS = <unsigned int>MAX_INDEX
INDEX_EXTENTS = direct_bytes(<uint64_t>MAX_EXTENTS * ARENA_EXTENT) // <uint64_t>ARENA_EXTENT

# Each transport's two names: the name in its row, and the name for its number on the wire.
TRANSPORT_NAMES = [(transport_of(number).name.decode(), transport_name(number).decode())
                   for number in range(RDMA_TRANSPORTS)]


cdef class Pace:
    cdef rdma_pace pace

    def __cinit__(self):
        memset(&self.pace, 0, sizeof(self.pace))

    def note(self, now, limit):
        """The gap to poll through after a request, in nanoseconds; None: no polling. now, limit: nanoseconds."""
        cdef uint32_t gap = pace_note(&self.pace, now, limit)
        return None if gap == UINT32_MAX else gap

    def begin(self, now):
        pace_begin(&self.pace, now)

    def end(self, now):
        """Notes the end of a service. Returns the gap as `note` does."""
        cdef uint32_t gap = pace_end(&self.pace, now)
        return None if gap == UINT32_MAX else gap


@cython.final
cdef class Connections:
    """A daemon without connections, with room for `room` connections."""
    cdef server s

    def __cinit__(self, int room):
        memset(&self.s, 0, sizeof(self.s))
        self.s.settings.maxconns = MAIN_FDS + room

    def come_and_go(self, unsigned int times):
        """Admits `times` lanes, and ends each before the next. Any thread."""
        with nogil:
            while times:
                times -= 1
                if admit_lane(&self.s):
                    fetch_sub(&self.s.curr_connections, 1)

    @property
    def most(self):
        """The most connections there were at a time."""
        return self.s.most_connections

    @property
    def rejected(self):
        return self.s.rejected_connections
