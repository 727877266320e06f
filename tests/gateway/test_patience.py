"""Slow and half-open clients hold no connection; crowds are turned away; others do not notice."""

from __future__ import annotations

import asyncio
import base64

import httpx
import pytest
import websockets

from gateway.patience import Crowd
from tests.support.fake_call import FakeStack
from tests.support.live_server import Running, serving

pytestmark = pytest.mark.unit
HEAD = b"POST /rtc/offer HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 100\r\n"


async def connect(server: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(server.host, server.port)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came before the server closed."""
    got = b""
    try:
        async with asyncio.timeout(10):
            while data := await reader.read(4096):
                got += data
    except ConnectionResetError:
        pass
    return got


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    try:
        for byte in data * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)
    except (ConnectionError, RuntimeError):
        pass


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\nX-A: "], ids=["silent", "slow head"])
async def test_a_head_has_a_time_limit(first: bytes) -> None:
    async with serving(FakeStack(), head_timeout_s=0.2) as server:
        reader, writer = await connect(server)
        writer.write(first)
        dripping = asyncio.create_task(drip(writer, b"a" if first else b""))
        assert await until_closed(reader) == b""
        dripping.cancel()
        writer.close()
        assert (await fine(server)).status_code == 200


async def fine(server: Running) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"{server.url}/healthz")


async def test_the_second_head_has_one_too() -> None:
    async with serving(FakeStack(), head_timeout_s=0.2) as server:
        reader, writer = await connect(server)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /healthz HT")
        dripping = asyncio.create_task(drip(writer, b"T"))
        assert await until_closed(reader) == b""
        dripping.cancel()
        writer.close()


@pytest.mark.parametrize("path", [b"/rtc/offer", b"/v1/chat/completions", b"/api/token"])
async def test_a_body_has_a_time_limit(path: bytes) -> None:
    async with serving(FakeStack(), head_timeout_s=0.2, body_timeout_s=0.3) as server:
        reader, writer = await connect(server)
        writer.write(HEAD.replace(b"/rtc/offer", path) % server.port + b"\r\n{")
        dripping = asyncio.create_task(drip(writer, b" "))
        answer = await until_closed(reader)
        dripping.cancel()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400")
        assert not server.gateway.live


async def test_a_client_that_reads_nothing_is_let_go() -> None:
    class Large(FakeStack):
        def agent_names(self) -> list[str]:
            return ["x" * 1000 for _ in range(20_000)]

    async with serving(Large(), write_timeout_s=0.3) as server:
        reader, writer = await connect(server)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /api/agents HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port)
        crowd = server.app.state.crowd
        async with asyncio.timeout(10):
            while not len(crowd):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while len(crowd):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        writer.transport.abort()
        assert reader is not None


async def test_a_crowd_is_turned_away_and_the_rest_goes_on() -> None:
    async with serving(FakeStack(), max_connections_each=3) as server:
        held = [await connect(server) for _ in range(3)]
        for _, writer in held:
            writer.write(b"GET")
            await writer.drain()
        await asyncio.sleep(0.05)
        reader, writer = await connect(server)
        assert await until_closed(reader) == b""
        writer.close()
        held[0][1].close()
        async with asyncio.timeout(5):
            while len(server.app.state.crowd) > 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await fine(server)).status_code == 200
        for _, other in held:
            other.close()
        metrics = server.gateway.metrics.render().decode()
        assert "voice_agent_http_connections_refused_total 1.0" in metrics


def test_counting() -> None:
    crowd = Crowd(4, 2, frozenset(["10.0.0.1"]))
    assert [crowd.enter("10.0.0.2") for _ in range(3)] == [True, True, False]
    assert [crowd.enter("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert (len(crowd), crowd.turned_away) == (4, 2)
    crowd.leave("10.0.0.2")
    assert crowd.enter("10.0.0.1")
    for address in ("10.0.0.2", "10.0.0.1", "10.0.0.1", "10.0.0.1"):
        crowd.leave(address)
    assert len(crowd) == 0
    assert not crowd._by_address


async def test_a_websocket_that_shows_no_sign_of_life_ends_and_its_call_with_it() -> None:
    asked = (
        b"GET /v1/realtime?model=default HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n"
    )
    stack = FakeStack()
    signs = {"ws_ping_interval": 0.1, "ws_ping_timeout": 0.1}
    async with serving(stack, serve=signs) as server:
        url = f"{server.ws}/v1/realtime?model=default"
        async with websockets.connect(url) as lively:
            reader, writer = await connect(server)
            writer.write(asked % (server.port, base64.b64encode(bytes(16))))
            got = await until_closed(reader)  # the pings in it are never answered
            writer.close()
            assert got.startswith(b"HTTP/1.1 101")
            async with asyncio.timeout(10):
                while sum(call.ended is not None for call in stack.calls) < 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [call.ended for call in stack.calls].count(None) == 1
            await asyncio.wait_for(await lively.ping(), 10)
