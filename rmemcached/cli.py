"""The daemon's command line: memcached's flags, meanings, messages and exit statuses (memcached.c, main)."""

from __future__ import annotations

import getopt
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rmemcached import MEMCACHED_VERSION
from rmemcached.settings import MEGABYTE, Settings

EX_USAGE = 64
EX_NOUSER = 67
EX_OSERR = 71
DESCRIPTORS_OF_ITS_OWN = 32  # listening sockets, standard streams, the interpreter's; besides a few for each thread

SHORT = "p:U:s:a:l:du:m:Mc:vhViP:f:n:t:R:Cb:I:Fo:"
LONG = {
    "port=": "p",
    "udp-port=": "U",
    "unix-socket=": "s",
    "unix-mask=": "a",
    "listen=": "l",
    "daemon": "d",
    "user=": "u",
    "memory-limit=": "m",
    "disable-evictions": "M",
    "conn-limit=": "c",
    "verbose": "v",
    "help": "h",
    "version": "V",
    "license": "i",
    "pidfile=": "P",
    "slab-growth-factor=": "f",
    "slab-min-size=": "n",
    "threads=": "t",
    "max-reqs-per-event=": "R",
    "disable-cas": "C",
    "listen-backlog=": "b",
    "max-item-size=": "I",
    "disable-flush-all": "F",
    "extended=": "o",
}

USAGE = """\
memcached {version}
-p, --port=<num>          TCP port to listen on (default: 11211)
-U, --udp-port=<num>      UDP port to listen on: only 0 (off, the default)
-s, --unix-socket=<file>  UNIX socket to listen on (disables network support)
-a, --unix-mask=<mask>    access mask for UNIX socket, in octal (default: 700)
-l, --listen=<addr>       interface to listen on (default: INADDR_ANY)
                          <addr> may be host, host:port or [ipv6]:port, several of them separated by commas
-d, --daemon              run as a daemon
-u, --user=<user>         assume identity of <user> (only when run as root)
-m, --memory-limit=<num>  item memory in megabytes (default: 64)
-M, --disable-evictions   return error on memory exhausted instead of evicting
-c, --conn-limit=<num>    max simultaneous connections (default: 1024)
-v, --verbose             verbose (print errors/warnings while in event loop)
-h, --help                print this help and exit
-i, --license             print the license and exit
-V, --version             print version and exit
-P, --pidfile=<file>      save PID in <file>, only used with -d option
-f, --slab-growth-factor=<num> chunk size growth factor (default: 1.25)
-n, --slab-min-size=<bytes> min space used for key+value+flags (default: 48)
-t, --threads=<num>       number of threads to use (default: 4)
-R, --max-reqs-per-event  maximum number of requests per event, limits the
                          requests processed per connection to prevent
                          starvation (default: 20)
-C, --disable-cas         disable use of CAS
-b, --listen-backlog=<num> set the backlog queue limit (default: 1024)
-I, --max-item-size=<num> adjusts max item size
                          (default: 1m, min: 1k, max: 1024m)
-F, --disable-flush-all   disable flush_all command
-o, --extended            comma separated list of extended options
                          most options have a 'no_' prefix to disable
   - hashpower:           an integer multiplier for how large the hash
                          table should be (default: 16)
   - slab_chunk_max:      maximum slab size in kilobytes (default: 512)
   - rdma:                offer RDMA on the TCP port (default: on)
   - rdma_device:         libibverbs device to serve on besides the software one,
                          "none" for none (default: the first that can)
   - rdma_port:           its port (default: the first active one)
   - rdma_gid_index:      its GID (default: RoCE v2 with an IPv4 address before others)
   - rdma_eager:          values up to this many bytes travel in SENDs (default: {eager})
   - rdma_credits:        receives posted for each queue pair (default: {credits})
   - rdma_msgsize:        bytes of each (default: {msgsize})
   - rdma_max_qps:        queue pairs at most (default: {qps})
   - rdma_spin:           microseconds to poll, at most, before sleeping
                          after RDMA work (default: {spin})
   - debug_commands:      answer debugtime and debugitem, for tests
   - relaxed_privileges:  accepted for memcached's test suite
   - rdma_crc:            CRC32c on every iWARP stream (default: where the client asks)
"""


