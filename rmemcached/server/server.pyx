"""The daemon's main thread: sockets, accept, signals, the clock; and the Python class that starts it all."""

import os
import socket
import sys
import time

from rmemcached.server.authfile import AuthFileError
from rmemcached.host import host_identity
from rmemcached.server.sockets import (
    ServerError, choose_cm_addresses, listen_shm, open_listeners, strange_uid, write_port_file,
)

from libc.errno cimport EADDRINUSE, EADDRNOTAVAIL, ENODEV, ENOENT
from libc.stdint cimport uint16_t, uint64_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from posix.unistd cimport getpid

from rmemcached.sys.atomics cimport fetch_add, relaxed_load, relaxed_store, store_release
from rmemcached.sys.linux cimport (
    AF_INET, AF_INET6, CLOCK_MONOTONIC, EINTR, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, SFD_CLOEXEC, SFD_NONBLOCK, SIGHUP,
    SIGINT, SIGTERM, SIGUSR1, SIG_BLOCK, SIG_SETMASK, TFD_CLOEXEC, TFD_NONBLOCK, close, epoll_create1, epoll_ctl,
    epoll_event, epoll_wait, errno, itimerspec, pthread_join, pthread_mutex_init, pthread_sigmask, read,
    sigaddset, sigemptyset, signalfd, signalfd_siginfo, sigset_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage,
    timerfd_create, timerfd_settime,
)
from rmemcached.logger cimport LOG_LOCAL, LOG_TCP, LOG_UDP, logger_create, logger_destroy
from rmemcached.protocol.conn cimport ascii_prot, binary_prot, negotiating_prot, protocol
from rmemcached.protocol.stats_prefix cimport stats_prefix_create, stats_prefix_destroy
from rmemcached.rdma.wire cimport RDMA_HOST_MAX, TRANSPORT_SOFT_IW, TRANSPORT_SOFT_SHM, TRANSPORT_VERBS, rdma_transport
from rmemcached.rdma_conn cimport RDMA_PATH_MAX, rdma_place
from rmemcached.server.auth cimport hook_authenticate, load_authentication, reload_authentication
from rmemcached.server.layout cimport listener, server
from rmemcached.server.listener cimport ACCEPT_RETRY_MS, accept_all, admit_cm, places_taken, resume_listening
from rmemcached.server.stats cimport server_stats
from rmemcached.server.devices cimport (
    devices_close, devices_describe, devices_extent_added, devices_init, devices_listen, devices_open, devices_start,
    devices_stop, rdma_devices,
)
from rmemcached.server.dumps cimport dumps_create, dumps_destroy, dumps_stop
from rmemcached.server.watchers cimport watchers_create, watchers_destroy, watchers_start, watchers_stop
from rmemcached.server.worker cimport (
    connection, worker, worker_add_udp, worker_destroy, worker_give_back, worker_init, worker_start, worker_wake,
)
from rmemcached.store.store cimport (
    class_stats, store_config, store_create, store_destroy, store_get_class_stats, store_largest_class,
    store_stop_threads, store_tick,
)
from rmemcached.verbs.port cimport GID_ANY, port_spec
from rmemcached.verbs.soft cimport soft_provider
from rmemcached.verbs.system cimport system_provider
from rmemcached.verbs.verbs cimport verbs_provider

cdef enum:
    LISTEN_EVENTS = 16
    SIGNAL_EVENT = 1 << 30       # in epoll data, beside the indices of listeners
    TIMER_EVENT = (1 << 30) + 1


cdef extern from "<arpa/inet.h>" nogil:
    uint16_t htons(uint16_t port)


cdef extern from "<signal.h>" nogil:
    int kill(int pid, int sig)


# ---- hooks that the protocol calls -----------------------------------------------------------------------------------

cdef void watcher_gone(void *owner) noexcept nogil:
    worker_give_back(<connection *>owner, True, NULL, 0)


cdef void dump_over(void *owner, bint ended, char *rest, size_t length) noexcept nogil:
    worker_give_back(<connection *>owner, ended, rest, length)


