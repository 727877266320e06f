"""The protocol session without sockets: the clock, the order of events, odd input."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grant import LOCAL, Change, Grant, Scope
from gateway.realtime.audio_in import BACKLOG_S, AudioInput
from gateway.realtime.client_events import PcmFormat
from gateway.realtime.errors import ProtocolError
from gateway.realtime.session import RealtimeSession
from tests.support.fake_call import FakeStack, tone
from voice_agent.events import (
    CallFault,
    Partial,
    ReplyDone,
    ReplyStarted,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
)
from voice_agent.types import Frame, FrameFlag, ReplyId, TurnId

pytestmark = pytest.mark.unit


class Box:
    """Every message for the client, parsed."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.dropped: list[str] = []

    def put(self, text: str, key: str | None = None) -> None:
        self.events.append(json.loads(text))

    def drop(self, key: str) -> None:
        self.dropped.append(key)

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["type"] == type_]


LIMITS = [{"name": "requests", "limit": 8, "remaining": 7, "reset_seconds": 0.0}]


def session(
    lead_ms: int = 100, *, grant: Grant = LOCAL, carries_audio: bool = True, **options: Any
) -> tuple[RealtimeSession, Box, Any]:
    box, stack = Box(), FakeStack(**options)
    s = RealtimeSession(
        box, "gpt-realtime", lead_ms=lead_ms, grant=grant, carries_audio=carries_audio,
        rate_limits=lambda: LIMITS,
    )  # fmt: skip
    call = stack.open_call(None, s.on_event, lead_ms)
    s.attach(call)
    return s, box, call


def send(s: RealtimeSession, type_: str, **fields: Any) -> None:
    s.receive(json.dumps({"type": type_, **fields}))


def audio(pcm: np.ndarray) -> str:
    return base64.b64encode(pcm.astype("<i2").tobytes()).decode()


def test_a_reply_is_sent_the_lead_ahead_and_then_in_step_with_the_clock() -> None:
    s, box, call = session(reply_s=2.0)
    call.client.respond()
    sent = []
    for _ in range(110):
        s.tick()
        sent.append(len(box.of("response.output_audio.delta")))
    assert sent[0] == 6  # the frame that is due and 100 ms
    assert sent[1:95] == list(range(7, 101))
    assert box.events[-1]["type"] == "response.done"
    s.tick()
    call.client.respond()
    s.tick()
    # the client has played the lead of the first reply by now
    assert len(box.of("response.output_audio.delta")) == 106


def test_done_follows_the_last_audio_even_when_raised_while_pulling() -> None:
    s, box, call = session(reply_s=0.2)
    call.client.respond()
    for _ in range(20):
        s.tick()
    order = [e["type"] for e in box.events]
    assert order.index("response.done") > max(
        i for i, t in enumerate(order) if t == "response.output_audio.delta"
    )


def test_late_audio_of_a_cut_reply_is_dropped_from_the_queue() -> None:
    s, box, call = session(reply_s=5.0)
    call.client.respond()
    s.tick()
    send(s, "response.cancel")
    response = box.of("response.done")[0]["response"]
    assert box.dropped == [response["id"]]
    n = len(box.of("response.output_audio.delta"))
    s.tick()
    assert len(box.of("response.output_audio.delta")) == n


def test_a_reopened_message_is_deleted_and_comes_back_whole() -> None:
    s, box, _ = session()
    turn = TurnId("c", 0)
    s.on_event(SpeechStarted(turn, 100))
    s.on_event(Partial(turn, "I would", " like"))
    s.on_event(SpeechStopped(turn, 900))
    s.on_event(TurnCommitted(turn, "I would like"))
    reply = ReplyId("c", 0, turn)
    s.on_event(ReplyStarted(reply))
    s.on_event(ReplyDone(reply, ReplyStatus.INTERRUPTED, "", "", 0))
    s.on_event(TurnReopened(turn))
    s.on_event(SpeechStarted(turn.revised(), 1_200))
    s.on_event(SpeechStopped(turn.revised(), 2_000))
    s.on_event(TurnCommitted(turn.revised(), "I would like two tickets"))
    first, second = box.of("input_audio_buffer.committed")
    assert box.of("conversation.item.deleted")[0]["item_id"] == first["item_id"]
    assert second["item_id"] != first["item_id"]
    assert second["previous_item_id"] is None
    done = box.of("response.done")[0]["response"]
    assert done["status"] == "cancelled"
    assert done["output"] == []
    completed = box.of("conversation.item.input_audio_transcription.completed")
    assert [e["transcript"] for e in completed] == ["I would like", "I would like two tickets"]


