"""TLS in front of a server that has none, on a thread: for clients that insist on it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import Future
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
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to_port)
            writers.append(far_writer)
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
        finally:
            for each in writers:
                each.transport.abort()
            await asyncio.sleep(0)  # the transports close their sockets one turn of the loop later

    async def run() -> None:
        stop = asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        async with server:
            ready.set_result((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
            await stop.wait()

    def life() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=life)
    thread.start()
    loop, stop, port = ready.result(10)
    try:
        yield TlsProxy(port, certificate)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