cdef void hook_verbosity(void *arg, int level) noexcept nogil:
    relaxed_store(&(<server *>arg).hooks.verbose, <uint64_t>level)


cdef void hook_shutdown(void *arg, bint graceful) noexcept nogil:
    # The main thread takes it, as it does when it comes from outside.
    kill(getpid(), SIGUSR1 if graceful else SIGINT)


cdef void extent_added(void *arg, void *addr, size_t length) noexcept nogil:
    devices_extent_added(&(<server *>arg).devices, addr, length)


cdef int server_loop(server *s) noexcept nogil:
    """Accepts, ticks and waits for a signal. Returns the signal's number, or -1 with errno set."""
    cdef epoll_event events[LISTEN_EVENTS]
    cdef signalfd_siginfo info
    cdef uint64_t ticks
    cdef int i, n
    while True:
        n = epoll_wait(s.epfd, events, LISTEN_EVENTS, ACCEPT_RETRY_MS if s.listen_disabled else -1)
        if n < 0:
            if errno == EINTR:
                continue
            return -1
        for i in range(n):
            if events[i].data.u64 == SIGNAL_EVENT:
                if read(s.signal_fd, &info, sizeof(info)) == sizeof(info):
                    if info.ssi_signo != SIGHUP:
                        return <int>info.ssi_signo
                    if s.settings.auth_file != NULL:
                        with gil:
                            reload_authentication(s)
            elif events[i].data.u64 == TIMER_EVENT:
                if read(s.timer_fd, &ticks, sizeof(ticks)) == sizeof(ticks):
                    store_tick(s.store)
            elif not s.listen_disabled:
                accept_all(s, &s.listeners[events[i].data.u64])
        if s.listen_disabled:
            resume_listening(s)


cdef int watch(int epfd, int fd, uint64_t what) noexcept nogil:
    cdef epoll_event ev
    ev.events = EPOLLIN
    ev.data.u64 = what
    return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev)


cdef protocol named_protocol(name):
    return {"ascii": ascii_prot, "binary": binary_prot}.get(name, negotiating_prot)


# ---- Python ----------------------------------------------------------------------------------------------------------

cdef bytes encoded(text):
    return None if text is None else os.fsencode(text)


cdef void fill_address(sockaddr_storage *out, int family, host, int port, unsigned int scope) except *:
    cdef sockaddr_in *four = <sockaddr_in *>out
    cdef sockaddr_in6 *six = <sockaddr_in6 *>out
    packed = socket.inet_pton(family, host.partition("%")[0])
    memset(out, 0, sizeof(sockaddr_storage))
    out.ss_family = <uint16_t>family
    if family == AF_INET:
        four.sin_port = htons(<uint16_t>port)
        memcpy(&four.sin_addr, <const char *>packed, 4)
    else:
        six.sin6_port = htons(<uint16_t>port)
        six.sin6_scope_id = scope
        memcpy(&six.sin6_addr, <const char *>packed, 16)