def test_faults_and_failed_replies_keep_the_protocols_shape() -> None:
    s, box, call = session()
    s.on_event(CallFault("VA321", "no sound in time"))
    reply = ReplyId("c", 0)
    s.on_event(ReplyStarted(reply))
    s.on_event(ReplyDone(reply, ReplyStatus.FAILED, "", "", 0))
    assert box.of("error")[0]["error"]["type"] == "server_error"
    done = box.of("response.done")[0]["response"]
    assert done["status"] == "failed"
    send(s, "session.update", event_id="e1", session={
        "type": "realtime", "audio": {"output": {"voice": "nobody"}}})  # fmt: skip
    error = box.of("error")[1]["error"]
    assert (error["code"], error["event_id"]) == ("VA114", "e1")
    assert box.of("session.updated") == []
    assert call.updates == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "invalid_json"), ("[1]", None), ("{", "invalid_json"), ("{}", None),
        ('{"type": "nonsense"}', "invalid_type"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter"),
        ('{"type": "input_audio_buffer.append", "audio": 5}', "invalid_value"),
        ('{"type": "input_audio_buffer.clear", "what": 5}', "unknown_parameter"),
        ('{"type": "output_audio_buffer.clear"}', "unsupported_event"),
        ('{"type": "conversation.item.retrieve", "item_id": "x"}', "item_not_found"),
        ('{"type": "session.update", "session": {"type": "other"}}', "invalid_type"),
    ],
)  # fmt: skip
def test_bad_messages_are_answered(message: str, code: str | None) -> None:
    s, box, _ = session()
    s.receive(message)
    (error,) = box.of("error")
    assert code is None or error["error"]["code"] == code
    assert error["error"]["message"]
    s.receive(message.encode())  # binary frames are read the same way
    assert len(box.of("error")) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "session", "audio", "input", "output", "format", "item", "item_id", "response",
             "turn_detection", "instructions", "content", "role", "event_id", "audio_end_ms"]
        ) | st.text(max_size=8), inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
TYPES = [
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit",
    "input_audio_buffer.clear", "conversation.item.create", "conversation.item.delete",
    "conversation.item.retrieve", "conversation.item.truncate", "response.create",
    "response.cancel", "output_audio_buffer.clear",
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(
    ["session", "audio", "item", "response", "item_id", "content_index", "audio_end_ms",
     "event_id", "response_id", "previous_item_id"]), JSON, max_size=4))  # fmt: skip
def test_no_message_breaks_a_session(type_: str, fields: dict[str, Any]) -> None:
    s, box, _ = session()
    s.receive(json.dumps({**fields, "type": type_}))
    s.tick()
    send(s, "response.create")
    s.tick()
    assert all(e["error"]["code"] != "VA300" for e in box.of("error"))
    assert box.of("response.created") or box.of("error")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_break_a_session(data: bytes) -> None:
    s, box, _ = session()
    s.receive(data)
    assert len(box.events) >= 1


# ---------------------------------------------------------------- rights


def token(*changes: Change, session: dict[str, Any] | None = None) -> Grant:
    return Grant(
        "key", frozenset([Scope.CALL]), frozenset(changes), token="t", session=session
    )  # fmt: skip


