"""The daemon's main program: from the command line to a running server, like memcached's main (memcached.c)."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from rmemcached import import_error
from rmemcached.host import read_text
from rmemcached.option_values import UsageError
from rmemcached.options import Action, parse
from rmemcached.settings import DIRECT_OFF, Settings

DESCRIPTORS_OF_ITS_OWN = 32  # listening sockets, standard streams, the main thread's
DESCRIPTORS_OF_A_THREAD = 8
PAGE_SIZE = 4096  # as in rmemcached/verbs/soft/mr.pxd
MCL_CURRENT, MCL_FUTURE = 1, 2
PR_SET_NO_NEW_PRIVS = 38
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def descriptors_needed(settings: Settings) -> int:
    """The most descriptors for -c clients and the daemon."""
    from rmemcached.server.device_setup import descriptors_of_a_client

    each = descriptors_of_a_client(near=settings.rdma_shm != "none") if settings.rdma else 1
    return settings.max_connections * each + DESCRIPTORS_OF_ITS_OWN + DESCRIPTORS_OF_A_THREAD * settings.threads


def raise_file_limit(settings: Settings) -> None:
    """Raises the limit of descriptors as -c needs."""
    needed = descriptors_needed(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    enough = hard == resource.RLIM_INFINITY or hard >= needed
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard if enough else needed))
    except (OSError, ValueError):
        if hard < settings.max_connections:
            message = "failed to set rlimit for open files. Try starting as root or requesting smaller maxconns value."
            raise UsageError(message, os.EX_OSERR) from None
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if settings.rdma and settings.verbose:
            print(
                f"RDMA: {hard} open files are allowed, and -c {settings.max_connections} may need {needed}: when they"
                " run out, clients get TCP. Raise the limit (ulimit -Hn), or lower -c.",
                file=sys.stderr,
            )


def raise_core_limit() -> None:
    """-r: core files as large as may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    for limit in (resource.RLIM_INFINITY, hard):
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
            break
        except (OSError, ValueError):
            continue
    if resource.getrlimit(resource.RLIMIT_CORE)[0] == 0:
        raise UsageError("failed to ensure corefile creation", os.EX_OSERR)


def check_large_pages() -> None:
    """-L: the store asks for huge pages. Raises UsageError where the system has none."""
    try:
        found = read_text("/sys/kernel/mm/transparent_hugepage/enabled")
        reason = "Transparent huge pages support disabled." if "[never]" in found else None
    except OSError:
        reason = "Transparent huge pages support not detected."
    if reason is not None:
        raise UsageError(
            f"{reason}\nCannot enable large pages on this system\n(There is no support as of this version)"
        )


def check_page_size(size: int) -> None:
    """Raises UsageError unless the kernel's pages have 4 KB, as assumed by the build: a wheel was built elsewhere."""
    if size != PAGE_SIZE:
        raise UsageError(
            f"rmemcached needs memory pages of 4 KB, and this kernel's have {size // 1024} KB: boot one with 4 KB",
            os.EX_UNAVAILABLE,
        )


def lock_memory() -> None:
    """-k: the process's present and future memory stays in RAM."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) != 0:
        reason = os.strerror(ctypes.get_errno())
        print(f"warning: -k invalid, mlockall() failed: {reason}", file=sys.stderr)


def give_up_privileges() -> None:
    """-o drop_privileges: no program executed by this process can gain privileges."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_privileges(user: str | None) -> None:
    """Becomes `user` when run as root, as memcached demands."""
    if os.getuid() != 0 and os.geteuid() != 0:
        return
    if not user:
        raise UsageError("must add '-u root' to start as root", os.EX_USAGE)
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"can't find the user {user} to switch to", os.EX_NOUSER) from None
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError:
        raise UsageError(f"failed to assume identity of user {user}", os.EX_OSERR) from None


def open_standard_streams() -> None:
    """Opens closed standard streams as /dev/null, so no socket of ours takes their place."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def outcome(daemon: int, serving: int) -> int:
    """Waits until the daemon serves, or has ended. Returns the exit status of the starting command."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, _: os.kill(daemon, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    if os.read(serving, 1):
        return 0
    status = os.waitstatus_to_exitcode(os.waitpid(daemon, 0)[1])
    if status < 0:
        print(f"the daemon was ended by signal {-status} before it could serve", file=sys.stderr)
    return status if status > 0 else os.EX_SOFTWARE


