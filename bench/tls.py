"""TLS for the benchmarks: a certificate, servers with a port with TLS and a port without, and handshakes."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

from rmemcached.bench.contenders import Contender, start
from rmemcached.bench.errors import BenchError
from rmemcached.bench.helpers import orders
from rmemcached.bench.memory import exchange
from rmemcached.bench.servers import HOST, START_TIMEOUT, Server, StartError, on_free_port

ABSENT = "openssl is not in PATH (apt-get install openssl): TLS is not measured"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close sends a reset, and leaves no port in TIME_WAIT


@dataclass(frozen=True)
class Certificate:
    """Files in PEM: a certificate signed by itself, and its key."""

    certificate: str
    key: str

    def client(self) -> ssl.SSLContext:
        """A client with trust in this certificate alone, and without resumption: each handshake is a full handshake."""
        context = ssl.create_default_context(cafile=self.certificate)
        context.check_hostname = False
        return context

    def server(self) -> ssl.SSLContext:
        """A server without tickets: nobody can resume its sessions."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        context.num_tickets = 0
        return context


def make_certificate(folder: str) -> Certificate | None:
    """A certificate with a key on the curve P-256. None: there is no command openssl. Raises BenchError."""
    if shutil.which("openssl") is None:
        return None
    made = Certificate(f"{folder}/certificate.pem", f"{folder}/key.pem")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=rmemcached-bench"
    command = ["openssl", *words.split(), "-keyout", made.key, "-out", made.certificate]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"openssl req ended with status {done.returncode}: {' '.join(done.stderr.split())}")
    return made


class Secured:
    """The port with TLS of a server; `server` is the same server at its port without TLS."""

    def __init__(self, server: Server, port: int, context: ssl.SSLContext) -> None:
        self.server = server
        self.address = (HOST, port)
        self.context = context
        self.private_bytes = server.private_bytes

    def connect(self, timeout: float | None = 5.0) -> ssl.SSLSocket:
        """A socket after its handshake. timeout: seconds. Raises OSError."""
        return self.context.wrap_socket(socket.create_connection(self.address, timeout))


def start_secured(contender: Contender, flags: Sequence[str], certificate: Certificate) -> Secured:
    """Starts the contender's server with a port with TLS and a port without. Raises StartError."""
    files = f"ssl_chain_cert={certificate.certificate},ssl_key={certificate.key}"

    def attempt(plain: int) -> Server:
        words = [*flags, "-l", f"notls:{HOST}:{plain}", "-Z", "-o", files]
        server: Server = start(contender, words, "", os.sched_getaffinity(0))
        return server

    server = on_free_port(attempt)
    secured = Secured(server, server.port, certificate.client())
    # The second port is in the command line only.
    (word,) = [word for word in server.command if word.startswith("notls:")]
    server.port = int(word.rpartition(":")[2])
    await_port(server)
    return secured


def await_port(server: Server) -> None:
    """Waits for a further port of -l: it may take connections later than the first. Raises StartError."""
    deadline = time.monotonic() + START_TIMEOUT
    while True:
        try:
            server.connect(1.0).close()
        except OSError as error:
            if not server.alive() or time.monotonic() > deadline:
                said = server.said()
                server.kill()
                raise StartError(f"{server.told()} has no port {server.port}: {said}") from error
            time.sleep(0.001)
        else:
            return


def shaker(pipe: Connection, cores: set[int], certificate: Certificate) -> None:
    """Answers ("shake", seconds, address), and ("alone", seconds) for two ends in this process, with (handshakes,
    seconds)."""
    client, server = certificate.client(), certificate.server()
    for what, seconds, *address in orders(pipe, cores):
        work = partial(shake, client, *address) if what == "shake" else partial(shake_alone, client, server)
        done = 0
        begin = time.perf_counter()
        while done == 0 or time.perf_counter() - begin < seconds:
            work()
            done += 1
        pipe.send((done, time.perf_counter() - begin))


def shake(context: ssl.SSLContext, address: tuple[str, int]) -> None:
    """A connection, a full handshake, and one short request: after its reply the server has finished, too."""
    with socket.create_connection(address, 60) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with context.wrap_socket(plain) as session:
            exchange(session, b"mn\r\n", 4)


def shake_alone(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """A full handshake of two ends in this process, without sockets."""
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, forth), server.wrap_bio(forth, back, server_side=True)]
    while ends:
        for end in ends[:]:
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass
