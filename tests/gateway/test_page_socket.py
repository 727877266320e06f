"""The page's call over a WebSocket: texts, sound both ways, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import websockets

from gateway.config import EchoModes
from gateway.media.echo import EchoMode
from gateway.page_socket import MAX_MESSAGE, SUBPROTOCOL, PageSound
from gateway.realtime.audio_in import BACKLOG_S, FRAMES_PER_TICK
from gateway.realtime.errors import ProtocolError
from gateway.realtime_ws import Outbox
from tests.support.fake_call import FakeCall, FakeStack, tone
from tests.support.live_server import Running, serving
from voice_agent.events import EndReason
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, OUT_FRAME, FrameFlag, Pcm16

pytestmark = pytest.mark.unit
KEY = "0123456789abcdef-a-test-key"


# ------------------------------------------------------------ sound, without a socket


class Bench:
    """lead_ms 100: five frames ahead and the one that is playing."""

    def __init__(self, **options: Any) -> None:
        self.outbox = Outbox()
        self.sound = PageSound(self.outbox, 100)
        self.call = FakeCall("c", "default", lambda event: None, 100, **options)
        self.sound.attach(self.call, None)

    def sent(self) -> Pcm16:
        """Waiting for the socket."""
        frames = [message for message, _ in self.outbox._queue]
        assert all(isinstance(frame, bytes) and len(frame) == 2 * OUT_FRAME for frame in frames)
        return np.frombuffer(b"".join(frames), "<i2")  # type: ignore[arg-type]


def test_our_voice_is_sent_ahead_and_whole() -> None:
    bench = Bench(reply_s=0.4)
    bench.call.client.respond()
    bench.sound.tick()
    assert len(bench.sent()) == 6 * OUT_FRAME
    bench.sound.tick()
    assert len(bench.sent()) == 7 * OUT_FRAME
    for _ in range(40):
        bench.sound.tick()
    assert np.array_equal(bench.sent(), tone(20 * OUT_FRAME))


def test_a_cut_drops_what_was_not_sent_and_the_lead_begins_anew() -> None:
    bench = Bench(reply_s=5.0)
    bench.call.client.respond()
    for _ in range(10):
        bench.sound.tick()
    bench.outbox.put("a text")
    assert bench.call.client.cancel_reply()
    assert [message for message, _ in bench.outbox._queue] == ["a text"]
    bench.outbox.drop("text")
    bench.outbox._queue.clear()
    bench.call.client.respond()
    bench.sound.tick()
    assert len(bench.sent()) == 6 * OUT_FRAME, "what was cut is not waited for"


def test_a_reply_that_ends_by_itself_is_heard_to_its_end() -> None:
    bench = Bench(reply_s=0.1)
    bench.call.client.respond()
    bench.sound.tick()
    assert bench.call.played is None, "it is over here"
    assert np.array_equal(bench.sent(), tone(5 * OUT_FRAME))


@pytest.mark.parametrize("chunk", [2, 126, 640, 642, 8000])
def test_chunks_of_any_length_are_heard_in_order(chunk: int) -> None:
    bench = Bench()
    said = np.arange(40 * IN_FRAME, dtype=np.int16) % 300
    data = said.astype("<i2").tobytes()
    for at in range(0, len(data), chunk):
        bench.sound.receive(data[at : at + chunk])
    for _ in range(6):
        bench.sound.tick()
    heard = np.concatenate([frame.pcm for frame in bench.call.heard])
    assert np.array_equal(heard, said)


def test_what_comes_faster_than_real_time_waits_and_a_gap_is_filled_after_a_second() -> None:
    bench = Bench()
    second = bytes(2 * IN_RATE)
    bench.sound.receive(second)
    assert len(bench.call.heard) == FRAMES_PER_TICK
    for _ in range(6):
        bench.sound.tick()
    assert len(bench.call.heard) == 50
    for _ in range(1000 // FRAME_MS - 6):
        bench.sound.tick()
    assert len(bench.call.heard) == 50, "media time waits"
    bench.sound.tick()
    assert bench.call.heard[-1].flag is FrameFlag.SILENCE
    for _ in range(int(BACKLOG_S)):
        bench.sound.receive(second)
    for _ in range(2):
        with pytest.raises(ProtocolError) as full:
            bench.sound.receive(second)
        assert full.value.code == "input_audio_buffer_full"


def test_half_a_sample_is_refused() -> None:
    bench = Bench()
    with pytest.raises(ProtocolError):
        bench.sound.receive(bytes(641))
    assert not bench.call.heard


# ------------------------------------------------------------ on a socket


class Page:
    """The other end: speaks while it listens, throws away what a cut left in its buffer."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self.socket = socket
        self.told: list[dict[str, Any]] = []
        self.held: list[Pcm16] = []
        self._news = asyncio.Event()

    def types(self) -> list[str]:
        return [data["type"] for data in self.told]

    async def listen(self) -> None:
        async for message in self.socket:
            if isinstance(message, bytes):
                assert len(message) == 2 * OUT_FRAME
                self.held.append(np.frombuffer(message, "<i2"))
            else:
                self.told.append(json.loads(message))
                if self.told[-1].get("status") in ("interrupted", "cancelled"):
                    self.held.clear()
            self._news.set()

    async def say(self, pcm: Pcm16) -> None:
        await self.socket.send(pcm.astype("<i2").tobytes())

    async def tell(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def until(self, true: Any) -> None:
        async with asyncio.timeout(10):
            while not true():
                self._news.clear()
                await self._news.wait()


@contextlib.asynccontextmanager
async def page(server: Running, query: str = "", token: str = "") -> AsyncIterator[Page]:
    protocols = [SUBPROTOCOL, *([f"openai-insecure-api-key.{token}"] if token else [])]
    async with websockets.connect(
        f"{server.ws}/rtc/socket{query}",
        subprotocols=protocols,  # type: ignore[arg-type]
        origin=f"http://127.0.0.1:{server.port}",  # type: ignore[arg-type]
    ) as socket:
        assert socket.subprotocol == SUBPROTOCOL, "a browser wants one of them taken, not the token"
        yield Page(socket)


async def closed(caller: Page) -> tuple[int | None, str | None]:
    async with asyncio.timeout(10):
        await caller.socket.wait_closed()
    return caller.socket.close_code, caller.socket.close_reason


async def empty(server: Running) -> None:
    async with asyncio.timeout(10):
        while server.gateway.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_conversation_with_a_barge_in_and_a_hang_up() -> None:
    stack = FakeStack(reply_s=20.0)
    # the fake caller is noise and the fake voice a tone: nothing to learn an echo's path from
    modes = EchoModes(page=EchoMode.OFF)
    noise = np.random.default_rng(1).normal(0, 6000, 30 * IN_FRAME).astype(np.int16)
    quiet = np.zeros(30 * IN_FRAME, np.int16)
    calm = {"echo": modes, "hold_s": 0.0}  # this page does not speak all the time
    async with serving(stack, **calm) as server, page(server, "?agent=other") as caller:
        async with asyncio.TaskGroup() as group:
            listen = group.create_task(caller.listen())
            await caller.say(np.concatenate([noise, quiet]))
            await caller.until(lambda: "heard" in caller.types())
            (call,) = stack.calls
            assert (call.agent, call.lead_ms) == ("other", 100)
            assert np.array_equal(np.concatenate(caller.held[:5]), tone(5 * OUT_FRAME))
            await caller.tell(type="playback", behind_ms=130)
            await caller.tell(type="mute", on=True)
            await caller.say(noise)
            await caller.until(lambda: "interrupted" in [d.get("status") for d in caller.told])
            assert not caller.held, "nothing of it comes after it was cut"
            assert call.behind_ms == [130]
            assert call.mutes == [True]
            await caller.tell(type="hangup")
            await listen
        assert caller.types()[0] == "started"
        assert caller.types()[-1] == "ended"
        assert {"speech", "partial", "final", "reply", "text", "heard"} <= set(caller.types())
        assert await closed(caller) == (1000, "caller_hung_up")
        await empty(server)
        metrics = server.gateway.metrics.render().decode()
        ended = 'voice_agent_calls_ended_total{reason="caller_hung_up",transport="websocket"} 1.0'
        assert ended in metrics


async def test_the_echo_guard_is_the_pages() -> None:
    stack = FakeStack(greeting="Hello there.")
    async with serving(stack, echo=EchoModes(page=EchoMode.ON)) as server, page(server) as caller:
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.listen())
            await caller.until(lambda: caller.held)
            await caller.say(np.zeros(IN_FRAME, np.int16))
            await caller.tell(type="hangup")
        assert stack.calls[0].echo_notes
        assert len(stack.calls[0].heard) == 1


