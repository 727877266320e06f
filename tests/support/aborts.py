"""Clients that leave at every stage of a handshake: a socket is reset, never closed politely."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable

from tests.support import media_stream as ms
from tests.support.fuzz import OFFER
from tests.support.live_server import Running

Stage = Callable[[Running], Awaitable[None]]
APPEND = json.dumps(
    {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(9600)).decode()}
)
TALK = json.dumps({"type": "response.create"})


class Client:
    """A bare TCP connection that is reset at its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, mark: bytes) -> None:
        await self.reader.readuntil(mark)

    async def text(self, text: str) -> None:
        """A masked WebSocket message (RFC 6455)."""
        await self.send(frame(text))


@contextlib.asynccontextmanager
async def client(server: Running):  # type: ignore[no-untyped-def]
    reader, writer = await asyncio.open_connection(server.host, server.port)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    try:
        async with asyncio.timeout(20):
            yield Client(reader, writer)
    finally:
        writer.transport.abort()


def frame(text: str) -> bytes:
    data = text.encode()
    mask = os.urandom(4)
    if len(data) < 126:
        head = struct.pack("!BB", 0x81, 0x80 | len(data))
    else:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, len(data))
    return head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data))


def head(server: Running, method: str, path: str, *more: str) -> bytes:
    host = f"Host: {server.host}:{server.port}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", host, *more, "", ""]).encode()


def upgrade(server: Running, path: str) -> bytes:
    return head(
        server, "GET", path, "Connection: Upgrade", "Upgrade: websocket",
        "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )  # fmt: skip


def offer(server: Running) -> tuple[bytes, bytes]:
    body = json.dumps({"type": "offer", "sdp": OFFER}).encode()
    more = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return head(server, "POST", "/rtc/offer", *more), body


async def connect_only(server: Running) -> None:
    async with client(server):
        pass


async def half_a_head(server: Running) -> None:
    async with client(server) as c:
        await c.send(head(server, "GET", "/")[:20])


async def unread_answer(server: Running) -> None:
    async with client(server) as c:
        await c.send(head(server, "GET", "/metrics"))


async def half_a_body(server: Running) -> None:
    async with client(server) as c:
        first, body = offer(server)
        await c.send(first + body[: len(body) // 2])
        await asyncio.sleep(0.002)


async def offer_unread(server: Running) -> None:
    async with client(server) as c:
        await c.send(b"".join(offer(server)))


async def offer_and_no_media(server: Running) -> None:
    async with client(server) as c:
        await c.send(b"".join(offer(server)))
        await c.until(b'"sdp"')


def half_an_upgrade(path: str) -> Stage:
    async def stage(server: Running) -> None:
        async with client(server) as c:
            await c.send(upgrade(server, path)[:-10])

    return stage


def upgrade_unread(path: str) -> Stage:
    async def stage(server: Running) -> None:
        async with client(server) as c:
            await c.send(upgrade(server, path))

    return stage


def upgraded(path: str, *messages: str, wait: bytes = b"") -> Stage:
    """Handshake, messages, and gone; half of one more is on its way."""

    async def stage(server: Running) -> None:
        async with client(server) as c:
            await c.send(upgrade(server, path))
            await c.until(b"\r\n\r\n")
            for message in messages:
                await c.text(message)
            if wait:
                await c.until(wait)
            await c.send(frame(APPEND)[:100])

    return stage


BEGIN = (json.dumps(ms.connected()), json.dumps(ms.start()))
STAGES: dict[str, Stage] = {
    "connect": connect_only,
    "half a head": half_a_head,
    "unread answer": unread_answer,
    "half a body": half_a_body,
    "offer, answer unread": offer_unread,
    "offer, no media": offer_and_no_media,
    "half an upgrade": half_an_upgrade("/v1/realtime"),
    "upgrade unread": upgrade_unread("/v1/realtime"),
    "upgraded": upgraded("/v1/realtime"),
    "session created": upgraded("/v1/realtime", wait=b"session.created"),
    "audio sent": upgraded("/v1/realtime", APPEND, APPEND),
    "in a reply": upgraded("/v1/realtime", TALK, wait=b"output_audio.delta"),
    "stream unread": upgrade_unread("/twilio"),
    "stream connected": upgraded("/twilio", BEGIN[0]),
    "stream started": upgraded("/twilio", *BEGIN),
    "stream with sound": upgraded("/twilio", *BEGIN, json.dumps(ms.media(b"\xff" * 160))),
    "stream in a greeting": upgraded("/twilio", *BEGIN, wait=b'"media"'),
}