cdef class Server:
    """One daemon. Made from a Settings object; `run` serves until a signal ends it.

    Raises ServerError when it cannot start. Not thread-safe; one per process, as signals are.
    """

    cdef server s
    cdef object settings
    cdef object sockets          # Listeners
    cdef object keep             # bytes that settings.* point into
    cdef object device_name      # ... and devices.spec
    cdef object bound            # (path, device, inode) of the UNIX socket, to remove only what is ours
    cdef object shm_path         # where the streams of soft_shm meet: rdma_place.path; None: nowhere

    def __cinit__(self, settings):
        memset(&self.s, 0, sizeof(server))
        pthread_mutex_init(&self.s.auth_lock, NULL)
        devices_init(&self.s.devices)
        self.s.epfd = self.s.signal_fd = self.s.timer_fd = -1

    def __init__(self, settings):
        self.settings = settings
        self.sockets = []
        self.bound = None
        self.shm_path = None
        inter = encoded(",".join(settings.interfaces)) if settings.interfaces else b""
        path = encoded(settings.socket_path)
        auth = encoded(settings.auth_file)
        spoken = settings.protocol.encode()
        self.keep = (inter, path, auth, spoken)
        self.device_name = encoded(settings.rdma_device or None)
        cdef server *s = &self.s
        s.settings.port = settings.port
        s.settings.udpport = settings.udp_port
        s.settings.backlog = settings.backlog
        s.settings.maxconns_fast = settings.maxconns_fast
        s.settings.inherited_fds = settings.inherited_fds
        s.settings.idle_timeout = settings.idle_timeout
        s.settings.num_napi_ids = settings.napi_ids
        s.settings.read_buf_mem_limit = settings.read_buf_mem_limit
        s.settings.binding_protocol = <const char *>spoken
        s.settings.auth_file = <const char *>auth if auth is not None else NULL
        s.settings.dump_enabled = settings.dump_enabled
        s.settings.maxconns = settings.max_connections
        s.settings.num_threads = settings.threads
        s.settings.num_threads_per_udp = settings.threads if len(settings.interfaces) < 2 else 1
        s.settings.reqs_per_event = settings.requests_per_event
        s.settings.access = settings.socket_mask
        s.settings.inter = <const char *>inter if inter else NULL
        s.settings.socketpath = <const char *>path if path is not None else NULL
        s.settings.maxbytes = settings.max_bytes
        s.settings.item_size_max = settings.item_size_max
        s.settings.slab_chunk_max = settings.slab_chunk_max
        s.settings.chunk_size = settings.chunk_size
        s.settings.factor = settings.factor
        s.settings.use_cas = settings.use_cas
        s.settings.evict_to_free = settings.evict_to_free
        s.settings.flush_enabled = settings.flush_enabled
        s.settings.watch_enabled = settings.watch_enabled
        s.settings.logger_buf_size = settings.logger_buf_size
        s.settings.logger_watcher_buf_size = settings.logger_watcher_buf_size
        s.settings.hash_power = settings.hash_power
        s.hooks.verbose = settings.verbose
        s.settings.rdma = settings.rdma
        s.settings.rdma_limits.credits = settings.rdma_credits
        s.settings.rdma_limits.msgsize = settings.rdma_msgsize
        s.settings.rdma_limits.eager = settings.rdma_eager
        s.settings.rdma_limits.ird = settings.rdma_ird
        s.settings.rdma_limits.ord = settings.rdma_ord
        s.settings.rdma_limits.max_qps = settings.rdma_max_qps
        s.settings.rdma_limits.crc = settings.rdma_crc
        s.started = int(time.time())

    # -- sockets --

    def listen(self):
        """Opens the listening sockets; to be called before privileges are dropped."""
        self.sockets = open_listeners(self.settings)
        self.remember(self.settings.socket_path)
        write_port_file(self.sockets)

    def listen_shm(self):
        """Opens the socket where clients come for shared memory; to be called after privileges are dropped."""
        wanted = self.settings.rdma_shm
        if not self.settings.rdma or wanted == "none":
            return
        try:
            host_identity()
            if self.settings.socket_path is not None:
                # Whoever may connect to the daemon may do so twice.
                self.shm_path = ""
                return
            opened, self.shm_path = listen_shm(self.settings)
        except (OSError, ServerError) as error:
            if wanted is not None:
                raise ServerError(f"rdma_shm: {error}") from None
            if self.settings.verbose:
                print(f"RDMA: no shared memory: {error}", file=sys.stderr)
            return
        self.sockets.append(opened)
        self.remember(wanted)

    def remember(self, path):
        """The socket's file is to be removed at the end."""
        if path is not None:
            found = os.lstat(path)
            self.bound = (path, found.st_dev, found.st_ino)

    @property
    def addresses(self):
        """What the listening sockets are bound to."""
        return [listener.sock.getsockname() for listener in self.sockets]

    # -- life --

    cdef void start(self) except *:
        cdef server *s = &self.s
        cdef store_config config
        cdef const char *problem = NULL
        cdef unsigned int i
        memset(&config, 0, sizeof(config))
        config.maxbytes = s.settings.maxbytes
        config.item_size_max = s.settings.item_size_max
        config.slab_chunk_size_max = s.settings.slab_chunk_max
        config.chunk_size = s.settings.chunk_size
        config.factor = s.settings.factor
        config.use_cas = s.settings.use_cas
        config.evict_to_free = s.settings.evict_to_free
        config.hashpower_init = s.settings.hash_power
        config.nthreads = s.settings.num_threads
        wanted = self.settings
        config.hash_expand = wanted.hash_expand
        config.lru_maintainer = wanted.lru_maintainer
        config.lru_segmented = wanted.lru_segmented
        config.hot_lru_pct = wanted.hot_lru_pct
        config.warm_lru_pct = wanted.warm_lru_pct
        config.hot_max_factor = wanted.hot_max_factor
        config.warm_max_factor = wanted.warm_max_factor
        config.temp_lru = wanted.temp_lru
        config.temporary_ttl = wanted.temporary_ttl
        config.lru_crawler = wanted.lru_crawler
        config.lru_crawler_sleep = wanted.lru_crawler_sleep
        config.lru_crawler_tocrawl = wanted.lru_crawler_tocrawl
        config.tail_repair_time = wanted.tail_repair_time
        config.slab_reassign = wanted.slab_reassign
        config.slab_automove = wanted.slab_automove
        config.slab_automove_ratio = wanted.slab_automove_ratio
        config.slab_automove_window = wanted.slab_automove_window
        config.slab_automove_freeratio = wanted.slab_automove_freeratio
        config.preallocate = wanted.preallocate
        for i in range(min(len(wanted.slab_sizes), 63)):
            config.slab_sizes[i] = wanted.slab_sizes[i]
        config.track_sizes = wanted.track_sizes
        # For memcached's suite.
        config.initial_malloced = int(os.environ.get("T_MEMD_INITIAL_MALLOC") or 0)
        s.log = logger_create(s.settings.logger_buf_size)
        if s.log == NULL:
            raise ServerError(f"the logger: {os.strerror(errno)}")
        s.watchers = watchers_create(s.log, s.settings.logger_watcher_buf_size, watcher_gone)
        if s.watchers == NULL:
            raise MemoryError()
        config.log = s.log
        config.extent_added = extent_added
        config.extent_arg = s
        s.store = store_create(&config, &problem)
        if s.store == NULL:
            raise ServerError((<bytes>problem).decode())
        if s.settings.rdma:
            self.open_devices()
        s.dumps = dumps_create(s.store, dump_over)
        if s.dumps == NULL:
            raise ServerError(f"dumps: {os.strerror(errno)}")
        s.hooks.arg = s
        s.hooks.stats = server_stats
        s.hooks.set_verbosity = hook_verbosity
        if self.settings.shutdown_command:
            s.hooks.shutdown = hook_shutdown
        if s.settings.auth_file != NULL:
            try:
                load_authentication(s)
            except AuthFileError as error:
                raise ServerError(error.args[0]) from None
            s.hooks.authenticate = hook_authenticate
        s.prefixes = stats_prefix_create(<char>ord(self.settings.prefix_delimiter), self.settings.detail_enabled)
        if s.prefixes == NULL:
            raise MemoryError()
        s.workers = <worker *>calloc(s.settings.num_threads, sizeof(worker))
        if s.workers == NULL:
            raise MemoryError()
        for i in range(s.settings.num_threads):
            w = &s.workers[i]
            w.thread.store = s.store
            w.thread.hooks = &s.hooks
            w.thread.reqs_per_event = s.settings.reqs_per_event
            w.thread.cas_enabled = s.settings.use_cas
            w.thread.flush_enabled = s.settings.flush_enabled
            w.thread.watch_enabled = s.settings.watch_enabled
            w.thread.log = s.log
            w.thread.dump_enabled = s.settings.dump_enabled
            w.thread.prefixes = s.prefixes
            w.thread.mem_limit = s.settings.read_buf_mem_limit // s.settings.num_threads
            w.idle_timeout = s.settings.idle_timeout
            w.thread.debug_commands = self.settings.debug_commands
            w.watchers = s.watchers
            w.dumps = s.dumps
            w.devices = s.devices.open
            w.spin_max = <uint64_t>self.settings.rdma_spin * 1000
            w.spin_ns = w.spin_max
            w.curr_connections = &s.curr_connections
            w.stop = &s.stop
            w.thread.binding_protocol = named_protocol(self.settings.protocol)
            if worker_init(w) != 0:
                raise ServerError(f"worker thread {i}: {os.strerror(errno)}")
        for listener in self.sockets:
            if listener.transport == "udp":
                self.add_udp(listener.sock)

    cdef void add_udp(self, sock) except *:
        """Lets num_threads_per_udp workers serve the socket, each with a descriptor of its own."""
        cdef server *s = &self.s
        cdef int fd
        for _ in range(s.settings.num_threads_per_udp):
            fd = os.dup(sock.fileno())
            if worker_add_udp(&s.workers[s.next_worker], fd) != 0:
                reason = os.strerror(errno)
                os.close(fd)
                raise ServerError(f"Can't listen for events on UDP socket: {reason}")
            s.next_worker = (s.next_worker + 1) % s.settings.num_threads
            fetch_add(&s.curr_connections, 1)
            fetch_add(&s.total_connections, 1)

    cdef void open_devices(self) except *:
        """The software devices, and one of the system's; on a UNIX socket only shared memory."""
        cdef server *s = &self.s
        cdef rdma_devices *d = &s.devices
        cdef const char *absent = NULL
        cdef const verbs_provider *system
        cdef char why[256]
        cdef rdma_place place
        d.limits = s.settings.rdma_limits
        d.store = s.store
        name = self.settings.rdma_device
        if self.settings.socket_path is None:
            self.open_soft_device(b"soft_iw0", TRANSPORT_SOFT_IW, NULL)
        if self.shm_path is not None:
            self.find_place(&place)
            self.open_soft_device(b"soft_shm0", TRANSPORT_SOFT_SHM, &place)
        if name == "none" or self.settings.socket_path is not None:
            return
        d.spec.device = <const char *>self.device_name if self.device_name is not None else NULL
        d.spec.port = self.settings.rdma_port
        d.spec.gid_index = self.settings.rdma_gid_index
        d.spec.iwarp = self.settings.rdma_cm_port != 0
        system = system_provider(&absent)
        if system == NULL:
            problem = absent.decode()
        elif devices_open(d, system, &d.spec, TRANSPORT_VERBS, NULL, why, sizeof(why)) != 0:
            problem = (<bytes>why).decode()
        else:
            problem = None
        if problem is not None and name:
            raise ServerError(f"RDMA: {problem}; -o rdma_device=none runs on the software devices alone")
        s.look_after_devices = system != NULL
        if self.settings.rdma_cm_port:
            if system == NULL:
                message = f"failed to listen on rdma_cm port {self.settings.rdma_cm_port}: {problem}"
                raise ServerError(message, os.EX_OSERR)
            self.listen_cm()
        if self.settings.verbose:
            if problem is not None:
                print(f"RDMA: {problem}: the software devices serve alone", file=sys.stderr)
            else:
                devices_describe(d, TRANSPORT_VERBS)

    cdef void listen_cm(self) except *:
        """Takes connections of rdma_cm where TCP's are taken. An address that no RDMA device has is left out, as long
        as there is another."""
        cdef rdma_devices *d = &self.s.devices
        cdef sockaddr_storage address
        cdef bint opened = False
        cdef int error
        port = self.settings.rdma_cm_port
        problem = "no RDMA device has a loopback address"
        for family, host, scope in choose_cm_addresses(self.sockets):
            fill_address(&address, family, host, port, scope)
            error = devices_listen(d, <const sockaddr *>&address, self.settings.backlog, &opened)
            name = f"[{host}]:{port}" if family == AF_INET6 else f"{host}:{port}"
            if error == 0:
                if self.settings.verbose:
                    print(f"RDMA: rdma_cm takes connections on {name}", file=sys.stderr)
                continue
            if not opened:
                problem = f"/dev/infiniband/rdma_cm: {os.strerror(error)}"
                if error == ENOENT:
                    problem += " (the kernel's module is rdma_ucm)"
                break
            problem = f"{name}: {os.strerror(EADDRINUSE if error == EADDRNOTAVAIL else error)}"
            if error != ENODEV:
                break
            problem = f"{name}: no RDMA device has this address"
            if self.settings.verbose:
                print(f"RDMA: rdma_cm: {problem}", file=sys.stderr)
        else:
            if d.nlisteners:
                d.admit = admit_cm
                d.admit_arg = &self.s
                return
        raise ServerError(f"failed to listen on rdma_cm port {port}: {problem}", os.EX_OSERR)

    cdef void find_place(self, rdma_place *place) except *:
        """Where clients are to connect for shared memory."""
        memset(place, 0, sizeof(rdma_place))
        identity, netns = host_identity()
        host = identity.encode()
        path = os.fsencode(self.shm_path)
        memcpy(place.host, <const char *>host, min(len(host), RDMA_HOST_MAX))
        memcpy(place.path, <const char *>path, min(len(path), RDMA_PATH_MAX - 1))
        # Only abstract names belong to a network namespace.
        place.netns = netns if path.startswith(b"@") else 0

    cdef void open_soft_device(self, const char *name, rdma_transport transport, const rdma_place *place) except *:
        cdef port_spec spec
        cdef char why[256]
        memset(&spec, 0, sizeof(spec))
        spec.device = name
        spec.gid_index = GID_ANY
        if devices_open(&self.s.devices, soft_provider(), &spec, transport, place, why, sizeof(why)) != 0:
            raise ServerError((<bytes>why).decode())
        self.s.has_devices = True

    cdef void finish(self):
        """Frees all that start made; workers have been joined."""
        cdef server *s = &self.s
        cdef unsigned int i
        if s.watchers != NULL:
            with nogil:
                watchers_stop(s.watchers)
        if s.workers != NULL:
            for i in range(s.settings.num_threads):
                # worker_init did not get that far when its queue's tail is unset.
                if s.workers[i].queue_tail != NULL:
                    worker_destroy(&s.workers[i])
            free(s.workers)
            s.workers = NULL
        devices_close(&s.devices)
        if s.store != NULL:
            store_destroy(s.store)
            s.store = NULL
        if s.dumps != NULL:
            dumps_destroy(s.dumps)
            s.dumps = NULL
        if s.watchers != NULL:
            watchers_destroy(s.watchers)
            s.watchers = NULL
        if s.log != NULL:
            logger_destroy(s.log)
            s.log = NULL
        if s.prefixes != NULL:
            stats_prefix_destroy(s.prefixes)
            s.prefixes = NULL
        free(s.auth_data)
        s.auth_data = NULL
        s.nauth = 0
        s.nlisteners = 0
        free(s.listeners)
        s.listeners = NULL
        for fd in (s.epfd, s.signal_fd, s.timer_fd):
            if fd >= 0:
                close(fd)
        s.epfd = s.signal_fd = s.timer_fd = -1
        self.close_sockets()

    def close_sockets(self):
        """Closes the listening sockets and removes the UNIX socket's file if it is still ours."""
        while self.sockets:
            self.sockets.pop().sock.close()
        if self.bound is not None:
            path = self.bound[0]
            try:
                found = os.lstat(path)
                if (path, found.st_dev, found.st_ino) == self.bound:
                    os.unlink(path)
            except OSError:
                pass
            self.bound = None

    cdef void watch_listeners(self) except *:
        cdef server *s = &self.s
        s.strange_uid = strange_uid()
        s.listeners = <listener *>calloc(max(len(self.sockets), 1), sizeof(listener))
        if s.listeners == NULL:
            raise MemoryError()
        for index, opened in enumerate(self.sockets):
            s.listeners[index].fd = opened.sock.fileno()
            s.listeners[index].transport = {"tcp": LOG_TCP, "udp": LOG_UDP}.get(opened.transport, LOG_LOCAL)
            s.listeners[index].stream_only = opened.transport == "shm"
            s.listeners[index].own_users = opened.transport == "shm" and self.shm_path.startswith("@")
            s.listeners[index].prot = named_protocol(opened.protocol)
            if opened.transport != "udp" and watch(s.epfd, s.listeners[index].fd, <uint64_t>index) != 0:
                raise ServerError(f"the listener: {os.strerror(errno)}")
            if opened.transport not in ("udp", "shm"):
                fetch_add(&s.curr_connections, 1)
                fetch_add(&s.total_connections, 1)
        s.nlisteners = <unsigned int>len(self.sockets)
        s.most_connections = s.curr_connections
        if places_taken(s) > s.settings.maxconns:
            raise ServerError("Maxconns setting is too low, use -c to increase.")

    cdef void describe(self) except *:
        """What -vv tells at the start: slab classes and listening sockets."""
        cdef class_stats k
        cdef unsigned int i
        if relaxed_load(&self.s.hooks.verbose) < 2:
            return
        for i in range(1, store_largest_class(self.s.store) + 1):
            if store_get_class_stats(self.s.store, i, &k):
                fprintf(stderr, b"slab class %3u: chunk size %9u perslab %7u\n", i, k.chunk_size, k.chunks_per_page)
        if self.shm_path:
            print(f"RDMA: shared memory meets at {self.shm_path}", file=sys.stderr)
        for listener in self.sockets:
            if listener.transport == "shm":
                continue
            what = "udp" if listener.transport == "udp" else listener.protocol
            text = what.encode()
            fprintf(stderr, b"<%d server listening (%s)\n", <int>listener.sock.fileno(), <const char *>text)

    def run(self):
        """Serves until SIGINT, SIGTERM or SIGUSR1. Returns the signal's number."""
        cdef server *s = &self.s
        cdef sigset_t mask, old
        cdef itimerspec interval
        cdef unsigned int i, started = 0
        cdef int signo = -1, err = 0
        # Blocked here, so that all threads inherit it: signals arrive at signal_fd only.
        sigemptyset(&mask)
        for number in (SIGINT, SIGTERM, SIGUSR1, SIGHUP):
            sigaddset(&mask, number)
        pthread_sigmask(SIG_BLOCK, &mask, &old)
        try:
            self.start()
            s.epfd = epoll_create1(EPOLL_CLOEXEC)
            s.signal_fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC)
            s.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
            memset(&interval, 0, sizeof(interval))
            interval.it_interval.tv_sec = 1
            interval.it_value.tv_sec = 1
            if s.epfd < 0 or s.signal_fd < 0 or s.timer_fd < 0 or timerfd_settime(s.timer_fd, 0, &interval, NULL) != 0 \
                    or watch(s.epfd, s.signal_fd, SIGNAL_EVENT) != 0 or watch(s.epfd, s.timer_fd, TIMER_EVENT) != 0:
                raise ServerError(f"the listener: {os.strerror(errno)}")
            self.watch_listeners()
            err = watchers_start(s.watchers)
            if err:
                raise ServerError(f"can't create thread: {os.strerror(err)}")
            for i in range(s.settings.num_threads):
                err = worker_start(&s.workers[i])
                if err:
                    raise ServerError(f"can't create thread: {os.strerror(err)}")
                started += 1
            if s.look_after_devices:
                err = devices_start(&s.devices, s.workers, s.settings.num_threads)
                if err:
                    raise ServerError(f"can't create thread: {os.strerror(err)}")
            self.describe()
            with nogil:
                signo = server_loop(s)
            return signo
        finally:
            if s.dumps != NULL:
                dumps_stop(s.dumps)
            if s.store != NULL:
                store_stop_threads(s.store)
            with nogil:
                devices_stop(&s.devices)
            store_release(&s.stop, 1)
            for i in range(started):
                worker_wake(&s.workers[i])
            with nogil:
                for i in range(started):
                    pthread_join(s.workers[i].id, NULL)
            self.finish()
            pthread_sigmask(SIG_SETMASK, &old, NULL)