async def test_the_last_words_arrive_before_the_socket_closes() -> None:
    stack = FakeStack(greeting="Goodbye for now.", reply_s=0.3)
    async with serving(stack) as server, page(server) as caller:
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.listen())
            await caller.until(lambda: "done" in caller.types())
            stack.calls[0].hang_up(EndReason.AGENT_GOODBYE)
        assert np.array_equal(np.concatenate(caller.held), tone(15 * OUT_FRAME))
        assert await closed(caller) == (1000, "agent_goodbye")
        assert caller.told[-1] == {"type": "ended", "reason": "agent_goodbye"}


async def test_only_a_token_that_is_good_opens_it_and_only_its_agent() -> None:
    stack = FakeStack()
    async with serving(stack, api_keys=(KEY,)) as server:
        keeper = server.gateway.doorkeeper
        grant = keeper.keys.find(KEY)
        assert grant is not None
        for token in ("", "ek_no.thing.good"):
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with page(server, token=token):
                    pass
            assert caught.value.response.status_code == 401
        metrics = keeper.tokens.mint(grant, scopes=["metrics"]).value  # type: ignore[list-item]
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with page(server, token=metrics):
                pass
        assert caught.value.response.status_code == 403
        token = keeper.tokens.mint(grant, agent="other").value
        async with page(server, "?agent=default", token) as caller:
            code, reason = await closed(caller)
            assert code == 1008
            assert "default" in str(reason)
        async with page(server, token=token) as caller:
            await caller.tell(type="hangup")
            assert (await closed(caller))[0] == 1000
        assert [call.agent for call in stack.calls] == ["other"]
        await empty(server)


