"""The official Python client over a real socket, against a call without models."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.support.fake_call import FakeStack, tone
from tests.support.live_server import Running, serving

pytestmark = pytest.mark.unit

TIMEOUT_S = 10.0
SILENCE = np.zeros(24_000 // 2, np.int16)


def b64(pcm: np.ndarray) -> str:
    return base64.b64encode(pcm.astype("<i2").tobytes()).decode()


class Client:
    """Collects every event of a connection by type, in order."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.events: list[Any] = []

    async def until(self, type_: str, n: int = 1) -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                event = await self.connection.recv()
                self.events.append(event)
                if event.type == type_:
                    n -= 1
                    if not n:
                        return event

    @property
    def types(self) -> list[str]:
        """Event types in order, repeats of one type in a row folded."""
        out: list[str] = []
        for event in self.events:
            if not out or out[-1] != event.type:
                out.append(event.type)
        return out

    async def say(self, seconds: float = 0.5, *, then_silence: bool = True) -> None:
        await self.connection.input_audio_buffer.append(audio=b64(tone(int(24_000 * seconds))))
        if then_silence:
            await self.connection.input_audio_buffer.append(audio=b64(SILENCE))


@asynccontextmanager
async def connected(server: Running, **options: Any) -> AsyncIterator[Client]:
    client = AsyncOpenAI(
        api_key=options.pop("api_key", "none"),
        base_url=f"{server.url}/v1",
        websocket_base_url=f"{server.ws}/v1",
        max_retries=0,
    )
    async with client, client.realtime.connect(model="gpt-realtime", **options) as connection:
        yield Client(connection)


async def test_a_spoken_turn_in_the_protocols_order() -> None:
    stack = FakeStack()
    async with serving(stack) as server, connected(server) as c:
        created = await c.until("session.created")
        assert created.session.type == "realtime"
        await c.connection.session.update(
            session={"type": "realtime", "instructions": "Be brief.", "audio": {
                "input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 400}},
                "output": {"voice": "marin", "speed": 1.1}}}
        )  # fmt: skip
        updated = await c.until("session.updated")
        assert updated.session.instructions == "Be brief."
        assert updated.session.audio.output.speed == 1.1
        await c.say()
        done = await c.until("response.done")
    update = stack.calls[0].updates[0]
    assert update["turn_taking"].max_silence_ms == 400
    assert update["voice"] == ""  # the vendor's names mean the agent's own voice
    assert c.types == [
        "session.created",
        "conversation.created",
        "session.updated",
        "input_audio_buffer.speech_started",
        "conversation.item.input_audio_transcription.delta",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.created",
        "rate_limits.updated",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    by_type = {e.type: e for e in c.events}
    item_id = by_type["input_audio_buffer.committed"].item_id
    assert by_type["input_audio_buffer.speech_started"].item_id == item_id
    assert by_type["input_audio_buffer.speech_started"].audio_start_ms == 0
    deltas = [e for e in c.events if e.type.endswith("input_audio_transcription.delta")]
    final = by_type["conversation.item.input_audio_transcription.completed"]
    assert "".join(e.delta for e in deltas) == final.transcript == "what is the time"
    assert done.response.status == "completed"
    assert done.response.usage.input_token_details.cached_tokens == 96
    assert done.response.output[0].content[0].transcript == stack.calls[0].reply_text
    audio = b"".join(
        base64.b64decode(e.delta) for e in c.events if e.type == "response.output_audio.delta"
    )
    expected = tone(int(0.6 * 24_000), stack.calls[0].hz)
    np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), expected)


async def test_every_event_satisfies_the_official_types() -> None:
    """openai-python builds leniently, so validate strictly."""
    from openai.types.realtime import RealtimeServerEvent
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    stack = FakeStack(greeting="Hello there, caller.")
    async with serving(stack) as server, connected(server) as c:
        await c.until("response.done")
        await c.say()
        await c.until("response.output_audio.delta")
        await c.say()  # a barge-in
        await c.until("response.done", 2)
        await c.connection.conversation.item.retrieve(item_id="nothing")
        await c.until("error")
    for event in c.events:
        adapter.validate_python(event.to_dict())


