"""The daemon: the Python class that makes and ends all its parts, and the main thread's loop in between."""

import os
import sys
from contextlib import suppress

from rmemcached import MEMCACHED_VERSION
from rmemcached.server.authfile import AuthFileError
from rmemcached.host import host_identity
from rmemcached.server.saslconf import find as find_sasl
from rmemcached.server.sockets import ServerError, listen_shm, open_listeners, overflow_uid, write_port_file

from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport fprintf, snprintf, stderr
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from posix.unistd cimport getpid

from rmemcached.sys.atomics cimport fetch_add, relaxed_load, relaxed_store, store_release
from rmemcached.sys.debug cimport assert_owner, thread_id
from rmemcached.sys.linux cimport (
    CLOCK_MONOTONIC, EAGAIN, EINTR, EPOLLIN, EPOLL_CLOEXEC, EPOLL_CTL_ADD, SFD_CLOEXEC, SFD_NONBLOCK, SIGHUP, SIGINT,
    SIGTERM, SIGUSR1, SIG_BLOCK, SIG_SETMASK, TFD_CLOEXEC, TFD_NONBLOCK, close, epoll_create1, epoll_ctl, epoll_event,
    epoll_wait, errno, itimerspec, kill, pthread_join, pthread_sigmask, read, sigaddset, sigemptyset, signalfd,
    signalfd_siginfo, sigset_t, timerfd_create, timerfd_settime,
)
from rmemcached.flash.flash cimport (
    flash_config, flash_create, flash_destroy, flash_external, flash_start, flash_stop, flash_stop_writing,
    flash_values,
)
from rmemcached.logger cimport (
    LOG_CONNEVENTS, LOG_LOCAL, LOG_TCP, LOG_TEXT_MAX, LOG_UDP, log_text, log_wants, logger, logger_create,
    logger_destroy,
)
from rmemcached.protocol.stats_prefix cimport stats_prefix_create, stats_prefix_destroy
from rmemcached.server.auth cimport auth_check, auth_destroy, auth_init, auth_load
from rmemcached.server.configure cimport fill_flash_config, fill_settings, fill_store_config, named_protocol
from rmemcached.server.device_setup cimport setup_devices
from rmemcached.server.layout cimport listener, server
from rmemcached.server.listener cimport ACCEPT_LOOK_MS, accept_all, admit_lane, has_room, resume_listening
from rmemcached.server.stats cimport server_stats
from rmemcached.server.devices cimport (
    devices_close, devices_extent_added, devices_index_added, devices_init, devices_start, devices_stop,
)
from rmemcached.server.dumps cimport dumps_create, dumps_destroy, dumps_stop
from rmemcached.server.handshakes cimport handshakes_create, handshakes_destroy, handshakes_start
from rmemcached.server.sasl cimport sasl_create, sasl_destroy, sasl_get_hooks, sasl_start, sasl_stop
from rmemcached.server.watchers cimport watchers_create, watchers_destroy, watchers_start, watchers_stop
from rmemcached.server.worker cimport (
    worker, worker_add_udp, worker_deliver, worker_destroy, worker_give_back, worker_handshake_done, worker_init,
    worker_start, worker_wake,
)
from rmemcached.store.store cimport (
    class_stats, store_config, store_create, store_destroy, store_get_class_stats, store_get_stats, store_largest_class,
    store_note, store_stats, store_stop_threads, store_tick,
)
from rmemcached.streams.tls cimport (
    TLS_OFF, TLS_ON, TLS_TEXT_MAX, TLS_WITHOUT_PEER, TLS_WITH_PEER, tls_create, tls_destroy,
    tls_refresh, tls_session,
)

cdef enum:
    LISTEN_EVENTS = 16
    SIGNAL_EVENT = 1 << 30       # in epoll data; smaller numbers are indices of listeners
    TIMER_EVENT = (1 << 30) + 1


# ---- hooks for the protocol and the store; arg is a server -----------------------------------------------------------

cdef void hook_verbosity(void *arg, int level) noexcept nogil:
    relaxed_store(&(<server *>arg).hooks.verbose, <uint64_t>level)


cdef void hook_shutdown(void *arg, bint graceful) noexcept nogil:
    # The main thread gets the signal, as if from outside.
    kill(getpid(), SIGUSR1 if graceful else SIGINT)


