"""See _buffers.pxd."""

import logging
import sys
import warnings

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport ENOMEM, errno
from libc.stdlib cimport calloc, free

from rmemcached.client.transport._devices cimport join_domain, leave_domain
from rmemcached.client.transport._errors cimport os_error, registration_error
from rmemcached.client.transport._forks cimport copy_at_forks, stop_copying
from rmemcached.client.transport._state cimport live_object, lock_state, shared_state, unlock_state
from rmemcached.sys.debug cimport LIVE_CLIENT_BUFFER, live_add, live_sub
from rmemcached.sys.linux cimport (
    MADV_DOFORK,
    MADV_DONTFORK,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    madvise,
    mmap,
    munmap,
    populate_read,
    pthread_atfork,
)
from rmemcached.verbs.soft cimport soft_alloc_mr, soft_mr_renew
from rmemcached.verbs.verbs cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object view)
    object PyWeakref_NewRef(object referent, void *callback)

cdef enum:
    ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
    STEPS = 8                # sizes of regions from a power of two to the next

# For __del__: the modules' names are gone when the interpreter ends.
cdef object warn = warnings.warn

cdef object logger = logging.getLogger("rmemcached.client")
cdef bint told_shortage = False      # the log has the warning about memory that may not be locked

# Totals and list of this process.
cdef size_t all_bytes = 0            # of regions of pools
cdef size_t unused_bytes = 0
cdef region *newest = NULL           # unused
cdef region *oldest = NULL
cdef void *buffers = NULL
cdef size_t registered = 0           # how many registrations there ever were
cdef unsigned int generation = 0     # forks between this process and the importer of the module
cdef unsigned int children = 0       # forks made or begun by this process


cdef void after_fork_in_child() noexcept nogil:
    # The child forgets the lists: their objects are the parent's.
    global all_bytes, unused_bytes, newest, oldest, buffers, generation
    all_bytes = unused_bytes = 0
    newest = oldest = NULL
    buffers = NULL
    generation += 1


cdef void before_fork() noexcept nogil:
    global children
    children += 1


pthread_atfork(before_fork, NULL, after_fork_in_child)


cdef void count_registration() noexcept:
    global registered
    lock_state(&shared_state)
    registered += 1
    unlock_state(&shared_state)
    live_add(LIVE_CLIENT_BUFFER)


def usage():
    """This process's memory for values, in bytes: of regions, in use or not; and how often memory was registered."""
    return {"regions": all_bytes, "unused": unused_bytes, "registered": registered}


cdef size_t rounded(size_t size) noexcept:
    # Rounds up, because few sizes serve many values.
    cdef size_t step = REGION_MIN // STEPS
    size = max(size, <size_t>REGION_MIN)
    while step * STEPS * 2 <= size:
        step *= 2
    return (size + step - 1) // step * step


cdef int fill(const verbs_provider *provider, ibv_pd *pd, size_t size, bint server_maps, bint forks,
              region *out) noexcept:
    # Makes and registers memory. forks: the memory stays visible in forked children. Returns 0 or an errno value.
    cdef void *memory
    out.size = size
    out.mapped = not server_maps
    if server_maps:
        out.mr = soft_alloc_mr(pd, size, ACCESS)
    else:
        memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if memory == MAP_FAILED:
            return ENOMEM
        if not forks:
            madvise(memory, size, MADV_DONTFORK)
        out.mr = provider.reg_mr(pd, memory, size, ACCESS)
        if out.mr == NULL:
            error = errno
            munmap(memory, size)
            return error
    if out.mr == NULL:
        return errno
    out.data = <char *>out.mr.addr
    count_registration()
    return 0


cdef void empty(const verbs_provider *provider, region *one) noexcept:
    cdef char *data = one.data
    provider.dereg_mr(one.mr)
    one.mr = NULL
    if one.mapped:
        munmap(data, one.size)
    live_sub(LIVE_CLIENT_BUFFER)


cdef int touch(const region *one) noexcept:
    # Makes the region's pages: a server maps only pages that exist. 0 or an errno value.
    cdef int result
    with nogil:
        result = populate_read(one.data, one.size)
    return errno if result < 0 else 0


