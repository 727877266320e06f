"""The session alone, in virtual time: sound both ways, marks as playback, what barge-in leaves."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from gateway.media import g711
from gateway.realtime.errors import ProtocolError
from gateway.twilio.session import MARK_EVERY, MAX_MARKS, TwilioSession
from gateway.twilio.wire import Start, parse
from tests.support import media_stream as ms
from tests.support.fake_call import FakeStack, tone
from voice_agent.clock import ManualClock
from voice_agent.events import EndReason

pytestmark = pytest.mark.unit
LOUD = g711.encode_ulaw(tone(24_000)[::3])[: 160 * 50]
QUIET = g711.encode_ulaw(np.zeros(160, np.int16))


class Box:
    def __init__(self) -> None:
        self.waiting: list[tuple[str, str | None]] = []

    def put(self, text: str, key: str | None = None) -> None:
        self.waiting.append((text, key))

    def drop(self, key: str) -> None:
        self.waiting = [entry for entry in self.waiting if entry[1] != key]

    def take(self, event: str = "") -> list[dict[str, Any]]:
        messages = [json.loads(text) for text, _ in self.waiting]
        self.waiting.clear()
        return [m for m in messages if not event or m["event"] == event]


class Scene:
    def __init__(self, **call: Any) -> None:
        self.clock = ManualClock()
        self.box = Box()
        self.errors: list[str] = []
        self.quiet = 0
        stack = FakeStack(**call)
        self.call = stack.open_call(None, lambda event: self.session.on_event(event), 100)
        started = parse(json.dumps(ms.start()))
        assert isinstance(started, Start)
        self.session = TwilioSession(
            self.box,
            started.start,
            self.call,
            self.clock,
            lead_ms=100,
            on_error=self.errors.append,
            on_quiet=self.count_quiet,
        )

    def count_quiet(self) -> None:
        self.quiet += 1

    def ticks(self, n: int, payload: bytes | None = None) -> None:
        for k in range(n):
            if payload is not None:
                self.send(ms.media(payload, k + 1))
            self.session.tick()
            self.clock.advance(0.02)

    def send(self, message: dict[str, Any]) -> None:
        self.session.receive(json.dumps(message))


def test_the_caller_is_heard_at_16_khz() -> None:
    scene = Scene()
    for k in range(50):
        scene.send(ms.media(LOUD[160 * k : 160 * (k + 1)], k + 1))
        scene.session.tick()
    heard = np.concatenate([frame.pcm for frame in scene.call.heard]).astype(float)
    assert len(heard) == 50 * 320
    spectrum = np.abs(np.fft.rfft(heard[1600:9600]))
    assert np.argmax(spectrum) * 2 == 440
    assert not scene.errors


def test_the_other_track_is_not_the_caller() -> None:
    scene = Scene()
    scene.send(ms.media(LOUD[:160], track="outbound"))
    scene.session.tick()
    assert not scene.call.heard


def reply(scene: Scene) -> None:
    """The caller says something and is answered."""
    scene.ticks(10, LOUD[:160])
    scene.ticks(21, QUIET)


def test_our_voice_goes_out_ahead_by_the_lead_and_paced() -> None:
    scene = Scene(reply_s=1.0)
    reply(scene)
    first = scene.box.take()
    assert len([m for m in first if m["event"] == "media"]) in (6, 7, 8)
    assert all(m["streamSid"] == ms.STREAM for m in first)
    scene.ticks(20)
    assert len(scene.box.take("media")) == 20
    scene.ticks(60)
    data = b"".join(base64.b64decode(m["media"]["payload"]) for m in scene.box.take("media"))
    assert data
    spectrum = np.abs(np.fft.rfft(g711.decode_ulaw(data[:1600]).astype(float)))
    assert np.argmax(spectrum) * 5 == 440


def test_all_of_a_reply_is_sent_and_a_mark_is_its_last_word() -> None:
    scene = Scene(reply_s=0.5)
    reply(scene)
    scene.ticks(60)
    messages = scene.box.take()
    n_samples = sum(
        len(base64.b64decode(m["media"]["payload"])) for m in messages if m["event"] == "media"
    )
    assert n_samples == 4000 + 80
    assert messages[-1]["event"] == "mark"
    assert len([m for m in messages if m["event"] == "mark"]) == 25 // MARK_EVERY
    assert not scene.session.quiet


def test_a_mark_tells_how_far_the_caller_has_heard() -> None:
    scene = Scene(reply_s=1.0)
    reply(scene)
    names = [m["mark"]["name"] for m in scene.box.take("mark")]
    scene.ticks(7)
    scene.send(ms.mark(names[0]))
    (behind,) = scene.call.behind_ms
    assert 140 <= behind <= 180
    scene.send(ms.mark(names[0]))
    scene.send(ms.mark("of nobody"))
    assert len(scene.call.behind_ms) == 1


def test_a_later_mark_stands_for_those_before_it_and_the_last_one_is_quiet() -> None:
    scene = Scene(reply_s=0.5)
    reply(scene)
    scene.ticks(60)
    names = [m["mark"]["name"] for m in scene.box.take("mark")]
    scene.send(ms.mark(names[-1]))
    assert scene.session.quiet
    assert scene.quiet == 1
    assert len(scene.call.behind_ms) == 1


def test_a_barge_in_clears_what_was_sent_and_its_marks_are_not_heard() -> None:
    scene = Scene(reply_s=5.0)
    reply(scene)
    scene.ticks(20)
    before = scene.box.take()
    names = [m["mark"]["name"] for m in before if m["event"] == "mark"]
    scene.ticks(5, LOUD[:160])
    unsent = len(scene.box.waiting)
    assert unsent
    scene.ticks(2, LOUD[:160])
    assert [m["event"] for m in scene.box.take()] == ["clear"], "what waited is not sent any more"
    heard = list(scene.call.behind_ms)
    for name in names:
        scene.send(ms.mark(name))
    assert scene.call.behind_ms == heard
    assert scene.session.quiet
    scene.ticks(30, QUIET)
    assert scene.box.take("media"), "the next reply is sent"


def test_nothing_is_cleared_when_nothing_was_sent() -> None:
    scene = Scene()
    reply_id = scene.call.client.respond()
    assert reply_id
    scene.call.client.cancel_reply()
    assert scene.box.take() == []


def test_a_platform_without_marks_is_not_remembered_for_ever() -> None:
    scene = Scene(reply_s=60.0)
    reply(scene)
    scene.ticks(50 * 58)
    assert len(scene.session._marks) <= MAX_MARKS


def test_keys_and_the_end() -> None:
    scene = Scene()
    for digit in "12#":
        scene.send(ms.dtmf(digit))
    assert scene.call.keys == ["1", "2", "#"]
    assert not scene.session.stopped
    scene.send(ms.stop())
    assert scene.session.stopped
    scene.call.hang_up(EndReason.CALLER_HUNG_UP)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("[]", "invalid_value"),
        ("{}", "invalid_value"),
        ('{"event": 3}', None),
        ('{"event": "media"}', "invalid_value"),
        ('{"event": "media", "media": {"payload": "%%%"}}', "invalid_audio"),
        ('{"event": "media", "media": {"payload": ""}}', "invalid_audio"),
        ('{"event": "media", "media": {"payload": 3}}', "invalid_value"),
        ('{"event": "dtmf", "dtmf": {"digit": "12"}}', "invalid_value"),
        ('{"event": "mark", "mark": {"name": null}}', "invalid_value"),
        (json.dumps(ms.start()), "invalid_value"),
        ('{"event": "something new", "streamSid": "MZ"}', None),
        (json.dumps(ms.connected()), None),
    ],
)
def test_what_is_wrong_is_counted_and_the_call_goes_on(message: str, code: str | None) -> None:
    scene = Scene()
    scene.session.receive(message)
    assert scene.errors == ([code] if code else [])
    scene.send(ms.media(LOUD[:160]))
    scene.session.tick()
    assert len(scene.call.heard) == 1


def test_the_start_as_the_documentation_shows_it() -> None:
    start = parse(json.dumps(ms.start(agent="other", token="x")))
    assert isinstance(start, Start)
    assert start.start.customParameters == {"agent": "other", "token": "x"}
    assert start.start.mediaFormat.ulaw
    bad = ms.start()
    bad["start"]["mediaFormat"]["sampleRate"] = 16000
    other = parse(json.dumps(bad))
    assert isinstance(other, Start)
    assert not other.start.mediaFormat.ulaw
    with pytest.raises(ProtocolError, match=r"start\.streamSid"):
        parse('{"event": "start", "start": {}}')