ASKED: list[tuple[Change, str, dict[str, Any]]] = [
    (Change.INSTRUCTIONS, "session.update", {"session": {"instructions": "Swear."}}),
    (Change.TOOLS, "session.update", {"session": {"tools": [{"name": "pay"}]}}),
    (Change.TOOLS, "session.update", {"session": {"tool_choice": "none"}}),
    (Change.VOICE, "session.update", {"session": {"audio": {"output": {"speed": 1.4}}}}),
    (Change.TURNS, "session.update", {"session": {"audio": {"input": {"turn_detection": None}}}}),
    (Change.LIMITS, "session.update", {"session": {"max_output_tokens": 4000}}),
    (Change.MODALITY, "session.update", {"session": {"output_modalities": ["text"]}}),
    (Change.INSTRUCTIONS, "response.create", {"response": {"instructions": "Swear."}}),
    (Change.INSTRUCTIONS, "response.create", {"response": {"input": []}}),
    (Change.TOOLS, "response.create", {"response": {"tools": []}}),
    (Change.LIMITS, "response.create", {"response": {"max_output_tokens": 4000}}),
    (Change.MODALITY, "response.create", {"response": {"output_modalities": ["text"]}}),
    (Change.INSTRUCTIONS, "conversation.item.create", {"item": {
        "type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}]}}),
    (Change.TOOLS, "conversation.item.create", {"item": {
        "type": "function_call", "name": "pay", "arguments": "{}"}}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "fields"), ASKED)
def test_a_token_changes_what_it_may_and_nothing_else(
    change: Change, kind: str, fields: dict[str, Any]
) -> None:
    if "session" in fields:
        fields = {"session": {"type": "realtime", **fields["session"]}}
    s, box, call = session(grant=token(*(set(Change) - {change})))
    send(s, kind, **fields)
    (error,) = box.of("error")
    assert error["error"]["code"] == "not_allowed"
    assert change.value in error["error"]["message"]
    assert (call.updates, call.asked, call.messages) == ([], [], [])
    s, box, _ = session(grant=token(change))
    send(s, kind, **fields)
    assert box.of("error") == []


def test_what_a_token_carries_is_in_force_and_not_shown() -> None:
    laid_down = {
        "instructions": "You sell hats.", "tools": [{"type": "function", "name": "pay"}],
        "audio": {"output": {"speed": 1.2}},
    }  # fmt: skip
    s, box, call = session(grant=token(session=laid_down))
    (update,) = call.updates
    assert (update["instructions"], update["speed"]) == ("You sell hats.", 1.2)
    assert [tool["function"]["name"] for tool in update["tools"]] == ["pay"]
    send(s, "session.update", session={"type": "realtime", "audio": {"input": {
        "format": {"type": "audio/pcmu"}}}})  # fmt: skip
    for shown in (box.of("session.created")[0], box.of("session.updated")[0]):
        assert "hats" not in json.dumps(shown)
        assert shown["session"]["tools"] == []
        assert shown["session"]["audio"]["output"]["speed"] == 1.2


# ---------------------------------------------------------------- audio in


def heard_by(n_ticks: int = 0, **options: Any) -> tuple[AudioInput, list[Frame]]:
    frames: list[Frame] = []
    return AudioInput(frames.append, PcmFormat()), frames


def test_faster_than_real_time_is_heard_whole_at_its_own_sample_time() -> None:
    inlet, frames = heard_by()
    pcm = tone(24_000 * 4)
    for i in range(0, len(pcm), 7_777):
        inlet.append(audio(pcm[i : i + 7_777]))
    assert len(frames) < 20  # no burst on the call
    for _ in range(30):
        inlet.tick()
    assert len(frames) == 200
    assert all(f.flag is FrameFlag.RECEIVED and len(f.pcm) == 320 for f in frames)


def test_real_time_is_heard_at_once() -> None:
    inlet, frames = heard_by()
    for n in range(1, 20):
        inlet.append(audio(tone(480)))
        assert len(frames) == n
        inlet.tick()


def test_too_much_at_once_is_refused_and_the_rest_is_heard() -> None:
    inlet, frames = heard_by()
    for _ in range(int(BACKLOG_S)):
        inlet.append(audio(tone(24_000)))
    with pytest.raises(ProtocolError) as caught:
        inlet.append(audio(tone(24_000)))
    assert caught.value.code == "input_audio_buffer_full"
    for _ in range(500):
        inlet.tick()
    assert len(frames) >= 50 * BACKLOG_S


def test_a_gap_waits_one_second_and_is_then_filled() -> None:
    inlet, frames = heard_by()
    for _ in range(100):
        inlet.tick()
    assert frames == []  # nothing was ever sent: no clock runs
    inlet.append(audio(tone(4_800)))
    for _ in range(50):
        inlet.tick()
    assert len(frames) == 10
    for _ in range(10):
        inlet.tick()
    assert len(frames) == 20
    assert {f.flag for f in frames[10:]} == {FrameFlag.SILENCE}
    inlet.append(audio(tone(480)))
    assert frames[-1].flag is FrameFlag.RECEIVED


def test_marks_keep_their_place() -> None:
    inlet, frames = heard_by()
    inlet.append(audio(tone(24_000)))
    at: list[int] = []
    inlet.mark(lambda: at.append(len(frames)))
    inlet.append(audio(tone(24_000)))
    for _ in range(20):
        inlet.tick()
    assert at == [50]
    inlet.append(audio(tone(100)))
    inlet.mark(lambda: at.append(len(frames)))
    assert at == [50, 101]  # the unfinished frame is part of what is committed


def test_clear_forgets_what_was_not_heard() -> None:
    inlet, frames = heard_by()
    inlet.append(audio(tone(24_000)))
    ran: list[bool] = []
    inlet.mark(lambda: ran.append(True))
    n = len(frames)
    inlet.clear()
    for _ in range(20):
        inlet.tick()
    assert len(frames) == n
    assert ran == [True]