cdef void unlink(region *one) noexcept:
    """Takes an unused region out of the lists of its pool and of the process."""
    global unused_bytes, newest, oldest
    cdef Pool pool = <Pool>one.pool
    if one.prev != NULL:
        one.prev.next = one.next
    else:
        pool.unused = one.next
    if one.next != NULL:
        one.next.prev = one.prev
    if one.newer != NULL:
        one.newer.older = one.older
    else:
        newest = one.older
    if one.older != NULL:
        one.older.newer = one.newer
    else:
        oldest = one.newer
    unused_bytes -= one.size


cdef void destroy(Pool pool, region *one) noexcept:
    global all_bytes
    lock_state(&shared_state)
    all_bytes -= one.size
    unlock_state(&shared_state)
    empty(pool.provider, one)
    free(one)


cdef void drop_oldest() noexcept:
    cdef region *one = oldest
    unlink(one)
    destroy(<Pool>one.pool, one)


cdef class Pool:

    def __init__(self, QueuePair queue not None):
        self.provider = queue.provider
        self.pd = queue.pd
        self.transport = queue.row.name
        self.server_maps = queue.near
        self.domain = queue.protection_domain

    cdef region *find(self, size_t size) noexcept:
        # The first unused region of less than twice the size, or else the smallest. NULL: all are too small, or larger
        # than four times the size.
        cdef region *one = self.unused
        cdef region *best = NULL
        while one != NULL:
            if one.size >= size and one.size // 4 <= max(size, <size_t>REGION_MIN):
                if best == NULL or one.size < best.size:
                    best = one
                if one.size // 2 < size:
                    break
            one = one.next
        return best

    cdef region *take(self, size_t size) except? NULL:
        cdef region *one = NULL
        cdef bint fits = False
        lock_state(&shared_state)
        if not self.closed:
            one = self.find(size)
            if one != NULL:
                unlink(one)
            else:
                size = rounded(size)
                while all_bytes + size > REGIONS_MOST and oldest != NULL:
                    drop_oldest()
                fits = all_bytes + size <= REGIONS_MOST
        unlock_state(&shared_state)
        return self.make(size) if fits else one

    cdef region *make(self, size_t size) except? NULL:
        global all_bytes
        cdef region *one = <region *>calloc(1, sizeof(region))
        cdef int error
        if one == NULL:
            raise MemoryError
        error = fill(self.provider, self.pd, size, self.server_maps, False, one)
        if error:
            free(one)
            self.go_without(size, error)
            return NULL
        lock_state(&shared_state)
        all_bytes += size
        unlock_state(&shared_state)
        one.pool = <void *>self
        error = touch(one) if self.server_maps else 0
        if error:
            destroy(self, one)
            raise os_error("memory region", error)
        return one

    cdef bint go_without(self, size_t length, int error) except -1:
        # Memory could not be registered. A shortage is logged once, and False returned: values travel in messages.
        # Raises OSError for another problem.
        global told_shortage
        problem = registration_error(self.provider, length, error)
        if problem.errno != ENOMEM:
            raise problem
        if not told_shortage:
            told_shortage = True
            logger.warning("transport %s: %s; large values are copied", self.transport, problem.strerror)
        return False

    cdef void give(self, region *one) noexcept:
        lock_state(&shared_state)
        if self.closed:
            destroy(self, one)
        else:
            self.keep(one)
        unlock_state(&shared_state)

    cdef void keep(self, region *one) noexcept:
        global unused_bytes, newest, oldest
        one.prev = NULL
        one.next = self.unused
        if one.next != NULL:
            one.next.prev = one
        self.unused = one
        one.newer = NULL
        one.older = newest
        if newest != NULL:
            newest.newer = one
        else:
            oldest = one
        newest = one
        unused_bytes += one.size
        while unused_bytes > UNUSED_MOST and oldest != one:
            drop_oldest()

    cdef void close(self) noexcept:
        cdef region *one
        lock_state(&shared_state)
        self.closed = True
        while self.unused != NULL:
            one = self.unused
            unlink(one)
            destroy(self, one)
        unlock_state(&shared_state)


