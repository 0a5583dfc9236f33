"""TLS in front of a server."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Self

from servers import Server

TIMEOUT = 20.0


def make_certificate(path: Path, host: str = "IP:127.0.0.1") -> None:
    """Makes a self-signed certificate of a host, with the key beside the certificate."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(path.with_suffix(".key")), "-out", str(path), "-days", "2"),
            *("-subj", "/CN=rmemcached test", "-addext", f"subjectAltName={host}"),
        ],
        check=True,
        capture_output=True,
    )


class TlsRelay:
    """Speaks TLS with clients, and passes their words on to a server."""

    def __init__(self, server: Server, certificate: Path) -> None:
        self.server = server
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.loop.run_until_complete, args=(self.serve(),))
        self.thread.start()
        assert self.ready.wait(TIMEOUT)

    async def serve(self) -> None:
        self.stopping = asyncio.Event()
        listening = await asyncio.start_server(self.relay, "127.0.0.1", 0, ssl=self.context)
        self.port: int = listening.sockets[0].getsockname()[1]
        self.ready.set()
        await self.stopping.wait()
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves a client's connection until either side ends."""
        try:
            inner_reader, inner_writer = await asyncio.open_connection(self.server.host, self.server.port)
        except OSError:
            writer.transport.abort()
            return
        try:
            pumps = [
                asyncio.ensure_future(self.pump(one, other))
                for one, other in ((reader, inner_writer), (inner_reader, writer))
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            inner_writer.transport.abort()
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join()
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
