"""Costly attacks below the messages: records, cells and frames made by hand, on soft_shm and on soft_iw."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import count as counted
from typing import ClassVar

import polling
from attacker import Target
from daemon_tools import DATA, OPEN, READY, SHM_REPLY, SHM_REQUEST, message
from shm_by_hand import (
    ANSWER,
    ANSWERS,
    CHUNK_MAX,
    F_ADD_SEALS,
    LINE,
    MESSAGE,
    OFFER,
    RECORD,
    REGISTRY_SIZE,
    RING_AT,
    RING_SIZE,
    SEAL_FUTURE_WRITE,
    SEAL_GROW,
    SEAL_SHRINK,
    STREAM,
    WAKEUP,
    ShmPeer,
    cell_size,
    lingering,
    memfd,
    record,
)

from rmemcached.host import host_identity

SEAL_WRITE = 8
READ_AND_WRITE = 6
READ_ONLY = 4
MB = 1 << 20
KEY = 256  # of the region to fetch a value from, or to write a value to
ADDRESS = 1 << 32


def frame(opcode: int, stag: int, to: int, payload: bytes = b"", *, last: bool = True) -> bytes:
    """A tagged FPDU: 0 is a WRITE, 2 a READ response."""
    segment = struct.pack(">BBIQ", 0xC1 if last else 0x81, 0x40 | opcode, stag, to) + payload
    return struct.pack(">H", len(segment)) + segment + bytes(-(len(segment) + 2) % 4 + 4)


USERFAULTFD = {"x86_64": 323, "aarch64": 282}  # the system call's number
UFFDIO_API, UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00


def memory_of_registry() -> int:
    """A registry with a region of the first generation in every slot."""
    fd = memfd(REGISTRY_SIZE)
    os.pwrite(fd, struct.pack("=I", 1) * (REGISTRY_SIZE // 4), 0)
    fcntl.fcntl(fd, F_ADD_SEALS, SEAL_FUTURE_WRITE)
    return fd


class MissingPage:
    """A page that never comes: a write of the page to a file waits, and meanwhile holds the lock of the file's
    inode."""

    kept: ClassVar[list[MissingPage]] = []

    def __init__(self) -> None:
        self.kept.append(self)
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.uffd = self.libc.syscall(USERFAULTFD[platform.machine()], os.O_CLOEXEC | os.O_NONBLOCK)
        if self.uffd < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        self.memory = mmap.mmap(-1, 4096)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        fcntl.ioctl(self.uffd, UFFDIO_API, struct.pack("=QQQ", 0xAA, 0, 0))
        fcntl.ioctl(self.uffd, UFFDIO_REGISTER, struct.pack("=QQQQ", self.address, 4096, 1, 0))

    def lock(self, fd: int) -> None:
        """A thread writes the page to the file. Returns when the thread waits."""
        arguments = (fd, ctypes.c_void_p(self.address), ctypes.c_size_t(1))
        threading.Thread(target=self.libc.write, args=arguments, daemon=True).start()
        assert select.select([self.uffd], [], [], 10)[0]


def may_miss_pages() -> bool:
    """Whether this process may have a userfaultfd for which also the kernel waits."""
    try:
        os.close(MissingPage().uffd)
    except PermissionError:
        return False
    return True


class SharedMemory(ShmPeer):
    """A soft_shm connection with an open lane, made by hand. Nothing is read or sent but what a method does.

    `registry`: a memfd for the registry.
    """

    def __init__(self, target: Target, registry: int | None = None) -> None:
        identity, netns = host_identity()
        self.lifeline = target.connect()
        line = "rdma version=2 transport=soft_shm qpn=17 credits=64 msgsize=8192 lanebytes=65536"
        self.lifeline.sendall(f"{line} host={identity} netns={netns}\r\n".encode())
        answer = self.lifeline.makefile("rb").readline().decode().split()
        assert answer[0] == "RDMA", answer
        offer = dict(pair.split("=") for pair in answer[1:])
        sock = socket.socket(socket.AF_UNIX)
        sock.connect("\0" + offer["path"].removeprefix("@"))
        sock.sendall(SHM_REQUEST + int(offer["qpn"]).to_bytes(4, "big") + bytes.fromhex(offer["token"]))
        received = b""
        while len(received) < 16:
            received += sock.recv(16 - len(received))
        assert received == SHM_REPLY, received
        super().__init__(sock, paid=True)
        if registry is None:
            registry = memory_of_registry()
        os.close(self.registry_fd)
        self.registry_fd = registry
        self.credits = int(offer["credits"]) - 2
        self.owed = 0
        self.hello(access=ANSWERS)
        self.cell(message(READY), MESSAGE)
        self.wake()
        while not any(cell[:1] == bytes([READY]) for cell in self.cells()):
            time.sleep(0.001)
        self.cell(message(OPEN), MESSAGE)

    def room(self) -> int:
        return RING_SIZE - (self.tail - self.head())

    def wake(self) -> None:
        """Sends a wake-up: the daemon may sleep, and ignores a superfluous record."""
        with contextlib.suppress(BlockingIOError):
            self.sock.setblocking(False)
            self.post(record(WAKEUP))
        self.sock.setblocking(True)

    def cell(self, octets: bytes, kind: int, flags: int = 0) -> None:
        """Waits for room, and writes a cell."""
        size = cell_size(len(octets))
        while self.room() < size + LINE:
            self.wake()
            time.sleep(0.0005)
        # The daemon also reads the word of the next cell, whose page must be allocated by now.
        following = RING_AT + (self.tail + size) % RING_SIZE
        self.page[following : following + 4] = bytes(4)
        super().cell(octets, kind, flags)

    def cells(self) -> Iterator[bytes]:
        """The octets of the cells written since by the daemon. The caller reports their consumption."""
        for kind, _, octets in iter(self.next_cell, None):
            if kind == MESSAGE:
                self.credits += int.from_bytes(octets[2:4], "big")
                self.owed += 1
            yield octets

    def ask(self, line: str) -> None:
        """Sends a request, if the daemon has granted a credit."""
        if self.credits:
            self.credits -= 1
            self.cell(message(DATA, line.encode(), self.owed), MESSAGE)
            self.owed = 0
        self.wake()

    def offer(self, fd: int, length: int, key: int, access: int = READ_AND_WRITE) -> None:
        self.post(
            record(OFFER, stag=key, slot=key % 1000, generation=1, access=access, addr=ADDRESS, length=length), fd
        )


def sparse_values(target: Target, count: int, size: int) -> None:
    """Stores values out of untouched memory, in ever new memfds, which stay. Reports their cost."""
    shm = SharedMemory(target)
    held = []
    for number in range(count):
        held.append(memfd(size))
        shm.offer(held[-1], size, KEY + number)
        if number < 8:
            shm.ask(f"ms sparse{number} {min(size, MB) - 200} @{ADDRESS:x}:{KEY + number:x}\r\n")
    target.ready()
    target.told()
    target.say(sum(os.fstat(fd).st_blocks for fd in held))
    target.stay()


def held_region(target: Target) -> None:
    """Locks the file of a region when the region is offered, and keeps the lock."""
    shm = SharedMemory(target)
    region = memfd(4096, sparse=False)
    MissingPage().lock(region)
    shm.offer(region, 4096, KEY)
    shm.wake()
    target.ready()
    target.stay()


def held_registry(target: Target) -> None:
    """Locks the file of a registry most of the time, for a tenth of a second each time, and connects without end."""
    libc = ctypes.CDLL(None, use_errno=True)
    registry = memory_of_registry()
    # A pipe uses a page of the registry. To seal the registry, the kernel locks the file, and waits in vain for the
    # end of this use.
    libc.mmap.restype = ctypes.c_size_t
    address = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, registry, ctypes.c_long(0))
    iovec = (ctypes.c_size_t * 2)(address, 4096)
    assert libc.vmsplice(os.pipe()[1], iovec, ctypes.c_size_t(1), 0) == 4096

    def lock() -> None:
        while libc.fcntl(registry, F_ADD_SEALS, SEAL_WRITE) < 0:
            assert ctypes.get_errno() == errno.EBUSY

    threading.Thread(target=lock, daemon=True).start()
    target.ready()
    while True:
        shm = SharedMemory(target, registry)
        shm.lifeline.close()
        shm.sock.close()
        for fd in (*shm.fds, shm.ring_fd):
            os.close(fd)


def closes_that_wait(target: Target, count: int) -> None:
    """Sends sockets whose `close` waits, with a record that ends the queue pair. The attacker keeps none."""
    shm = SharedMemory(target)
    pairs = [lingering(60) for _ in range(count)]
    octets = record(OFFER, generation=1, length=4096)
    socket.send_fds(shm.sock, [octets[:1]], [sender.fileno() for sender, _ in pairs])
    # The daemon has the descriptors, or they are on the way. If the daemon closes its copy of a socket first, the last
    # `close` is here, and waits: so each `close` here has a thread.
    for sender, _ in pairs:
        threading.Thread(target=sender.close, daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        shm.post(octets[1:])
    target.ready()
    target.stay()


def closes_of_many(target: Target, count: int, each: int) -> None:
    """Sends, when the test says so, sockets whose `close` waits, on several queue pairs. The attacker keeps none."""
    pairs = [SharedMemory(target) for _ in range(count)]
    waiting = [[lingering(60) for _ in range(each)] for _ in pairs]
    target.ready()
    target.told()
    octets = record(OFFER, generation=1, length=4096)
    for shm, sockets in zip(pairs, waiting, strict=True):
        socket.send_fds(shm.sock, [octets], [sender.fileno() for sender, _ in sockets])
        for sender, _ in sockets:
            sender.close()
    target.say("passed")
    target.stay()


def closes_without_end(target: Target) -> None:
    """Sends sockets whose `close` waits, as many as a record may have, on new queue pairs for as long as the daemon
    takes any."""
    readers: list[socket.socket] = []
    target.ready()
    while True:
        try:
            shm = SharedMemory(target)
        except AssertionError:
            time.sleep(0.01)
            continue
        senders, passed = zip(*(lingering(60) for _ in range(3)), strict=True)
        readers += passed
        socket.send_fds(shm.sock, [record(OFFER, generation=1, length=4096)], [sender.fileno() for sender in senders])
        for sender in senders:
            sender.close()
        shm.lifeline.close()


def close_never_read(target: Target) -> None:
    """Sends a socket whose `close` waits behind a record that has ended the queue pair."""
    sender, reader = lingering(60)
    while True:
        shm = SharedMemory(target)
        # The daemon may close the socket before the second record: then the attacker tries again.
        with contextlib.suppress(OSError):
            shm.post(bytes(48))
            shm.post(record(OFFER, generation=1, length=4096), sender.fileno())
            break
        shm.lifeline.close()
    threading.Thread(target=sender.close, daemon=True).start()
    target.ready()
    assert reader.fileno() >= 0
    target.stay()


def closes_that_take_long(target: Target, size: int) -> None:
    """Offers, without end, small regions in large allocated files. The daemon has the only descriptor of each file."""
    shm = SharedMemory(target)
    target.ready()
    for number in counted():
        fd = memfd(size)
        with mmap.mmap(fd, size) as memory:
            memory.madvise(23)
        shm.offer(fd, 4096, KEY + number % 1000)
        os.close(fd)


def offers(target: Target, size: int) -> None:
    """Makes offers without end, of so many untouched octets, or of an allocated page."""
    shm = SharedMemory(target)
    regions = [memfd(size, sparse=size > 4096) for _ in range(200)]
    target.ready()
    for number in counted():
        shm.offer(regions[number % len(regions)], size, KEY + number % (1 << 30))


def offers_of_many(target: Target, count: int, size: int) -> None:
    """Offers large regions without end on several queue pairs. The daemon looks at every page each time anew."""
    regions = [memfd(size, sparse=False, seals=SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE) for _ in range(2)]
    pairs = [SharedMemory(target) for _ in range(count)]
    for shm in pairs:
        shm.sock.setblocking(False)
    target.ready()
    for number in counted():
        for shm in pairs:
            with contextlib.suppress(BlockingIOError):
                while shm.sock.recv(65536):
                    pass
            with contextlib.suppress(BlockingIOError):
                shm.offer(regions[number % 2], size, KEY + number % (1 << 30))


def regions_that_go(target: Target, size: int) -> None:
    """Ends queue pairs, without end, after the daemon has mapped and read a large region."""
    region = memfd(size, sparse=False, seals=SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
    first = True
    while True:
        shm = SharedMemory(target)
        shm.offer(region, size, KEY, READ_ONLY)
        shm.wake()
        while RECORD.unpack(shm.sock.recv(RECORD.size))[0] != ANSWER:
            pass
        for at in range(0, size, MB):
            shm.ask(f"ms gone {MB - 4096} @{ADDRESS + at:x}:{KEY:x}\r\n")
            while not any(cell[:1] == bytes([DATA]) for cell in shm.cells()):
                time.sleep(0.0001)
            shm.set_head(shm.taken)
        if first:
            target.ready()
            first = False
        shm.lifeline.close()
        shm.sock.close()
        for fd in (*shm.fds, shm.ring_fd, shm.registry_fd):
            os.close(fd)


def records(target: Target) -> None:
    """Sends wake-ups without being asked."""
    shm = SharedMemory(target)
    target.ready()
    while True:
        shm.post(record(WAKEUP))


def frames(target: Target) -> None:
    """Sends empty WRITEs without end, as many as the ring has room for."""
    shm = SharedMemory(target)
    block = frame(0, 0, 0) * (CHUNK_MAX // 20)
    target.ready()
    while True:
        shm.cell(block, STREAM)


def frames_of_many(target: Target, count: int) -> None:
    """Sends empty WRITEs on several queue pairs, whose rings stay full."""
    pairs = [SharedMemory(target) for _ in range(count)]
    block = frame(0, 0, 0) * (CHUNK_MAX // 20)
    target.ready()
    while True:
        full = True
        for shm in pairs:
            while shm.room() >= CHUNK_MAX + 8 + LINE:
                shm.cell(block, STREAM)
                full = False
        if full:
            for shm in pairs:
                shm.wake()
            time.sleep(0.0001)


def cells(target: Target) -> None:
    """Sends empty WRITEs in cells of an octet."""
    shm = SharedMemory(target)
    target.ready()
    while True:
        for octet in frame(0, 0, 0):
            shm.cell(bytes([octet]), STREAM)


def one_line(target: Target, key: str, size: int) -> None:
    """Makes the daemon write large values through the ring, and gives each line of the ring back by itself."""
    shm = SharedMemory(target)
    head = shm.taken
    target.ready()
    while True:
        shm.ask(f"mg {key} v @{ADDRESS:x}:{KEY:x}:{size:x}\r\n")
        idle = 0
        while idle < 100:
            before = head
            for _ in shm.cells():
                while head < shm.taken:
                    head += LINE
                    shm.set_head(head)
                    shm.wake()
            idle = idle + 1 if head == before else 0
            time.sleep(0.0001)


def octets_of_a_read(target: Target, size: int) -> None:
    """Answers a READ of the daemon octet by octet."""
    shm = SharedMemory(target)
    for _ in shm.cells():
        pass
    shm.set_head(shm.taken)
    shm.ask(f"ms slowly {size} @{ADDRESS:x}:{KEY:x}\r\n")
    request = b""
    while not request:
        request = b"".join(shm.cells())
    sink, to = struct.unpack_from(">IQ", request[request.index(b"\x41\x41") - 2 :], 20)
    target.ready()
    for at in range(0, size, 1000):
        for octet in frame(2, sink, to + at, bytes(1000), last=at + 1000 >= size):
            shm.cell(bytes([octet]), STREAM)
            shm.wake()
    target.stay()


def mpa_requests(target: Target) -> None:
    """Requests a stream with a false token."""
    request = b"MPA ID Req Frame" + struct.pack(">BBH", 0x10, 2, 24) + struct.pack(">HH", 16, 16) + bytes(20)
    target.ready()
    while True:
        with contextlib.suppress(OSError), target.connect() as plain:
            plain.sendall(request)
            polling.readable(plain, 10)