cdef bint hook_authenticate(void *arg, const char *user, size_t nuser, const char *password,
                            size_t npassword) noexcept nogil:
    return auth_check(&(<server *>arg).users, user, nuser, password, npassword)


cdef bint hook_refresh_certs(void *arg, char *why) noexcept nogil:
    return tls_refresh((<server *>arg).tls, why)


cdef void tell_error(void *arg, const tls_session *x, const char *reason) noexcept nogil:
    """tls_tell_fn: logs the error of a connection, in memcached's words. arg is a logger."""
    cdef char text[LOG_TEXT_MAX]
    if log_wants(<logger *>arg, LOG_CONNEVENTS):
        snprintf(text, sizeof(text), b"type=conntlserr fd=%d msg=%s", x.stream.fd, reason)
        log_text(<logger *>arg, LOG_CONNEVENTS, text)


cdef void extent_added(void *arg, void *addr, size_t length) noexcept nogil:
    devices_extent_added(&(<server *>arg).devices, addr, length)


cdef void index_added(void *arg, void *addr, size_t length) noexcept nogil:
    devices_index_added(&(<server *>arg).devices, addr, length)


# ---- the main thread -------------------------------------------------------------------------------------------------

cdef void reload_users(server *s) noexcept:
    """Reads the users again, after SIGHUP. A faulty file changes nothing."""
    try:
        auth_load(&s.users, os.fsdecode(s.settings.auth_file))
    except (AuthFileError, MemoryError) as error:
        print(f"{error}: the users there were stay", file=sys.stderr)


cdef void refresh_certificates(server *s) noexcept nogil:
    """Reads TLS's certificates again, after SIGHUP."""
    cdef char why[TLS_TEXT_MAX]
    if s.tls != NULL and not tls_refresh(s.tls, why):
        fprintf(stderr, b"Could not reload TLS certificates on SIGHUP: %s\n", why)


cdef int server_loop(server *s) noexcept nogil:
    """Accepts connections and ticks the store's clock until a signal comes. Returns the signal's number, or -1 with
    errno set."""
    cdef epoll_event events[LISTEN_EVENTS]
    cdef signalfd_siginfo info
    cdef uint64_t ticks
    cdef int i, n
    assert_owner(s.owner)
    while True:
        n = epoll_wait(s.epfd, events, LISTEN_EVENTS, ACCEPT_LOOK_MS if s.listen_disabled else -1)
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
                            reload_users(s)
                    refresh_certificates(s)
            elif events[i].data.u64 == TIMER_EVENT:
                if read(s.timer_fd, &ticks, sizeof(ticks)) == sizeof(ticks):
                    store_tick(s.store)
            elif not s.listen_disabled:
                accept_all(s, &s.listeners[events[i].data.u64])
        if s.listen_disabled:
            resume_listening(s)


cdef bint watch(int epfd, int fd, uint64_t what) noexcept nogil:
    """Adds a descriptor to the epoll set; `what` is the data of its events. False, with errno: epoll refuses."""
    cdef epoll_event ev
    ev.events = EPOLLIN
    ev.data.u64 = what
    return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) == 0