async def test_another_web_page_does_not_open_it() -> None:
    async with serving(FakeStack()) as server:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"{server.ws}/rtc/socket", origin="https://elsewhere.example")  # type: ignore[arg-type]
        assert caught.value.response.status_code == 403


async def test_new_calls_have_a_rate() -> None:
    async with serving(FakeStack(), api_keys=(KEY,), calls_per_minute=1) as server:
        async with page(server, token=KEY) as caller:
            await caller.tell(type="hangup")
            await closed(caller)
        with pytest.raises(websockets.InvalidStatus) as caught:
            async with page(server, token=KEY):
                pass
        assert caught.value.response.status_code == 429


async def test_a_full_server_and_an_unknown_agent_say_so() -> None:
    async with serving(FakeStack(), max_calls=1) as server, page(server):
        while not server.gateway.live:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with page(server) as second:
            code, reason = await closed(second)
            assert code == 1013
            assert "busy" in str(reason)
    async with serving(FakeStack()) as server, page(server, "?agent=nobody") as caller:
        code, reason = await closed(caller)
        assert code == 1008
        assert "nobody" in str(reason)
        assert not server.gateway.live


@pytest.mark.parametrize("message", [bytes(MAX_MESSAGE + 2), "x" * (MAX_MESSAGE + 1)])
async def test_a_message_too_long_ends_its_own_call_only(message: bytes | str) -> None:
    stack = FakeStack()
    async with serving(stack) as server, page(server) as good, page(server) as bad:
        await bad.socket.send(message)
        assert (await closed(bad))[0] == 1009
        assert len(server.gateway.live) == 1
        await good.tell(type="hangup")
        assert await closed(good) == (1000, "caller_hung_up")
    assert sorted(str(call.ended) for call in stack.calls) == ["bad_input", "caller_hung_up"]


async def test_what_is_no_sound_and_no_message_is_explained_or_ignored() -> None:
    async with serving(FakeStack()) as server, page(server) as caller:
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.listen())
            await caller.socket.send(b"odd")
            for nonsense in ("{", "7", '{"type": "nothing"}', ""):
                await caller.socket.send(nonsense)
            await caller.socket.send(b"")
            await caller.tell(type="hangup")
        (fault,) = [data for data in caller.told if data["type"] == "error"]
        assert fault["code"] == "invalid_audio"
        assert await closed(caller) == (1000, "caller_hung_up")


async def test_a_page_that_does_not_read_is_cut_off() -> None:
    stack = FakeStack(reply_s=600.0)
    async with serving(stack) as server:
        socket = await websockets.connect(
            f"{server.ws}/rtc/socket", max_queue=1, ping_interval=None, compression=None
        )
        while "started" not in str(await socket.recv()):
            pass
        stack.calls[0].client.respond()
        async with asyncio.timeout(20):
            while server.gateway.live:
                server.gateway.pacer._tick()  # faster than real time
                await asyncio.sleep(0)
        assert server.gateway.metrics.slow_clients._value.get() == 1
        socket.transport.abort()
    assert stack.calls[0].ended == "transport_lost"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_page_that_goes_away_frees_its_line(how: str) -> None:
    stack = FakeStack(greeting="Hello there.")
    async with serving(stack, hold_s=0.0) as server:
        async with page(server) as caller:
            await caller.socket.recv()
            if how == "abort":
                caller.socket.transport.abort()
        await empty(server)
    assert stack.calls[0].ended in ("caller_hung_up", "transport_lost")


async def test_draining_ends_the_call() -> None:
    async with serving(FakeStack()) as server, page(server) as caller:
        async with asyncio.TaskGroup() as group:
            group.create_task(caller.listen())
            await caller.until(lambda: "started" in caller.types())
            await server.gateway.drain(0.05)
        assert caller.told[-1] == {"type": "ended", "reason": "server_draining"}
        assert (await closed(caller))[0] == 1001


async def test_a_fault_of_a_tick_ends_the_call_with_words() -> None:
    stack = FakeStack()
    async with serving(stack) as server, page(server) as caller:
        while "started" not in str(await caller.socket.recv()):
            pass

        def broken() -> None:
            raise ValueError("broken")

        stack.calls[0].tick = broken  # type: ignore[assignment]
        assert await closed(caller) == (1011, "server error")
