"""One caller talks on while others send damage to every door: the caller does not notice."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import os

import httpx
import numpy as np
import pytest
import websockets

from tests.support.fake_call import FakeStack, tone
from tests.support.fuzz import noise
from tests.support.live_server import Running, serving
from tests.support.rtc_peer import peer

pytestmark = pytest.mark.unit

ROUNDS = int(os.environ.get("FUZZ_EXAMPLES", "100")) // 20
DOORS = ("/v1/realtime", "/twilio", "/rtc/socket")
POSTS = ("/rtc/offer", "/v1/realtime/calls", "/v1/realtime/client_secrets", "/api/token",
         "/v1/chat/completions")  # fmt: skip


async def socket_damage(server: Running, path: str, messages: list[bytes]) -> None:
    with contextlib.suppress(websockets.WebSocketException, OSError):
        async with websockets.connect(server.ws + path) as socket:
            for n, message in enumerate(messages):
                await socket.send(message if n % 2 else message.decode("latin-1"))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await socket.recv()


async def raw_damage(server: Running, data: bytes) -> None:
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            writer.write(data)
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read(100)
        finally:
            writer.transport.abort()


async def damage(server: Running, client: httpx.AsyncClient, seed: int) -> None:
    messages = noise(seed, 12)
    for path in DOORS:
        await socket_damage(server, path, messages)
    for path, body in zip(POSTS, messages, strict=False):
        answer = await client.post(server.url + path, content=body)
        assert 400 <= answer.status_code < 500 or answer.status_code in (200, 503), answer.text
    for body in messages[:3]:
        await raw_damage(server, body)
        await raw_damage(server, b"GET /v1/realtime HTTP/1.1\r\nUpgrade: websocket\r\n" + body)


async def test_damage_at_every_door_is_not_heard_next_door(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stack = FakeStack(reply_s=1.0)
    sound = base64.b64encode(tone(480 * 60).astype("<i2").tobytes()).decode()
    gap = base64.b64encode(bytes(480 * 2 * 60)).decode()
    caplog.set_level(logging.ERROR)
    async with serving(stack, max_calls=6) as server, httpx.AsyncClient() as client:  # noqa: SIM117
        async with websockets.connect(f"{server.ws}/v1/realtime") as caller:
            n_tasks = len(asyncio.all_tasks())
            pcm = b""
            for seed in range(ROUNDS):
                for audio in (sound, gap):
                    event = {"type": "input_audio_buffer.append", "audio": audio}
                    await caller.send(json.dumps(event))
                await damage(server, client, seed)
                async with asyncio.timeout(20):
                    while True:
                        event = json.loads(await caller.recv())
                        assert event["type"] != "error", event
                        if event["type"] == "response.output_audio.delta":
                            pcm += base64.b64decode(event["delta"])
                        if event["type"] == "response.done":
                            break
                assert event["response"]["status"] == "completed"
            heard = np.frombuffer(pcm, "<i2").reshape(ROUNDS, -1)
            expected = tone(24_000, stack.calls[0].hz)
            for reply in heard:
                assert np.array_equal(reply, expected), "every sample of every reply"
            async with asyncio.timeout(20):
                while len(server.gateway.live) > 1 or len(asyncio.all_tasks()) > n_tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
    faults = [r.getMessage() for r in caplog.records if r.name.startswith(("gateway", "voice"))]
    assert not faults, faults


async def test_noise_on_the_media_port_is_not_heard() -> None:
    stack = FakeStack(greeting="Hello, how can I help?", reply_s=1.0)
    async with serving(stack) as server, peer() as p:
        await p.connect(server)
        await p.until("started")
        candidates = [line.split() for line in p.answer.splitlines() if "typ host" in line]
        udp = [(c[4], int(c[5])) for c in candidates if c[2] == "udp" and ":" not in c[4]]
        assert udp
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, local_addr=("0.0.0.0", 0)
        )
        for seed in range(ROUNDS):
            for data in (b"", *noise(seed, 12)):
                for first in (None, 0, 20, 22, 64, 128):  # as STUN, DTLS, TURN, RTP begin
                    begin = b"" if first is None else bytes([first])
                    transport.sendto((begin + data)[:1200], udp[seed % len(udp)])
            await asyncio.sleep(0)
        transport.close()
        p.microphone.loud = True
        await p.until("speech")
        p.microphone.loud = False
        assert (await p.until("final"))["text"] == "what is the time"
        p.channel.send(json.dumps({"type": "hangup"}))
        await p.until("ended")