cdef class Server:
    """A daemon, made from a Settings object; `run` serves until a signal comes.

    Raises ServerError when the daemon cannot start. Not thread-safe; a process has one Server, because it has one set
    of signals.
    """

    cdef server s
    cdef object settings
    cdef object sockets          # Listeners
    cdef object keep             # bytes behind the pointers in s.settings
    cdef object flash_files      # ... and in the configuration of s.flash
    cdef bytes device_name       # the text of s.devices.spec.device
    cdef bytes version           # the text of s.hooks.version
    cdef object bound            # (path, device, inode) of the UNIX socket, to remove only our own file
    cdef unsigned int started    # workers whose threads run
    cdef object shm_path         # shm_endpoint.path; None: no shared memory is offered

    def __cinit__(self, settings):
        memset(&self.s, 0, sizeof(server))
        auth_init(&self.s.users)
        devices_init(&self.s.devices)
        self.s.epfd = self.s.signal_fd = self.s.timer_fd = -1

    def __init__(self, settings):
        self.settings = settings
        self.sockets = []
        self.bound = None
        self.shm_path = None
        self.device_name = os.fsencode(settings.rdma_device) if settings.rdma_device else None
        self.keep = fill_settings(&self.s.settings, settings)
        self.version = MEMCACHED_VERSION.encode()
        self.s.hooks.version = self.version
        self.s.hooks.verbose = settings.verbose

    def __dealloc__(self):
        self.close_tls()
        auth_destroy(&self.s.users)

    # -- sockets --

    def listen(self):
        """Opens the listening sockets and reads TLS's certificates; to be called before privileges are dropped."""
        self.open_tls()
        self.sockets = open_listeners(self.settings)
        self.remember(self.settings.socket_path)
        write_port_file(self.sockets)

    def open_tls(self):
        """Reads TLS's certificates, if TLS is on."""
        cdef char why[TLS_TEXT_MAX]
        if not self.settings.ssl_enabled:
            return
        self.s.tls = tls_create(&self.s.settings.tls, why)
        if self.s.tls == NULL:
            raise ServerError(why.decode(errors="replace"), os.EX_USAGE)

    def listen_shm(self):
        """Opens the socket where clients come for shared memory; to be called after privileges are dropped."""
        wanted = self.settings.rdma_shm
        if not self.settings.rdma or wanted == "none":
            return
        try:
            host_identity()
            if self.settings.socket_path is not None:
                # Clients connect to the daemon's own socket once more.
                self.shm_path = ""
                return
            opened, self.shm_path = listen_shm(self.settings)
        except (OSError, ServerError) as error:
            if wanted is not None:
                raise ServerError(f"rdma_shm: {error}") from None
            if self.settings.verbose:
                print(f"RDMA: no shared memory: {error}", file=sys.stderr)
            self.share_nothing()
            return
        self.sockets.append(opened)
        self.remember(wanted)

    def share_nothing(self):
        """Switches direct reads off: there is no shared memory after all."""
        self.settings.rdma_direct = "off"
        self.settings.rdma_direct_off = "shared_memory"
        self.settings.rdma_view_limit = None
        self.keep = fill_settings(&self.s.settings, self.settings)

    def remember(self, path):
        """Notes the socket's file, to be removed at the end."""
        if path is not None:
            # The daemon of -d has another working folder at its end.
            path = os.path.abspath(path)
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                # Somebody has moved the file away already; a file there at the end is not ours.
                return
            self.bound = (path, found.st_dev, found.st_ino)

    @property
    def addresses(self):
        """The addresses of the listening sockets."""
        return [listener.sock.getsockname() for listener in self.sockets]

    # -- start and end --

    cdef void start(self) except *:
        """Makes everything except the threads of workers, logger and devices. `finish` frees the parts made so far."""
        cdef server *s = &self.s
        self.open_store()
        if self.settings.rdma:
            setup_devices(s, self.settings, self.sockets, self.shm_path, self.device_name)
        s.dumps = dumps_create(s.store, worker_give_back)
        if s.dumps == NULL:
            raise ServerError(f"dumps: {os.strerror(errno)}")
        self.set_hooks()
        s.prefixes = stats_prefix_create(<char>ord(self.settings.prefix_delimiter), self.settings.detail_enabled)
        if s.prefixes == NULL:
            raise MemoryError()
        if s.tls != NULL:
            s.tls.tell = tell_error
            s.tls.tell_arg = s.log
            s.handshakes = handshakes_create(
                min(self.settings.threads, len(os.sched_getaffinity(0))), worker_handshake_done)
            if s.handshakes == NULL:
                raise MemoryError()
        self.make_workers()
        for listener in self.sockets:
            if listener.transport == "udp":
                self.add_udp(listener.sock)

    cdef void open_store(self) except *:
        """Makes the store and its log."""
        cdef server *s = &self.s
        cdef store_config config
        cdef const char *problem = NULL
        fill_store_config(&config, self.settings)
        s.log = logger_create(s.settings.logger_buf_size)
        if s.log == NULL:
            raise ServerError(f"the logger: {os.strerror(errno)}")
        s.watchers = watchers_create(s.log, s.settings.logger_watcher_buf_size, worker_give_back)
        if s.watchers == NULL:
            raise MemoryError()
        self.open_flash()
        self.fill_store_hooks(&config)
        s.store = store_create(&config, &problem)
        if s.store == NULL and self.settings.rdma_direct == "own" and not config.direct_remote:
            # Nobody has asked for direct reads: the daemon starts without them.
            first = (<bytes>problem).decode()
            self.share_nothing()
            fill_store_config(&config, self.settings)
            self.fill_store_hooks(&config)
            s.store = store_create(&config, &problem)
            if s.store != NULL:
                print(f"RDMA: rdma_direct is off: {first}", file=sys.stderr)
        if s.store == NULL:
            raise ServerError(os.fsdecode(<bytes>problem))
        self.tell_restart()

    cdef void tell_restart(self) except *:
        """Says what became of a memory file's items: at any time if they were not kept, and with -v otherwise."""
        cdef store_stats found
        note = os.fsdecode(store_note(self.s.store))
        if note:
            print(note, file=sys.stderr)
        elif self.settings.memory_file is not None and self.settings.verbose:
            store_get_stats(self.s.store, &found)
            print(
                f"memory file {self.settings.memory_file}: {found.restored_items} items kept, "
                f"{found.restored_expired} expired, {found.restored_dropped} dropped, "
                f"{found.restored_us / 1e6:.3f} s",
                file=sys.stderr,
            )

    cdef void open_flash(self) except *:
        """Makes external storage."""
        cdef flash_config config
        cdef char why[512]
        if self.settings.ext_paths:
            self.flash_files = fill_flash_config(&config, self.settings)
            config.log = self.s.log
            self.s.flash = flash_create(&config, why, sizeof(why))
            if self.s.flash == NULL:
                raise ServerError(f"Failed to initialize external storage: {(<bytes>why).decode(errors='replace')}")

    cdef void fill_store_hooks(self, store_config *config) noexcept:
        config.log = self.s.log
        config.extent_added = extent_added
        config.index_added = index_added
        config.extent_arg = &self.s
        config.memory_file = self.s.settings.memory_file
        if self.s.flash != NULL:
            config.external = flash_external(self.s.flash)

    cdef void set_hooks(self) except *:
        cdef server *s = &self.s
        s.hooks.arg = s
        s.hooks.stats = server_stats
        s.hooks.set_verbosity = hook_verbosity
        if self.settings.shutdown_command:
            s.hooks.shutdown = hook_shutdown
        if self.settings.auth_file is not None:
            try:
                auth_load(&s.users, self.settings.auth_file)
            except AuthFileError as error:
                raise ServerError(error.args[0]) from None
            s.hooks.authenticate = hook_authenticate
        if self.settings.sasl:
            folder, passwords = find_sasl(os.environ)
            s.sasl = sasl_create(folder, passwords, &s.hooks.verbose, worker_deliver)
            s.hooks.sasl = sasl_get_hooks(s.sasl)
        if s.tls != NULL:
            s.hooks.refresh_certs = hook_refresh_certs

    cdef void make_workers(self) except *:
        cdef server *s = &self.s
        cdef worker *w
        cdef unsigned int i
        wanted = self.settings
        s.workers = <worker *>calloc(s.settings.num_threads, sizeof(worker))
        if s.workers == NULL:
            raise MemoryError()
        for i in range(s.settings.num_threads):
            w = &s.workers[i]
            w.thread.store = s.store
            w.thread.hooks = &s.hooks
            w.thread.log = s.log
            w.thread.prefixes = s.prefixes
            if s.flash != NULL:
                w.thread.external = flash_values(s.flash)
            w.thread.reqs_per_event = s.settings.reqs_per_event
            w.thread.mem_limit = s.settings.read_buf_mem_limit // s.settings.num_threads
            w.thread.binding_protocol = named_protocol(wanted.protocol)
            w.thread.cas_enabled = wanted.use_cas
            w.thread.flush_enabled = wanted.flush_enabled
            w.thread.watch_enabled = wanted.watch_enabled
            w.thread.dump_enabled = wanted.dump_enabled
            w.thread.debug_commands = wanted.debug_commands
            w.watchers = s.watchers
            w.dumps = s.dumps
            w.all = s.workers
            w.nall = s.settings.num_threads
            w.number = i
            w.rdma.devices = s.devices.open
            w.idle_timeout = s.settings.idle_timeout
            w.rdma.polling.gap_max = <int64_t>wanted.rdma_spin * 1000
            w.rdma.polling.share = wanted.rdma_spin_share
            w.curr_connections = &s.curr_connections
            w.turns_back = &s.turns_back if s.settings.num_napi_ids == 0 else NULL
            w.admit_lane = admit_lane
            w.admit_arg = s
            w.stop = &s.stop
            w.tls = s.tls
            w.handshakes = s.handshakes
            w.cleartext = wanted.rdma_cleartext
            if not worker_init(w):
                raise ServerError(f"worker thread {i}: {os.strerror(errno)}")

    cdef void add_udp(self, sock) except *:
        """Lets num_threads_per_udp workers serve the socket, each with a descriptor of its own."""
        cdef server *s = &self.s
        cdef int fd
        for _ in range(s.settings.num_threads_per_udp):
            fd = os.dup(sock.fileno())
            if not worker_add_udp(&s.workers[s.next_worker], fd):
                reason = os.strerror(errno)
                os.close(fd)
                raise ServerError(f"Can't listen for events on UDP socket: {reason}")
            s.next_worker = (s.next_worker + 1) % s.settings.num_threads
            fetch_add(&s.curr_connections, 1)
            fetch_add(&s.total_connections, 1)

    cdef void finish(self):
        """Frees everything made by `start`. The workers have been joined."""
        cdef server *s = &self.s
        cdef unsigned int i
        if s.watchers != NULL:
            with nogil:
                watchers_stop(s.watchers)
        if s.handshakes != NULL:
            with nogil:
                handshakes_destroy(s.handshakes)
            s.handshakes = NULL
        if s.workers != NULL:
            for i in range(s.settings.num_threads):
                # Without queue_tail worker_init has not been called.
                if s.workers[i].queue_tail != NULL:
                    worker_destroy(&s.workers[i])
            free(s.workers)
            s.workers = NULL
        if s.sasl != NULL:
            sasl_destroy(s.sasl)
            s.sasl = NULL
            s.hooks.sasl = NULL
        self.close_tls()
        devices_close(&s.devices)
        if s.store != NULL:
            store_destroy(s.store)
            s.store = NULL
        if s.flash != NULL:
            flash_destroy(s.flash)
            s.flash = NULL
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
        s.nlisteners = 0
        free(s.listeners)
        s.listeners = NULL
        for fd in (s.epfd, s.signal_fd, s.timer_fd):
            if fd >= 0:
                close(fd)
        s.epfd = s.signal_fd = s.timer_fd = -1
        self.close_sockets()

    cdef void close_tls(self) noexcept:
        """Frees TLS's context. No connection may be left."""
        if self.s.tls != NULL:
            tls_destroy(self.s.tls)
            self.s.tls = NULL

    def close_sockets(self):
        """Closes the listening sockets and removes the UNIX socket's file, if the file is still ours."""
        while self.sockets:
            self.sockets.pop().sock.close()
        if self.bound is not None:
            path = self.bound[0]
            with suppress(OSError):
                found = os.lstat(path)
                if (path, found.st_dev, found.st_ino) == self.bound:
                    os.unlink(path)
            self.bound = None

    cdef void watch_listeners(self) except *:
        cdef server *s = &self.s
        s.overflow_uid = overflow_uid()
        s.listeners = <listener *>calloc(max(len(self.sockets), 1), sizeof(listener))
        if s.listeners == NULL:
            raise MemoryError()
        for index, opened in enumerate(self.sockets):
            s.listeners[index].fd = opened.sock.fileno()
            s.listeners[index].transport = {"tcp": LOG_TCP, "udp": LOG_UDP}.get(opened.transport, LOG_LOCAL)
            s.listeners[index].stream_only = opened.transport == "shm"
            s.listeners[index].own_users = opened.transport == "shm" and self.shm_path.startswith("@")
            s.listeners[index].prot = named_protocol(opened.protocol)
            s.listeners[index].tls = {"tls": TLS_ON, "btls": TLS_WITHOUT_PEER, "mtls": TLS_WITH_PEER}.get(
                opened.tls, TLS_OFF)
            if opened.transport != "udp" and not watch(s.epfd, s.listeners[index].fd, <uint64_t>index):
                raise ServerError(f"the listener: {os.strerror(errno)}")
            if opened.transport not in ("udp", "shm"):
                fetch_add(&s.curr_connections, 1)
                fetch_add(&s.total_connections, 1)
        s.nlisteners = <unsigned int>len(self.sockets)
        s.most_connections = s.curr_connections
        if not has_room(s, 0):
            raise ServerError("Maxconns setting is too low, use -c to increase.")

    cdef void describe(self) except *:
        """Prints the lines of -vv at the start: slab classes and listening sockets."""
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

    cdef void open_loop(self, const sigset_t *signals) except *:
        """Makes the descriptors for server_loop."""
        cdef server *s = &self.s
        cdef itimerspec interval
        memset(&interval, 0, sizeof(interval))
        interval.it_interval.tv_sec = 1
        interval.it_value.tv_sec = 1
        s.epfd = epoll_create1(EPOLL_CLOEXEC)
        s.signal_fd = signalfd(-1, signals, SFD_NONBLOCK | SFD_CLOEXEC)
        s.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        if s.epfd < 0 or s.signal_fd < 0 or s.timer_fd < 0 or timerfd_settime(s.timer_fd, 0, &interval, NULL) != 0 \
                or not watch(s.epfd, s.signal_fd, SIGNAL_EVENT) or not watch(s.epfd, s.timer_fd, TIMER_EVENT):
            raise ServerError(f"the listener: {os.strerror(errno)}")
        self.watch_listeners()

    cdef void start_threads(self) except *:
        cdef server *s = &self.s
        cdef int err = watchers_start(s.watchers)
        if err == 0 and s.flash != NULL and not flash_start(s.flash, s.store):
            err = EAGAIN
        if err == 0 and s.sasl != NULL:
            err = sasl_start(s.sasl)
        while err == 0 and self.started < s.settings.num_threads:
            err = worker_start(&s.workers[self.started])
            self.started += err == 0
        if err == 0 and s.handshakes != NULL:
            err = handshakes_start(s.handshakes)
        if err == 0 and s.has_system_devices:
            err = devices_start(&s.devices, s.workers, s.settings.num_threads)
        if err:
            raise ServerError(f"can't create thread: {os.strerror(err)}")

    cdef void stop_threads(self):
        """Ends all threads except the logger's. `finish` ends the logger after the last entry."""
        cdef server *s = &self.s
        cdef unsigned int i
        if s.dumps != NULL:
            dumps_stop(s.dumps)
        if s.flash != NULL:
            with nogil:
                flash_stop_writing(s.flash)
        if s.store != NULL:
            store_stop_threads(s.store)
        with nogil:
            # The devices' thread may wait for the workers, so the workers run longer.
            devices_stop(&s.devices)
        store_release(&s.stop, 1)
        for i in range(self.started):
            worker_wake(&s.workers[i])
        with nogil:
            for i in range(self.started):
                pthread_join(s.workers[i].id, NULL)
        self.started = 0
        if s.flash != NULL:
            with nogil:
                flash_stop(s.flash)
        if s.sasl != NULL:
            with nogil:
                sasl_stop(s.sasl)

    def run(self, serving=None):
        """Serves until SIGINT, SIGTERM or SIGUSR1. Returns the signal's number. serving: called when no part of the
        start can fail any more."""
        cdef server *s = &self.s
        cdef sigset_t signals, old
        cdef int signo = -1
        # All threads inherit the blocked signals, so these signals arrive at signal_fd only.
        sigemptyset(&signals)
        for number in (SIGINT, SIGTERM, SIGUSR1, SIGHUP):
            sigaddset(&signals, number)
        pthread_sigmask(SIG_BLOCK, &signals, &old)
        s.owner = thread_id()
        try:
            self.start()
            self.open_loop(&signals)
            self.start_threads()
            self.describe()
            if serving is not None:
                serving()
            with nogil:
                signo = server_loop(s)
            return signo
        finally:
            self.stop_threads()
            self.finish()
            s.owner = 0
            pthread_sigmask(SIG_SETMASK, &old, NULL)
