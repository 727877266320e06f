"""What a client may send, well made and then damaged: for tests that feed it to every parser."""

from __future__ import annotations

import base64
import copy
import json
import random
from typing import Any

from hypothesis import strategies as st

from tests.support import media_stream as ms

SILENCE = base64.b64encode(bytes(960)).decode()
REALTIME: list[dict[str, Any]] = [
    {"type": "session.update", "session": {
        "type": "realtime", "instructions": "Be brief.", "output_modalities": ["audio"],
        "max_output_tokens": 100, "tool_choice": "auto",
        "tools": [{"type": "function", "name": "look_up", "description": "d",
                   "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}],
        "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24000},
                            "transcription": {"model": "x", "language": "en"},
                            "turn_detection": {"type": "server_vad", "threshold": 0.5,
                                               "silence_duration_ms": 500}},
                  "output": {"format": {"type": "audio/pcmu"}, "voice": "alloy", "speed": 1.0}}}},
    {"type": "input_audio_buffer.append", "audio": SILENCE},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {"type": "output_audio_buffer.clear"},
    {"type": "conversation.item.create", "previous_item_id": "root", "item": {
        "type": "message", "role": "user", "id": "item1",
        "content": [{"type": "input_text", "text": "Hello"}]}},
    {"type": "conversation.item.create", "item": {
        "type": "function_call_output", "call_id": "call_1", "output": "{}"}},
    {"type": "conversation.item.create", "item": {
        "type": "function_call", "call_id": "call_1", "name": "look_up", "arguments": "{}"}},
    {"type": "conversation.item.delete", "item_id": "item1"},
    {"type": "conversation.item.retrieve", "item_id": "item1"},
    {"type": "conversation.item.truncate", "item_id": "item1", "content_index": 0,
     "audio_end_ms": 10},
    {"type": "response.create", "response": {
        "conversation": "none", "instructions": "Say yes.", "output_modalities": ["text"],
        "metadata": {"a": "b"}, "max_output_tokens": 5, "tool_choice": "none",
        "input": [{"type": "message", "role": "user",
                   "content": [{"type": "input_text", "text": "Hi"}]}]}},
    {"type": "response.create"},
    {"type": "response.cancel", "response_id": "resp_1"},
]  # fmt: skip
TWILIO: list[dict[str, Any]] = [
    ms.connected(), ms.start(agent="default"), ms.media(b"\xff" * 160), ms.dtmf("1"),
    ms.mark("1"), ms.stop(),
]  # fmt: skip
OFFER = "\r\n".join(
    [
        "v=0",
        "o=- 4611731400430051336 2 IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0 1",
        "a=msid-semantic: WMS",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111 0 8 110",
        "c=IN IP4 0.0.0.0",
        "a=rtcp:9 IN IP4 0.0.0.0",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 50000 typ host",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:abcdefghijklmnopqrstuvwx",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        "a=mid:0",
        "a=extmap:1 urn:ietf:params:rtp-hdrext:ssrc-audio-level",
        "a=sendrecv",
        "a=msid:- 1",
        "a=rtcp-mux",
        "a=rtpmap:111 opus/48000/2",
        "a=rtcp-fb:111 transport-cc",
        "a=fmtp:111 minptime=10;useinbandfec=1",
        "a=rtpmap:0 PCMU/8000",
        "a=rtpmap:8 PCMA/8000",
        "a=rtpmap:110 telephone-event/48000",
        "a=ssrc:1001 cname:x",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 0.0.0.0",
        "a=ice-ufrag:abcd",
        "a=ice-pwd:abcdefghijklmnopqrstuvwx",
        "a=fingerprint:sha-256 " + ":".join(["AB"] * 32),
        "a=setup:actpass",
        "a=mid:1",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
        "",
    ]
)
RTP = bytes([0x80, 111, 0, 7, 0, 0, 3, 0xC0, 0, 0, 3, 0xE9]) + b"\x48\x0b\xe4\x00\x01"

_LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.sampled_from(["", "inf", "auto", "none", "item1", "\ud800", "\x00", "9" * 400, SILENCE])
)
JSON = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything within a JSON value."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    found = [at] if at else []
    for key, part in parts:
        found += _places(part, (*at, key))
    return found


@st.composite
def damaged(draw: st.DrawFn, templates: list[dict[str, Any]]) -> str | bytes:
    """A message as it should be, or with parts replaced, removed, added or cut; or noise."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=40) | st.text(max_size=40))
    message = copy.deepcopy(draw(st.sampled_from(templates)))
    for _ in range(draw(st.integers(0, 3)) if kind < 8 else 0):
        places = _places(message)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        inner = message
        for key in way:
            inner = inner[key]
        change = draw(st.integers(0, 2))
        if change == 0:
            inner[last] = draw(JSON)
        elif change == 1:
            del inner[last]
        elif isinstance(inner, dict):
            inner[draw(st.text(max_size=8))] = draw(JSON)
    text = json.dumps(message)
    return text[: draw(st.integers(0, len(text)))] if kind == 1 else text


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Some bytes replaced, something cut out, or something put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        change = draw(st.integers(0, 2))
        if change == 0 and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif change == 1:
            del data[at : at + draw(st.integers(1, 12))]
        else:
            data[at:at] = draw(st.binary(max_size=12))
    return bytes(data)


@st.composite
def damaged_sdp(draw: st.DrawFn) -> str:
    """Lines removed, doubled, moved and changed within."""
    lines = OFFER.split("\r\n")
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(st.integers(0, 4))
        if change == 0:
            del lines[at]
        elif change == 1:
            lines.insert(draw(st.integers(0, len(lines))), lines[at])
        elif change == 2:
            lines[at] = draw(damaged_bytes(lines[at].encode())).decode("latin-1")
        elif change == 3:
            lines[at] = draw(st.text(max_size=30))
        else:
            key, colon, _ = lines[at].partition(":")
            lines[at] = (
                key + colon + draw(st.sampled_from(["", "0", "-1", "9" * 30, "a b c", "\x00"]))
            )
        if not lines:
            break
    return draw(st.sampled_from(["\r\n", "\n"])).join(lines)


def noise(seed: int, n: int) -> list[bytes]:
    """The same damage at every run: messages of all kinds, for sockets."""
    rng = random.Random(seed)
    wholes = [json.dumps(m).encode() for m in (*REALTIME, *TWILIO)] + [OFFER.encode(), RTP]
    out = []
    for _ in range(n):
        data = bytearray(rng.choice(wholes))
        for _ in range(rng.randrange(8)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(6))
        out.append(bytes(data))
    return out
