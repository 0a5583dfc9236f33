"""One end of a measurement: a device, a memory region, a completion queue and queue pairs.

An End belongs to the thread that made it. Its region has two halves: messages leave from the first and arrive in the
second.
"""

from cpython.array cimport array, clone
from libc.errno cimport EINVAL, ENOMEM, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset, strerror

from rmemcached.perftest.loops cimport (
    BATCH, ROOM, STOP_CONTROL, STOP_EVENT, STOP_NOT, STOP_POLL, STOP_POST, STOP_STATUS, best_rate, credit_id, drain,
    flow, give_receives, ping_read, ping_send, ping_write, pong_send, pong_write, serve, side, unlimited,
)
from rmemcached.sys.clock cimport cycles, now_ns
from rmemcached.sys.debug cimport assert_owner, thread_id
from rmemcached.sys.linux cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, POLLIN, POLLRDHUP, PROT_READ, PROT_WRITE, mmap, munmap, set_nonblocking,
)
from rmemcached.verbs.port cimport (
    qp_address, verbs_mtu_bytes, verbs_open_port, verbs_port, verbs_qp_connect, verbs_qp_init, port_spec,
)
from rmemcached.verbs.soft cimport (
    SOFT_ACCESS_SCRATCH, soft_alloc_mr, soft_iw_accept, soft_iw_connect, soft_iw_options, soft_provider,
    soft_shm_attach,
)
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport *

from array import array as new_array
from collections import namedtuple

cdef array template = new_array("Q")


cdef enum:
    PAGE = 4096
    PSN = 0x123456                   # any value: a queue pair is connected once, so no old packets come

OPCODES = {"send": IBV_WR_SEND, "write": IBV_WR_RDMA_WRITE, "read": IBV_WR_RDMA_READ}

# Results of End.run(), for Python.
DONE = STOP_NOT
CONTROL = STOP_CONTROL

cdef double cycle_time = 0


cdef object failed(str what):
    return EndError(f"{what}: {strerror(errno).decode()}")


cdef int started(int result) except -1:
    if result < 0:
        raise failed("the queue pair's stream")
    return 0


cdef array zeros(uint64_t count):
    return clone(template, <Py_ssize_t> count, zero=True)


class EndError(Exception):
    """One line about a failed step."""


class BrokenError(EndError):
    """A work request failed. The peer may know why."""


def seconds_per_cycle():
    """The length of a cycle. The first call measures it, against CLOCK_MONOTONIC, in 20 ms."""
    global cycle_time
    cdef uint64_t first
    cdef int64_t begin, now
    if cycle_time == 0:
        begin = now_ns()
        first = cycles()
        now = begin
        while now - begin < 20000000:
            now = now_ns()
        cycle_time = <double> (now - begin) * 1e-9 / <double> (cycles() - first)
    return cycle_time