class UsageError(Exception):
    """A command line that cannot be run: `args[0]` is the line to print, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Action:
    """What to do besides serving."""

    def __init__(self) -> None:
        self.daemonize = False
        self.pidfile: str | None = None
        self.user: str | None = None
        self.show: str | None = None


def integer(text: str, message: str, low: int | None = None, status: int = 1) -> int:
    try:
        value = int(text)
    except ValueError:
        raise UsageError(message, status) from None
    if low is not None and value < low:
        raise UsageError(message, status)
    return value


def parse_size(text: str) -> int:
    """A size of -I in bytes: a number with k or m behind it, or without."""
    unit = {"k": 1024, "m": MEGABYTE}.get(text[-1:].lower(), 1)
    digits = text[:-1] if unit > 1 else text
    return integer(digits, f"Item max size is not a number: {text}", 0, EX_USAGE) * unit


def parse_extended(text: str, settings: Settings) -> None:
    """The options of -o."""

    def numeric(name: str, low: int, high: int) -> Callable[[str], int]:
        def convert(value: str) -> int:
            number = integer(value, f"could not parse argument to {name}: {value}")
            if not low <= number <= high:
                raise UsageError(f"{name} must be between {low} and {high}, not {number}")
            return number

        return convert

    def hash_power(value: str) -> int:
        power = integer(value, f"could not parse argument to hashpower: {value}")
        if power < 12:
            raise UsageError(f"Initial hashtable multiplier of {power} is too low")
        if power > 32:
            raise UsageError(f"Initial hashtable multiplier of {power} is too high")
        return power

    numbers: dict[str, tuple[str, Callable[[str], object]]] = {
        "hashpower": ("hash_power", hash_power),
        "slab_chunk_max": ("slab_chunk_max", numeric("slab_chunk_max", 1, 1024)),
        "rdma_eager": ("rdma_eager", numeric("rdma_eager", 0, 1 << 30)),
        "rdma_credits": ("rdma_credits", numeric("rdma_credits", 2, 1024)),
        "rdma_msgsize": ("rdma_msgsize", numeric("rdma_msgsize", 512, 65536)),
        "rdma_max_qps": ("rdma_max_qps", numeric("rdma_max_qps", 1, 1 << 20)),
        "rdma_spin": ("rdma_spin", numeric("rdma_spin", 0, 1000000)),
        "rdma_device": ("rdma_device", str),
        "rdma_port": ("rdma_port", numeric("rdma_port", 1, 255)),
        "rdma_gid_index": ("rdma_gid_index", numeric("rdma_gid_index", 0, 255)),
    }
    switches = {
        "rdma": ("rdma", True),
        "no_rdma": ("rdma", False),
        "rdma_crc": ("rdma_crc", True),
        "no_rdma_crc": ("rdma_crc", False),
        "debug_commands": ("debug_commands", True),
    }
    for word in filter(None, text.split(",")):
        name, equals, value = word.partition("=")
        if word == "relaxed_privileges":
            # Of memcached's debug build, whose test suite gives it always; here no privilege is dropped at all.
            continue
        if name in switches and not equals:
            setattr(settings, *switches[name])
        elif name in numbers:
            if not value:
                what = "numeric argument for hashpower" if name == "hashpower" else f"{name} argument"
                raise UsageError(f"Missing {what}")
            attribute, convert = numbers[name]
            setattr(settings, attribute, convert(value))
            if name == "slab_chunk_max":
                settings.slab_chunk_max *= 1024
        else:
            raise UsageError(f'Illegal suboption "{word}"')


def getopt_message(error: getopt.GetoptError) -> str:
    """What the C library's getopt_long says."""
    missing = "requires argument" in error.msg
    if "not a unique prefix" in error.msg:
        return f"option '--{error.opt}' is ambiguous"
    if len(error.opt) == 1:
        return f"option requires an argument -- '{error.opt}'" if missing else f"invalid option -- '{error.opt}'"
    if "must not have" in error.msg:
        return f"option '--{error.opt}' doesn't allow an argument"
    return f"option '--{error.opt}' requires an argument" if missing else f"unrecognized option '--{error.opt}'"


def parse(arguments: Sequence[str]) -> tuple[Settings, Action]:
    """Turns the words of the command line into settings. Raises UsageError."""
    settings = Settings()
    action = Action()
    try:
        options, _ = getopt.gnu_getopt(list(arguments), SHORT, list(LONG))
    except getopt.GetoptError as error:
        raise UsageError(f'memcached: {getopt_message(error)}\nIllegal argument "?"') from None
    names = {name.rstrip("="): short for name, short in LONG.items()}
    for option, value in options:
        flag = names[option[2:]] if option.startswith("--") else option[1:]
        match flag:
            case "p":
                settings.port = integer(value, f"Invalid port number: {value}", -1)
                if settings.port > 65535:
                    raise UsageError(f"ERROR: Invalid port number {value}.", EX_USAGE)
            case "U":
                if integer(value, f"Invalid UDP port number: {value}") != 0:
                    raise UsageError("This server is not built with UDP support: only -U 0 is accepted.", EX_USAGE)
            case "s":
                settings.socket_path = value
            case "a":
                try:
                    settings.socket_mask = int(value, 8)
                except ValueError:
                    raise UsageError(f"Invalid access mask: {value}") from None
            case "l":
                settings.interfaces += [part for part in value.split(",") if part]
            case "d":
                action.daemonize = True
            case "u":
                action.user = value
            case "m":
                settings.max_bytes = integer(value, f"Invalid memory limit: {value}", 0) * MEGABYTE
            case "M":
                settings.evict_to_free = False
            case "c":
                message = "Maximum connections must be greater than 0"
                settings.max_connections = integer(value, message, 1)
            case "v":
                settings.verbose += 1
            case "h":
                defaults = Settings()
                action.show = USAGE.format(
                    version=MEMCACHED_VERSION,
                    eager=defaults.rdma_eager,
                    credits=defaults.rdma_credits,
                    msgsize=defaults.rdma_msgsize,
                    qps=defaults.rdma_max_qps,
                    spin=defaults.rdma_spin,
                )
            case "V":
                action.show = f"memcached {MEMCACHED_VERSION}\n"
            case "i":
                action.show = f"memcached {MEMCACHED_VERSION}\n\nrmemcached: BSD-3-Clause, see the file LICENSE.\n"
            case "P":
                action.pidfile = value
            case "f":
                try:
                    settings.factor = float(value)
                except ValueError:
                    settings.factor = 0
                if not settings.factor > 1.0:
                    raise UsageError("Factor must be greater than 1")
            case "n":
                settings.chunk_size = integer(value, "Chunk size must be greater than 0", 1)
            case "t":
                settings.threads = integer(value, "Number of threads must be greater than 0", 1)
                if settings.threads > 64:
                    print(
                        "WARNING: Setting a high number of worker threads is not recommended.\n"
                        " Set this value to the number of cores in your machine or less.",
                        file=sys.stderr,
                    )
            case "R":
                settings.requests_per_event = integer(value, "Number of requests per event must be greater than 0", 1)
            case "C":
                settings.use_cas = False
            case "b":
                settings.backlog = integer(value, f"Invalid backlog: {value}", 1)
            case "I":
                settings.item_size_max = parse_size(value)
            case "F":
                settings.flush_enabled = False
            case "o":
                parse_extended(value, settings)
        if action.show is not None:
            return settings, action
    check(settings)
    return settings, action


