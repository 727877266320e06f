"""TLS in front of a server that has none, on a thread: for clients that insist on it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from voice_agent.cli.tls import self_signed


@dataclass(frozen=True)
class TlsProxy:
    """certificate: what its clients must trust."""

    port: int
    certificate: Path


@contextlib.contextmanager
def tls_proxy(to_port: int, folder: Path) -> Iterator[TlsProxy]:
    certificate, key = self_signed(folder, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    started = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to_port)
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        started.set()
        await stop.wait()
        server.close()

    def life() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=life)
    thread.start()
    try:
        started.wait(10)
        yield TlsProxy(ports[0], certificate)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