def daemonize(settings: Settings) -> Callable[[], None]:
    """Leaves the terminal: fork, new session, standard streams to /dev/null unless verbose. With -r the working folder
    stays: core files are written there.

    Returns a function for the daemon to call when serving. Until then the daemon may still fail, because devices and
    memory are opened after the fork: the command waits for the daemon, and has its message and exit status.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    serving, started = os.pipe()
    daemon = os.fork()
    if daemon:
        os.close(started)
        os._exit(outcome(daemon, serving))
    os.close(serving)
    os.setsid()
    if not settings.coredumps:
        os.chdir("/")

    def detach() -> None:
        if not settings.verbose:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.close(null)
        with suppress(BrokenPipeError):
            os.write(started, b"1")
        os.close(started)

    return detach


def notify_manager() -> None:
    """Tells systemd, or any manager that has set NOTIFY_SOCKET, about the serving daemon (sd_notify(3))."""
    place = os.environ.pop("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.sendto(b"READY=1\n", "\0" + place[1:] if place.startswith("@") else place)
    except OSError as error:
        print(f"NOTIFY_SOCKET={place}: {error.strerror}", file=sys.stderr)


def begin_serving(detach: Callable[[], None] | None) -> None:
    """Called when clients are served. detach: the function from daemonize."""
    notify_manager()
    if detach is not None:
        detach()


def save_pid(path: str) -> None:
    """Writes the PID file whole; warns of another live daemon's, as memcached does."""
    with suppress(OSError, ValueError):
        other = int(read_text(path))
        os.kill(other, 0)
        print(f"WARNING: The pid file contained the following (running) pid: {other}", file=sys.stderr)
    temporary = path + ".tmp"
    try:
        with open(temporary, "w") as file:
            file.write(f"{os.getpid()}\n")
        os.replace(temporary, path)
    except OSError as error:
        print(f"Could not open the pid file {temporary} for writing: {error.strerror}", file=sys.stderr)


def check_left_behind() -> int:
    """The exit status after an orderly end. In a debug build, objects left behind have a status of their own."""
    from rmemcached.sys.debug import live_objects

    left = ", ".join(f"{count} {kind}" for kind, count in live_objects().items())
    if not left:
        return 0
    print(f"left behind: {left}", file=sys.stderr)
    return os.EX_SOFTWARE


def serve(settings: Settings, action: Action) -> int:
    """Starts the daemon, and serves until a signal comes. Returns the exit status. Raises UsageError."""
    try:
        from rmemcached.server.server import Server
    except ModuleNotFoundError as error:
        raise UsageError(str(import_error(error)), os.EX_UNAVAILABLE) from None
    from rmemcached.server.sockets import ServerError

    check_page_size(resource.getpagesize())
    if settings.preallocate:
        check_large_pages()
    # A socket with a file, as the packaged service has, is no reason to say something at each start.
    if settings.rdma_direct_off in ("-Y", "-S", "-X", "overcommit_memory") or (
        settings.verbose and settings.rdma_direct_off in ("-s", "rdma_shm")
    ):
        print(f"rdma_direct is off: {DIRECT_OFF[settings.rdma_direct_off]}", file=sys.stderr)
    if action.daemonize:
        open_standard_streams()
    settings.inherited_fds = len(os.listdir("/proc/self/fd")) - 1
    server = Server(settings)
    # Others can see the daemon from now on: its signals wait until the daemon asks for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, *STOP_SIGNALS))
    saved = False
    detach = None
    try:
        if settings.coredumps:
            raise_core_limit()
        raise_file_limit(settings)
        if settings.socket_path is None:
            # A port below 1024 needs root; the UNIX socket is to belong to the user.
            server.listen()
        drop_privileges(action.user)
        if settings.socket_path is not None:
            server.listen()
        server.listen_shm()
        if action.daemonize:
            detach = daemonize(settings)
        if settings.lock_memory:
            lock_memory()
        if settings.drop_privileges:
            give_up_privileges()
        if action.pidfile is not None:
            save_pid(action.pidfile)
            saved = True
        number = server.run(partial(begin_serving, detach))
        if number == signal.SIGUSR1:
            print("Gracefully stopping", file=sys.stderr)
        elif settings.verbose:
            print("Exiting normally", file=sys.stderr)
        return check_left_behind()
    except ServerError as error:
        raise UsageError(str(error), error.status) from None
    finally:
        server.close_sockets()
        if saved and action.daemonize and action.pidfile is not None:
            try:
                os.unlink(action.pidfile)
            except OSError as error:
                print(f"Could not remove the pid file {action.pidfile}: {error.strerror}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the daemon; the console script `rmemcached`. Returns the exit status."""
    # Until the daemon waits for signals, SIGINT ends the daemon like any program, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        settings, action = parse(sys.argv[1:] if arguments is None else arguments)
        if action.show is not None:
            print(action.show, end="")
            return 0
        return serve(settings, action)
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.status


if __name__ == "__main__":
    sys.exit(main())