def check(settings: Settings) -> None:
    """The limits that options have together."""
    size, chunk = settings.item_size_max, settings.slab_chunk_max
    if size < 1024:
        raise UsageError("Item max size cannot be less than 1024 bytes.", EX_USAGE)
    if size > settings.max_bytes // 2:
        raise UsageError("Cannot set item size limit higher than 1/2 of memory max.", EX_USAGE)
    if size > 1024 * MEGABYTE:
        raise UsageError("Cannot set item size limit higher than a gigabyte.", EX_USAGE)
    if chunk > size:
        message = f"slab_chunk_max (bytes: {chunk}) cannot be larger than -I (item_size_max {size})"
        raise UsageError(message, EX_USAGE)
    if size % chunk:
        message = f"-I (item_size_max: {size}) must be evenly divisible by slab_chunk_max (bytes: {chunk})"
        raise UsageError(message, EX_USAGE)
    if MEGABYTE % chunk:
        message = f"slab_chunk_max (bytes: {chunk}) must divide evenly into {MEGABYTE} (slab_page_size)"
        raise UsageError(message, EX_USAGE)


def raise_file_limit(settings: Settings) -> None:
    """Lets the process have as many descriptors as -c asks for; an RDMA client uses two."""
    needed = settings.max_connections * (2 if settings.rdma else 1) + DESCRIPTORS_OF_ITS_OWN + 8 * settings.threads
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    enough = hard == resource.RLIM_INFINITY or hard >= needed
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard if enough else needed))
    except (OSError, ValueError):
        if hard < settings.max_connections + DESCRIPTORS_OF_ITS_OWN:
            message = "failed to set rlimit for open files. Try starting as root or requesting smaller maxconns value."
            raise UsageError(message, EX_OSERR) from None
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def drop_privileges(user: str | None) -> None:
    """Becomes `user` when run as root, as memcached demands."""
    if os.getuid() != 0 and os.geteuid() != 0:
        return
    if not user:
        raise UsageError("must add '-u root' to start as root", EX_USAGE)
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(f"can't find the user {user} to switch to", EX_NOUSER) from None
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError:
        raise UsageError(f"failed to assume identity of user {user}", EX_OSERR) from None


def daemonize(verbose: int) -> None:
    """Leaves the terminal: fork, new session, standard streams to /dev/null unless verbose."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    if not verbose:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if null > 2:
            os.close(null)


def save_pid(path: str) -> None:
    """Writes the PID file whole; warns of another live daemon's, as memcached does."""
    file = Path(path)
    try:
        other = int(file.read_text())
        os.kill(other, 0)
        print(f"WARNING: The pid file contained the following (running) pid: {other}", file=sys.stderr)
    except (OSError, ValueError):
        pass
    temporary = Path(path + ".tmp")
    try:
        temporary.write_text(f"{os.getpid()}\n")
        temporary.replace(file)
    except OSError as error:
        print(f"Could not open the pid file {temporary} for writing: {error.strerror}", file=sys.stderr)


def serve(settings: Settings, action: Action) -> int:
    from rmemcached.server.server import Server, ServerError

    server = Server(settings)
    # From the first moment in which somebody can see the daemon, its signals wait until it asks for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
    saved = False
    try:
        raise_file_limit(settings)
        if settings.socket_path is None:
            # A port below 1024 needs root; the UNIX socket is to belong to the user.
            server.listen()
        drop_privileges(action.user)
        if settings.socket_path is not None:
            server.listen()
        if action.daemonize:
            sys.stdout.flush()
            daemonize(settings.verbose)
        if action.pidfile is not None:
            save_pid(action.pidfile)
            saved = True
        number = server.run()
        if number == signal.SIGUSR1:
            print("Gracefully stopping", file=sys.stderr)
        elif settings.verbose:
            print("Exiting normally", file=sys.stderr)
        return 0
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
    # Before the daemon waits for signals, SIGINT ends it as it ends any program, without a traceback.
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