async def test_barge_in_cancels_the_response() -> None:
    stack = FakeStack(reply_s=5.0)
    async with serving(stack) as server, connected(server) as c:
        await c.until("session.created")
        await c.say()
        await c.until("response.output_audio.delta")
        await c.say(then_silence=False)
        done = await c.until("response.done")
        started = await c.until("input_audio_buffer.speech_started")
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "turn_detected"
        item = done.response.output[0]
        assert item.status == "incomplete"
        await c.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=20
        )
        await c.until("conversation.item.truncated")
        assert started.audio_start_ms > 0
        await c.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=60_000
        )
        error = await c.until("error")
        assert error.error.param == "audio_end_ms"
    assert [ms for _, ms in stack.calls[0].truncations] == [20]
    last_delta = max(i for i, e in enumerate(c.events) if e.type == "response.output_audio.delta")
    assert last_delta < next(i for i, e in enumerate(c.events) if e.type == "response.done")


async def test_client_cancel_and_manual_turns() -> None:
    stack = FakeStack(reply_s=5.0)
    async with serving(stack) as server, connected(server) as c:
        await c.until("session.created")
        await c.connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        await c.until("session.updated")
        await c.connection.input_audio_buffer.commit()
        empty = await c.until("error")
        assert empty.error.code == "input_audio_buffer_commit_empty"
        await c.say()
        await c.connection.input_audio_buffer.commit()
        await c.until("conversation.item.input_audio_transcription.completed")
        assert "response.created" not in c.types
        assert "input_audio_buffer.speech_started" not in c.types
        assert len(stack.calls[0].heard) == 50  # the commit waited for all that was sent
        await c.connection.response.create()
        await c.until("response.output_audio.delta")
        await c.connection.response.create()
        busy = await c.until("error")
        assert busy.error.code == "conversation_already_has_active_response"
        await c.connection.response.cancel()
        done = await c.until("response.done")
        assert done.response.status_details.reason == "client_cancelled"
        await c.connection.response.cancel()
        none = await c.until("error")
        assert none.error.code == "response_cancel_not_active"


async def test_text_items_and_text_output() -> None:
    stack = FakeStack()
    async with serving(stack) as server, connected(server) as c:
        await c.until("session.created")
        await c.connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 50}
        )
        await c.until("session.updated")
        await c.connection.conversation.item.create(
            item={
                "type": "message", "role": "user", "id": "mine",
                "content": [{"type": "input_text", "text": "Hello"}],
            }
        )  # fmt: skip
        added = await c.until("conversation.item.done")
        assert added.item.id == "mine"
        await c.connection.response.create(response={"metadata": {"k": "v"}})
        done = await c.until("response.done")
        assert done.response.metadata == {"k": "v"}
        await c.connection.conversation.item.retrieve(item_id="mine")
        got = await c.until("conversation.item.retrieved")
        assert got.item.content[0].text == "Hello"
    assert stack.calls[0].messages == [("user", "Hello")]
    text = "".join(e.delta for e in c.events if e.type == "response.output_text.delta")
    assert text == stack.calls[0].reply_text
    assert "response.output_audio.delta" not in c.types