# The collector would clear the objects needed by __dealloc__.
@cython.no_gc_clear
cdef class Loan:

    def __getbuffer__(self, Py_buffer *out, int flags):
        PyBuffer_FillInfo(out, self, self.lent.data, <Py_ssize_t>self.length, True, flags)

    def __dealloc__(self):
        # In a forked child the region is the parent's, and is not given back.
        if self.lent == NULL or self.generation != generation:
            return
        if self.children != children:
            # A child may still see the value, so the region is not used again.
            destroy(self.pool, self.lent)
        else:
            if self.lent.mapped:
                madvise(self.lent.data, self.lent.size, MADV_DONTFORK)
            self.pool.give(self.lent)
        leave_domain(self.domain)


cdef object lend_region(Pool pool, region *one, size_t length):
    cdef Loan loan = Loan.__new__(Loan)
    loan.pool = pool
    loan.lent = one
    loan.length = length
    loan.domain = pool.domain
    loan.generation = generation
    loan.children = children
    join_domain(loan.domain)
    if one.mapped:
        madvise(one.data, one.size, MADV_DOFORK)
    return memoryview(loan)


@cython.no_gc_clear
cdef class Buffer:
    """Memory for values. `Client.buffer` makes a Buffer, and `Client.register` makes a Buffer of an object's memory.

    A Buffer has the buffer protocol: memoryview(b), numpy.frombuffer(b). Any Client of the same server may send values
    from a Buffer, and receive values in a Buffer, or use a part of a Buffer. A request then copies nothing in this
    process over "verbs", "rdma_cm" and "soft_iw", and over "soft_shm" if the Buffer is of `Client.buffer`. Otherwise a
    Buffer is ordinary memory. A Buffer outlives the Client, the connection and the server. Views, and requests that
    name the Buffer, keep it from being closed. In a forked child the Buffer is ordinary memory with the contents at the
    fork, and neither process sees later writes of the other.

    A Buffer collected while open is closed, with a ResourceWarning. Thread-safe.
    """

    def __init__(self):
        raise TypeError("a Client makes Buffers: buffer(), register()")

    def __del__(self):
        if self.open and self.generation == generation:
            warn(f"unclosed {self!r}, made at {self.made}", ResourceWarning, stacklevel=2, source=self)

    def __dealloc__(self):
        self.release()

    def __repr__(self):
        return f"<rmemcached.client.Buffer of {self.memory.size} bytes{'' if self.open else ', closed'}>"

    def __getbuffer__(self, Py_buffer *out, int flags):
        lock_state(&shared_state)
        try:
            if not self.open:
                raise BufferError("the Buffer is closed")
            if self.shared.lost:
                raise BufferError("there was no memory for a copy of the Buffer when this process was forked: "
                                  "make one here")
            PyBuffer_FillInfo(out, self, self.memory.data, <Py_ssize_t>self.memory.size, self.readonly, flags)
            self.views += 1
        finally:
            unlock_state(&shared_state)

    def __releasebuffer__(self, Py_buffer *out):
        lock_state(&shared_state)
        self.views -= 1
        unlock_state(&shared_state)

    def __len__(self):
        """The number of bytes; 0 for a closed Buffer."""
        return self.memory.size if self.open else 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    @property
    def closed(self):
        """Whether the memory is given up."""
        return not self.open

    def close(self):
        """Gives up the memory. An object's memory returns to the object. May be called any number of times.

        Raises BufferError while views of the Buffer exist, or a request names it.
        """
        cdef bint seen, named
        lock_state(&shared_state)
        seen = self.views != 0
        named = self.transfers != 0
        if not seen and not named:
            self.release()
        unlock_state(&shared_state)
        if seen or named:
            raise BufferError("views of the Buffer are in use" if seen else "a request names the Buffer")

    cdef void renew(self) noexcept:
        lock_state(&shared_state)
        if self.domain != NULL and self.generation == generation and not self.memory.mapped and self.owner is None:
            soft_mr_renew(self.memory.mr)
        unlock_state(&shared_state)

    cdef int release(self) noexcept:
        cdef server_domain *domain
        if self.generation != generation:
            return 0
        lock_state(&shared_state)
        domain = self.domain
        self.domain = NULL
        if domain != NULL:
            leave_list(self)
            stop_copying(&self.shared)
            empty(domain.device.port.provider, &self.memory)
            leave_domain(domain)
        elif self.open and self.memory.mapped:
            munmap(self.memory.data, self.memory.size)
        self.open = False
        unlock_state(&shared_state)
        self.owner = None
        return 0


cdef void join_list(Buffer one) noexcept:
    global buffers
    one.next = buffers
    if buffers != NULL:
        (<Buffer>buffers).prev = <void *>one
    buffers = <void *>one