cdef class End:
    """An open device with its queue pairs. The constructor raises EndError.

    port, gid_index: 0 and -1 choose the device's best. size: of the longest message. events: sleep instead of polling.
    tx_depth, rx_depth, inline_size: of the tested queue pair. mtu: in bytes, 0 is the port's. reads: the limit of RDMA
    READs under way, 0 is the device's limit. control: descriptor of the connection that ends a loop.
    """

    cdef verbs_port port
    cdef const verbs_provider *p
    cdef ibv_pd *pd
    cdef ibv_mr *mr
    cdef void *memory                # of the region, unless the provider owns it
    cdef ibv_comp_channel *channel
    cdef ibv_cq *cq
    cdef ibv_qp **qps
    cdef int count
    cdef int qps_size                # room in qps, in entries
    cdef int reads
    cdef uint32_t tx_depth
    cdef uint32_t rx_depth
    cdef uint32_t inline_size
    cdef size_t half
    cdef side s
    cdef size_t peer_half
    cdef array begun
    cdef array done
    cdef array times
    cdef double seconds
    cdef bint started
    cdef uint64_t start              # in cycles, as is `end`
    cdef uint64_t end
    cdef readonly str device
    cdef readonly object fabric      # a Fabric, see below
    cdef readonly int mtu

    def __init__(self, str device not None, int port=0, int gid_index=-1, *, int control, size_t size,
                 bint events=False, uint32_t tx_depth=1, uint32_t rx_depth=512, uint32_t inline_size=0, int mtu=0,
                 int reads=0):
        if self.p != NULL:
            raise RuntimeError("already open")
        self.open_port(device, port, gid_index)
        self.choose_mtu(mtu)
        self.reads = reads if reads else 255
        self.tx_depth = tx_depth
        self.rx_depth = rx_depth
        self.inline_size = inline_size
        if max(2 * tx_depth + ROOM, 2 * rx_depth + BATCH) > <uint32_t> self.port.max_qp_wr:
            raise EndError(f"{self.device} has {self.port.max_qp_wr} work requests in a queue: the depth may be "
                           f"{(self.port.max_qp_wr - ROOM) // 2} at most")
        self.make_region(size)
        if events:
            self.channel = self.p.create_comp_channel(self.port.context)
            if self.channel == NULL:
                raise failed("create_comp_channel")
            if set_nonblocking(self.channel.fd) < 0:
                raise failed("completion channel")
        self.cq = self.p.create_cq(self.port.context, min(4 * (tx_depth + rx_depth) + 64, self.port.max_cqe), NULL,
                                   self.channel, 0)
        if self.cq == NULL:
            raise failed("create_cq")
        memset(&self.s, 0, sizeof(self.s))
        self.s.owner = thread_id()
        self.s.control = control
        self.s.watched = POLLIN | POLLRDHUP
        self.s.provider = self.p
        self.s.cq = self.cq
        self.s.channel = self.channel

    cdef int open_port(self, str device, int port, int gid_index) except -1:
        cdef const char *absent = NULL
        cdef port_spec spec
        cdef char why[256]
        cdef bytes name = device.encode()
        memset(&spec, 0, sizeof(spec))
        spec.device = name
        spec.port = port
        spec.gid_index = gid_index
        self.fabric = fabric_of(device)
        self.p = soft_provider() if self.fabric.stream else system_provider(&absent)
        if self.p == NULL:
            raise EndError(absent.decode())
        if verbs_open_port(self.p, &spec, &self.port, why, sizeof(why)) != 0:
            raise EndError((<bytes> why).decode())
        self.device = self.p.get_device_name(self.port.context.device).decode()
        return 0

    cdef int choose_mtu(self, int mtu) except -1:
        cdef int choice = IBV_MTU_256
        if mtu:
            while choice < <int> self.port.mtu and verbs_mtu_bytes(<ibv_mtu> choice) < <unsigned int> mtu:
                choice += 1
            if self.fabric.stream:
                raise EndError(f"{self.device} has no MTU of its own to choose")
            if verbs_mtu_bytes(<ibv_mtu> choice) != <unsigned int> mtu:
                raise EndError(f"an MTU is 256, 512, 1024, 2048 or 4096, and of this port at most "
                               f"{verbs_mtu_bytes(self.port.mtu)}")
            self.port.mtu = <ibv_mtu> choice
        self.mtu = verbs_mtu_bytes(self.port.mtu)
        return 0

    cdef int make_region(self, size_t size) except -1:
        cdef int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
        cdef size_t length
        self.half = (size + PAGE - 1) & ~<size_t> (PAGE - 1)
        length = 2 * self.half
        if self.fabric.iwarp:
            # A WRITE may overwrite the bytes behind its data, as in the value memory of rmemcached's client.
            access |= SOFT_ACCESS_SCRATCH
        if self.fabric.stream:
            self.mr = soft_alloc_mr(self.pd_handle(), length, access)
        else:
            self.memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if self.memory == MAP_FAILED:
                self.memory = NULL
                raise failed(f"memory of {length} bytes")
            self.mr = self.p.reg_mr(self.pd_handle(), self.memory, length, access)
        if self.mr == NULL:
            hint = " (see ulimit -l)" if errno == ENOMEM and not self.fabric.stream else ""
            raise EndError(f"memory region of {length} bytes: {strerror(errno).decode()}{hint}")
        # Touches every page before the measurement.
        memset(self.mr.addr, 0, length)
        return 0

    cdef ibv_pd *pd_handle(self) except NULL:
        if self.pd == NULL:
            self.pd = self.p.alloc_pd(self.port.context)
            if self.pd == NULL:
                raise failed("alloc_pd")
        return self.pd

    def add(self, int tx_depth=0, int rx_depth=0):
        """Makes a queue pair in INIT and returns its index. Tests use the first queue pair.

        The depths are for later queue pairs, whose receives are posted once and stay.
        """
        cdef ibv_qp_init_attr init
        cdef ibv_qp **qps
        cdef ibv_qp *qp
        cdef int i, error
        cdef uint32_t receives = rx_depth if self.count else 2 * self.rx_depth + BATCH
        memset(&init, 0, sizeof(init))
        init.send_cq = self.cq
        init.recv_cq = self.cq
        init.cap.max_send_wr = tx_depth if self.count else 2 * self.tx_depth + ROOM
        init.cap.max_recv_wr = receives
        init.cap.max_send_sge = 1
        init.cap.max_recv_sge = 1
        init.cap.max_inline_data = self.inline_size
        init.qp_type = IBV_QPT_RC
        if self.count == self.qps_size:
            qps = <ibv_qp **> realloc(self.qps, (2 * self.qps_size + 1) * sizeof(ibv_qp *))
            if qps == NULL:
                raise MemoryError
            self.qps = qps
            self.qps_size = 2 * self.qps_size + 1
        qp = self.p.create_qp(self.pd, &init)
        if qp == NULL:
            if errno == EINVAL and self.inline_size:
                raise EndError(f"{self.device} has no queue pair with {self.inline_size} bytes inline: see -I")
            raise failed("create_qp")
        self.qps[self.count] = qp
        self.count += 1
        error = verbs_qp_init(&self.port, qp, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
        if error:
            raise EndError(f"queue pair to INIT: {strerror(error).decode()}")
        if self.count == 1:
            self.prepare(qp)
        while receives:
            i = min(receives, <uint32_t> BATCH)
            self.s.qp = qp
            error = give_receives(&self.s, i)
            if error:
                raise EndError(f"post_recv: {strerror(error).decode()}")
            receives -= i
        self.s.qp = self.qps[0]
        return self.count - 1

    cdef void prepare(self, ibv_qp *qp):
        """Fills in the fields with the same values in all tests."""
        cdef int i
        self.s.qp = qp
        self.s.recv_sge.addr = <uintptr_t> self.mr.addr + self.half
        self.s.recv_sge.length = <uint32_t> self.half
        self.s.recv_sge.lkey = self.mr.lkey
        for i in range(<int> BATCH):
            self.s.recv[i].sg_list = &self.s.recv_sge
            self.s.recv[i].num_sge = 1
            self.s.recv[i].next = &self.s.recv[i + 1] if i + 1 < BATCH else NULL
        self.s.data_sge.lkey = self.mr.lkey
        self.s.data.sg_list = &self.s.data_sge
        self.s.data.num_sge = 1
        self.s.credit.opcode = IBV_WR_SEND
        self.s.credit.send_flags = IBV_SEND_SIGNALED
        self.s.credit.wr_id = credit_id()
        self.s.last_sge.addr = <uintptr_t> self.mr.addr
        self.s.last_sge.length = 1
        self.s.last_sge.lkey = self.mr.lkey
        self.s.last.sg_list = &self.s.last_sge
        self.s.last.num_sge = 1
        self.s.last.opcode = IBV_WR_RDMA_READ
        self.s.last.send_flags = IBV_SEND_SIGNALED

    def address(self, int which=0):
        """A dict for JSON with the arguments of the peer's connect()."""
        if not 0 <= which < self.count:
            raise IndexError(which)
        return {
            "qpn": self.qps[which].qp_num, "psn": PSN, "lid": self.port.lid, "mtu": self.mtu,
            "gid": bytes(self.port.gid.raw[:16]).hex(), "rkey": self.mr.rkey, "addr": <uintptr_t> self.mr.addr,
            "half": self.half,
        }

    def connect(self, dict peer not None, int which=0):
        """Brings a queue pair to RTS, given the `address` of the peer's queue pair."""
        cdef qp_address address
        cdef int error, i
        cdef bytes gid = bytes.fromhex(peer["gid"])
        if not 0 <= which < self.count:
            raise IndexError(which)
        if len(gid) != 16:
            raise ValueError("a GID has 16 bytes")
        memset(&address, 0, sizeof(address))
        address.qpn = peer["qpn"]
        address.psn = peer["psn"]
        address.lid = peer["lid"]
        address.mtu = peer["mtu"]
        for i in range(16):
            address.gid.raw[i] = gid[i]
        error = verbs_qp_connect(&self.port, self.qps[which], PSN, &address, self.reads, self.reads)
        if error:
            raise EndError(f"queue pair to RTS: {strerror(error).decode()}")
        if which == 0:
            self.peer_half = peer["half"]
            if self.peer_half < self.half:
                raise EndError("the peer's memory region is too small")
            self.s.data.wr.rdma.rkey = peer["rkey"]
            self.s.data.wr.rdma.remote_addr = peer["addr"]
            self.s.last.wr.rdma.rkey = peer["rkey"]
            self.s.last.wr.rdma.remote_addr = peer["addr"]

    def stream(self, sock, bytes request=None, *, bint crc=False, int which=0):
        """Gives a software device's queue pair the connected socket as its stream.

        request: for iWARP, the MPA request already read from the socket, or None if this side is to send it.
        """
        if not 0 <= which < self.count:
            raise IndexError(which)
        self.fabric.stream(self, which, sock.fileno(), request, crc)
        sock.detach()

    def stream_iw(self, int which, int fd, bytes request, bint crc):
        cdef soft_iw_options options
        memset(&options, 0, sizeof(options))
        options.crc = crc
        options.ird = options.ord = <uint16_t> min(self.reads, 128)
        if request is None:
            started(soft_iw_connect(self.qps[which], fd, &options))
        else:
            started(soft_iw_accept(self.qps[which], fd, <const char *> request, len(request), &options))

    def stream_shm(self, int which, int fd, bytes request, bint crc):
        started(soft_shm_attach(self.qps[which], fd, <uint16_t> min(self.reads, 128), <uint16_t> min(self.reads, 128)))

    def prepare_test(self, str verb not None, size_t size, *, total=None, double seconds=0, expected=None,
                     uint32_t moderation=1, uint32_t credit_every=0, bint stamps=False, bint peak=False):
        """Sets up a test. Both sides call this before either of them runs the test.

        total: messages to send; expected: messages to receive; None if the number is not known. seconds: how long to
        send without a total. moderation: messages for one completion, at most tx_depth. credit_every: messages for one
        credit in a SEND bandwidth test, else 0. stamps: take the times for latencies(). peak: take the times for the
        peak of rate().
        """
        cdef side *s = &self.s
        cdef uint64_t groups
        if self.count == 0 or not 1 <= size <= self.half or not 1 <= moderation <= self.tx_depth:
            raise ValueError("not a test of this end")
        if (stamps or peak) and total is None:
            raise ValueError("times are taken of a known number of messages")
        self.check(drain(s))
        s.data.opcode = OPCODES[verb]
        s.data_sge.addr = <uintptr_t> self.mr.addr + (self.half if verb == "read" else 0)
        s.data_sge.length = <uint32_t> size
        s.data.wr.rdma.remote_addr = s.last.wr.rdma.remote_addr + (0 if verb == "read" else self.peer_half)
        s.flags = IBV_SEND_INLINE if verb != "read" and size <= self.inline_size else 0
        s.mark_out = <uint8_t *> self.mr.addr + size - 1
        s.mark_in = <uint8_t *> self.mr.addr + self.half + size - 1
        s.mark_in[0] = 0
        s.total = unlimited() if total is None else total
        s.expected = unlimited() if expected is None else expected
        s.depth = self.tx_depth
        s.moderation = moderation
        s.stale = s.since
        s.peer_receives = self.rx_depth
        s.credit_every = credit_every
        s.posted = 0
        s.completed = 0
        s.received = 0
        s.credits = 0
        s.returned = 0
        s.last_posted = False
        s.last_done = False
        s.groups = 0
        s.room = 0
        s.watched = POLLIN | POLLRDHUP
        self.seconds = seconds
        self.started = False
        self.times = zeros(s.total + 1) if stamps else None
        if peak:
            groups = (s.total + moderation - 1) // moderation
            self.begun = zeros(groups)
            self.done = zeros(groups)
            s.begun = <uint64_t *> self.begun.data.as_ulongs
            s.done = <uint64_t *> self.done.data.as_ulongs
            s.room = groups

    def run(self, str loop not None):
        """Runs or continues a loop of the test. Returns DONE, or CONTROL when the control connection is readable.

        "ping" and "flow" are measured. "pong" answers SENDs or WRITEs, "serve" everything else; both end with CONTROL
        only. Raises BrokenError when a work request fails.
        """
        cdef side *s = &self.s
        cdef uint64_t *stamps = NULL
        cdef int which = ("ping", "pong", "flow", "serve").index(loop)
        cdef ibv_wr_opcode opcode = s.data.opcode
        cdef int result
        assert_owner(s.owner)
        if self.times is not None:
            stamps = <uint64_t *> self.times.data.as_ulongs
        cdef double cycle = seconds_per_cycle()
        if not self.started:
            self.started = True
            self.start = cycles()
            s.until = self.start + <uint64_t> (self.seconds / cycle) if self.seconds else 0
        with nogil:
            if which == 0 and opcode == IBV_WR_SEND:
                result = ping_send(s, stamps)
            elif which == 0 and opcode == IBV_WR_RDMA_WRITE:
                result = ping_write(s, stamps)
            elif which == 0:
                result = ping_read(s, stamps)
            elif which == 1 and opcode == IBV_WR_SEND:
                result = pong_send(s)
            elif which == 1 and opcode == IBV_WR_RDMA_WRITE:
                result = pong_write(s)
            elif which == 2:
                result = flow(s)
            else:
                result = serve(s)
            self.end = cycles()
        self.check(result)
        return result

    cdef int check(self, int result) except -1:
        if result == STOP_STATUS:
            raise BrokenError(f"a work request failed: {self.p.wc_status_str(<ibv_wc_status> self.s.code).decode()}")
        if result == STOP_POST:
            raise BrokenError(f"a work request was not taken: {strerror(self.s.code).decode()}")
        if result == STOP_POLL:
            raise BrokenError(f"the completion queue failed: {strerror(self.s.code).decode()}")
        if result == STOP_EVENT:
            raise BrokenError(f"waiting for events failed: {strerror(self.s.code).decode()}")
        return 0

    def ignore_control(self):
        """From now on loops end when the control connection is closed, and no longer when it is readable."""
        self.s.watched = POLLRDHUP

    def latencies(self):
        """Seconds from the post of each message to the next post, or to the end of the test."""
        cdef double cycle = seconds_per_cycle()
        cdef uint64_t[::1] times = self.times
        cdef Py_ssize_t i
        return [<double> (times[i + 1] - times[i]) * cycle for i in range(<Py_ssize_t> self.s.total)]

    def rate(self):
        """(messages sent, seconds, messages per second in the best stretch, or 0 without `peak`)."""
        cdef double best = best_rate(&self.s, self.s.room)
        cdef double cycle = seconds_per_cycle()
        return self.s.posted, <double> (self.end - self.start) * cycle, best / cycle

    def close(self):
        """Destroys the queue pairs, the region and the rest, and closes the device. Further calls do nothing."""
        while self.count:
            self.count -= 1
            self.p.destroy_qp(self.qps[self.count])
        free(self.qps)
        self.qps = NULL
        if self.cq != NULL:
            self.p.destroy_cq(self.cq)
            self.cq = NULL
        if self.channel != NULL:
            self.p.destroy_comp_channel(self.channel)
            self.channel = NULL
        if self.mr != NULL:
            self.p.dereg_mr(self.mr)
            self.mr = NULL
        if self.memory != NULL:
            munmap(self.memory, 2 * self.half)
            self.memory = NULL
        if self.pd != NULL:
            self.p.dealloc_pd(self.pd)
            self.pd = NULL
        if self.port.context != NULL:
            self.p.close_device(self.port.context)
            self.port.context = NULL


# A kind of device. near: both ends are on one host, and meet at a UNIX socket. iwarp: the stream begins with MPA's
# request, and may have CRC32c. stream: gives a socket to a queue pair; None: a device of the system.
Fabric = namedtuple("Fabric", "name near iwarp stream", defaults=(False, False, None))
VERBS = Fabric("verbs")
FABRICS = {
    "soft_iw0": Fabric("soft_iw", iwarp=True, stream=End.stream_iw),
    "soft_shm0": Fabric("soft_shm", near=True, stream=End.stream_shm),
}
ALWAYS_THERE = "soft_iw0"


def fabric_of(str device not None):
    """The Fabric of a device."""
    return FABRICS.get(device, VERBS)