@pytest.mark.parametrize("name", ["audio/pcmu", "audio/pcma"])
async def test_telephone_formats_both_ways(name: str) -> None:
    from gateway.media import g711
    from gateway.media.resample import Resampler

    encode = g711.encode_ulaw if name == "audio/pcmu" else g711.encode_alaw
    decode = g711.decode_ulaw if name == "audio/pcmu" else g711.decode_alaw
    stack = FakeStack()
    async with serving(stack) as server, connected(server) as c:
        await c.until("session.created")
        await c.connection.session.update(
            session={"type": "realtime", "audio": {
                "input": {"format": {"type": name}}, "output": {"format": {"type": name}}}}
        )  # fmt: skip
        await c.until("session.updated")
        low = Resampler(24_000, 8_000).push(np.concatenate([tone(12_000), SILENCE]))
        await c.connection.input_audio_buffer.append(audio=base64.b64encode(encode(low)).decode())
        await c.until("response.done")
    data = b"".join(
        base64.b64decode(e.delta) for e in c.events if e.type == "response.output_audio.delta"
    )
    pcm = decode(data).astype(np.float64)
    assert len(pcm) == pytest.approx(0.6 * 8_000, abs=100)
    spectrum = np.abs(np.fft.rfft(pcm[:4800] * np.hanning(4800)))
    assert abs(int(np.argmax(spectrum)) * 8_000 / 4800 - stack.calls[0].hz) < 3


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        ("", "empty"),
        ("!!!", "base64"),
        (base64.b64encode(b"abc").decode(), "16-bit"),
        (base64.b64encode(b"RIFF\0\0\0\0WAVEfmt ").decode(), "WAV header"),
        (base64.b64encode(b"\1\0" * 9 + b"RIFF\0\0\0\0WAVEfmt ").decode(), "WAV header"),
    ],
)
async def test_bad_audio_is_named_and_the_session_goes_on(audio: str, words: str) -> None:
    async with serving(FakeStack()) as server, connected(server) as c:
        await c.until("session.created")
        await c.connection.send(
            {"type": "input_audio_buffer.append", "audio": audio, "event_id": "mine"}
        )
        error = await c.until("error")
        assert words in error.error.message
        assert error.error.event_id == "mine"
        await c.say()
        done = await c.until("response.done")
        assert done.response.status == "completed"


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "session.tools"),
        ({"tools": [{"type": "function", "name": "f"}] * 2}, "session.tools"),
        ({"tools": [{"type": "function"}]}, "session.tools"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "session.tool_choice"),
        ({"tool_choice": "sometimes"}, "session.tool_choice"),
        ({"prompt": {"id": "p"}}, "session.prompt"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "session.include"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 5}}}},
            "idle_timeout_ms",
        ),
        ({"audio": {"output": {"format": {"type": "audio/pcm", "rate": 8000}}}}, "rate"),
        ({"audio": {"input": {"noise_reduction": {"type": "near_field"}}}}, "noise_reduction"),
        ({"audio": {"input": {"transcription": {"language": "fr"}}}}, "language"),
        ({"audio": {"output": {"speed": 9.0}}}, "session.audio.output.speed"),
        ({"output_modalities": ["audio", "text"]}, "session.output_modalities"),
        ({"nonsense": 1}, "session.nonsense"),
    ],
)
async def test_what_is_not_supported_is_refused_whole(session: dict[str, Any], param: str) -> None:
    stack = FakeStack()
    async with serving(stack) as server, connected(server) as c:
        await c.until("session.created")
        await c.connection.send(
            {"type": "session.update", "session": {"type": "realtime", "instructions": "x"}
             | session}
        )  # fmt: skip
        error = await c.until("error")
        assert param in error.error.param
    assert stack.calls[0].updates == []


async def test_two_callers_never_hear_each_other() -> None:
    stack = FakeStack()
    async with serving(stack) as server, connected(server) as a, connected(server) as b:
        await a.until("session.created")
        await b.until("session.created")
        await asyncio.gather(a.say(), b.say())
        await asyncio.gather(a.until("response.done"), b.until("response.done"))
    assert stack.calls[0].hz != stack.calls[1].hz
    for client, call in ((a, stack.calls[0]), (b, stack.calls[1])):
        audio = b"".join(
            base64.b64decode(e.delta)
            for e in client.events
            if e.type == "response.output_audio.delta"
        )
        np.testing.assert_array_equal(np.frombuffer(audio, "<i2"), tone(int(0.6 * 24_000), call.hz))