cdef void leave_list(Buffer one) noexcept:
    global buffers
    if one.prev != NULL:
        (<Buffer>one.prev).next = one.next
    else:
        buffers = one.next
    if one.next != NULL:
        (<Buffer>one.next).prev = one.prev


cdef str caller():
    # Where Python code called the Client's method: Cython's functions have no frames.
    frame = sys._getframe(0)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


cdef Buffer closed_buffer():
    # Called before the memory is made: a signal handler may raise here, and the memory would be lost.
    cdef Buffer one = Buffer.__new__(Buffer)
    one.made = caller()
    one.generation = generation
    one.weak = PyWeakref_NewRef(one, NULL)
    return one


cdef void open_buffer(Buffer one, QueuePair queue) noexcept:
    # Opens a Buffer with memory, registered for the queue pair's server if there is a queue pair.
    lock_state(&shared_state)
    one.open = True
    if queue is not None:
        one.domain = queue.protection_domain
        join_domain(one.domain)
        join_list(one)
    unlock_state(&shared_state)


cdef Buffer new_buffer(QueuePair queue, size_t size):
    cdef Buffer one = closed_buffer()
    cdef bint server_maps = queue is not None and queue.near
    cdef int error
    if size == 0:
        raise ValueError("a Buffer has at least one byte")
    if queue is not None:
        error = fill(queue.provider, queue.pd, size, server_maps, True, &one.memory)
        if error:
            raise registration_error(queue.provider, size, error)
    else:
        one.memory.data = <char *>mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if one.memory.data == <char *>MAP_FAILED:
            raise MemoryError
        one.memory.size = size
        one.memory.mapped = True
    open_buffer(one, queue)
    error = touch(&one.memory) if server_maps else 0
    if error:
        one.release()
        raise os_error("memory region", error)
    if server_maps:
        copy_at_forks(&one.shared, one.memory.data, one.memory.size)
    return one


cdef Buffer register_memory(QueuePair queue, object view):
    cdef const Py_buffer *given = PyMemoryView_GET_BUFFER(view)
    cdef int access = IBV_ACCESS_REMOTE_READ if given.readonly else ACCESS
    cdef Buffer one = closed_buffer()
    if not view.c_contiguous:
        raise BufferError("only contiguous memory can be registered")
    if given.len == 0:
        raise ValueError("a Buffer has at least one byte")
    one.memory.data = <char *>given.buf
    one.memory.size = given.len
    one.readonly = given.readonly
    one.owner = view
    if queue is not None and not queue.near:
        one.memory.mr = queue.provider.reg_mr(queue.pd, given.buf, given.len, access)
        if one.memory.mr == NULL:
            raise registration_error(queue.provider, given.len, errno)
        count_registration()
    open_buffer(one, None if one.memory.mr == NULL else queue)
    return one


cdef Buffer find_buffer(const ibv_pd *pd, const char *data, size_t length):
    cdef PyObject *found = NULL
    cdef Buffer one
    lock_state(&shared_state)
    found = find_entry(pd, data, length)
    unlock_state(&shared_state)
    if found == NULL:
        return None
    one = <Buffer>found
    Py_DECREF(one)
    return one


cdef Buffer name_buffer(const ibv_pd *pd, const char *data, size_t length):
    cdef Buffer found
    lock_state(&shared_state)
    found = find_buffer(pd, data, length)
    if found is not None:
        found.transfers += 1
    unlock_state(&shared_state)
    return found


cdef void unname_buffer(Buffer named) noexcept:
    lock_state(&shared_state)
    named.transfers -= 1
    unlock_state(&shared_state)


cdef PyObject *find_entry(const ibv_pd *pd, const char *data, size_t length) noexcept:
    # find_buffer for a caller with the lock. Returns a new reference, or NULL.
    cdef void *at = buffers
    cdef size_t offset
    while at != NULL:
        offset = <size_t>data - <size_t>(<Buffer>at).memory.data
        if ((pd == NULL or (<Buffer>at).domain.pd == pd) and offset <= (<Buffer>at).memory.size
                and length <= (<Buffer>at).memory.size - offset):
            return live_object(at, <void *>(<Buffer>at).weak)
        at = (<Buffer>at).next
    return NULL
