"""The socket: who may open a stream, what it needs to begin, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import websockets

import gateway.twilio.socket as sockets
from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.twilio.signature import genuine, signed
from tests.support import media_stream as ms
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving

pytestmark = pytest.mark.unit
KEY = "0123456789abcdef-a-test-key"
SECRET = "12345678901234567890123456789012"


def test_the_signature_of_the_documentation_and_every_spelling() -> None:
    url = "wss://example.com/twilio"
    for spelled in (url, url + "/", "wss://example.com:443/twilio", "https://example.com/twilio"):
        for host in ("example.com", "example.com:443"):
            assert genuine(SECRET, signed(SECRET, spelled), host, "/twilio", "")
    assert genuine(SECRET, signed(SECRET, url + "?agent=a"), "example.com", "/twilio", "agent=a")
    assert genuine(SECRET, signed(SECRET, "wss://a.b:8443/twilio"), "a.b:8443", "/twilio", "")
    for offered, host, path, query in (
        (signed(SECRET + "x", url), "example.com", "/twilio", ""),
        (signed(SECRET, url), "other.com", "/twilio", ""),
        (signed(SECRET, url), "example.com", "/twilio2", ""),
        (signed(SECRET, url), "example.com", "/twilio", "agent=b"),
        (signed(SECRET, "wss://a.b/twilio"), "a.b:8443", "/twilio", ""),
        ("", "example.com", "/twilio", ""),
        ("é", "example.com", "/twilio", ""),
    ):
        assert not genuine(SECRET, offered, host, path, query)


def test_a_known_signature() -> None:
    """openssl dgst -sha1 -hmac 12345 -binary | base64"""
    assert signed("12345", "https://example.com/myapp") == "XqNa/0zb23Pa5OkAE2d03kJM920="


@contextlib.asynccontextmanager
async def stream(
    server: Running, *, query: str = "", key: str = "", signature: str | None = None, **more: str
) -> AsyncIterator[ms.Platform]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if signature is not None:
        headers["x-twilio-signature"] = signature
    url = f"{server.ws}/twilio{query}"
    async with websockets.connect(url, additional_headers=headers) as socket:
        platform = ms.Platform(socket)
        await platform.begin(**more)
        yield platform


async def closed(platform: ms.Platform) -> tuple[int | None, str | None]:
    async with asyncio.timeout(10):
        await platform.socket.wait_closed()
    return platform.socket.close_code, platform.socket.close_reason


async def live(server: Running, stack: FakeStack) -> Any:
    async with asyncio.timeout(10):
        while not stack.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return stack.calls[-1]


async def empty(server: Running) -> None:
    async with asyncio.timeout(10):
        while server.gateway.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_conversation_with_a_barge_in_and_a_hang_up() -> None:
    stack = FakeStack(reply_s=20.0)
    # the fake caller is noise and the fake voice a tone: nothing to learn an echo's path from
    modes = EchoModes(telephone=EchoMode.OFF)
    async with serving(stack, echo=modes) as server, stream(server, agent="other") as platform:
        call = await live(server, stack)
        assert call.agent == "other"
        async with asyncio.TaskGroup() as group:
            jobs = [group.create_task(platform.listen()), group.create_task(platform.clock())]
            noise = np.random.default_rng(1).normal(0, 6000, 6400).astype(np.int16)
            platform.say(noise)
            await platform.until(lambda: len(platform.played) > 20)
            assert call.behind_ms
            assert all(0 < ms < 5_000 for ms in call.behind_ms)
            platform.say(noise)
            await platform.until(lambda: platform.clears == 1)
            await platform.send(ms.dtmf("7"))
            await platform.send(ms.stop())
            await jobs[0]
            jobs[1].cancel()
        assert await closed(platform) == (1000, "caller_hung_up")
        assert call.keys == ["7"]
        assert call.ended == "caller_hung_up"
        await empty(server)
        metrics = server.gateway.metrics.render().decode()
        ended = 'voice_agent_calls_ended_total{reason="caller_hung_up",transport="twilio"} 1.0'
        assert ended in metrics


async def test_the_last_words_are_heard_before_the_socket_closes() -> None:
    stack = FakeStack(greeting="Goodbye for now.", reply_s=0.5)
    async with serving(stack) as server, stream(server) as platform:
        call = await live(server, stack)
        async with asyncio.TaskGroup() as group:
            listen = group.create_task(platform.listen())
            await platform.until(lambda: "mark" in {e["event"] for e in platform.events})
            async with asyncio.timeout(10):
                while call._reply is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            call.hang_up(sockets.EndReason.AGENT_GOODBYE)
            await asyncio.sleep(0.2)
            assert platform.socket.close_code is None, "it waits for the marks"
            clock = group.create_task(platform.clock())
            await listen
            clock.cancel()
        assert sum(len(pcm) for pcm in platform.played) >= 4000
        assert platform.socket.close_reason == "agent_goodbye"


@pytest.mark.parametrize("settings", [{}, {"api_keys": (KEY,)}], ids=["keyless", "keyed"])
async def test_the_platform_signs_and_others_do_not_pass(settings: dict[str, Any]) -> None:
    stack = FakeStack()
    async with serving(stack, twilio_auth_token=SECRET, **settings) as server:
        good = signed(SECRET, f"wss://127.0.0.1:{server.port}/twilio")
        async with stream(server, signature=good):
            await live(server, stack)
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with stream(server, signature=signed("other", "wss://127.0.0.1/twilio")):
                pass
        assert caught.value.response.status_code == 403
        for more in ({}, {"token": "nonsense"}, {"token": "ek_non.sen.se"}):
            async with stream(server, **more) as platform:
                assert (await closed(platform))[0] == 1008
        assert len(stack.calls) == 1
        await empty(server)


async def test_a_key_or_a_token_opens_a_stream_of_its_agent() -> None:
    stack = FakeStack()
    async with serving(stack, api_keys=(KEY,)) as server:
        keeper = server.gateway.doorkeeper
        grant = keeper.keys.find(KEY)
        assert grant is not None
        token = keeper.tokens.mint(grant, agent="other").value
        for options in ({"key": KEY}, {"token": token}, {"token": KEY}, {"key": token}):
            n = len(stack.calls)
            async with stream(server, **options):
                async with asyncio.timeout(10):
                    while len(stack.calls) == n:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        assert [call.agent for call in stack.calls] == ["default", "other", "default", "other"]
        async with stream(server, token=token, agent="default") as platform:
            assert (await closed(platform))[0] == 1008
        metrics = keeper.tokens.mint(grant, scopes=["metrics"]).value  # type: ignore[list-item]
        async with stream(server, token=metrics) as platform:
            assert (await closed(platform))[0] == 1008
        await empty(server)


async def test_what_is_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "START_S", 0.3)
    stack = FakeStack()
    async with serving(stack) as server:
        wrong = ms.start()
        wrong["start"]["mediaFormat"]["encoding"] = "audio/opus"
        for messages in (
            [],
            [json.dumps(ms.connected())],
            [json.dumps(ms.media(b"x"))],
            [json.dumps(ms.connected())] * 2,
            ["nonsense"],
            [json.dumps(wrong)],
            ["x" * (sockets.MAX_MESSAGE + 1)],
            [json.dumps(ms.start(agent="nobody"))],
        ):
            async with websockets.connect(f"{server.ws}/twilio") as socket:
                for message in messages:
                    await socket.send(message)
                async with asyncio.timeout(10):
                    await socket.wait_closed()
                assert socket.close_code == 1008, messages
        assert not server.gateway.live


async def test_strangers_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_STRANGERS", 2)
    async with serving(FakeStack()) as server:
        held = [await websockets.connect(f"{server.ws}/twilio") for _ in range(2)]
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(f"{server.ws}/twilio")
        for socket in held:
            await socket.close()
        async with stream(server) as platform:
            await platform.send(ms.stop())
            assert await closed(platform) == (1000, "caller_hung_up")


async def test_a_full_server_closes_so_that_the_platform_goes_on() -> None:
    stack = FakeStack()
    async with serving(stack, max_calls=1) as server, stream(server) as first:
        await live(server, stack)
        async with stream(server) as second:
            assert (await closed(second))[0] == 1013
        await first.send(ms.stop())
        assert (await closed(first))[0] == 1000


async def test_a_message_too_large_ends_the_call_and_others_do_not_notice() -> None:
    stack = FakeStack()
    async with serving(stack) as server, stream(server) as good, stream(server) as bad:
        await bad.send(ms.media(np.zeros(64 << 10, np.uint8).tobytes()))
        assert (await closed(bad))[0] == 1009
        assert len(server.gateway.live) == 1
        await good.send(ms.stop())
        assert await closed(good) == (1000, "caller_hung_up")


async def test_draining_ends_a_stream() -> None:
    stack = FakeStack()
    async with serving(stack) as server, stream(server) as platform:
        await live(server, stack)
        await server.gateway.drain(0.05)
        assert (await closed(platform))[0] == 1001
