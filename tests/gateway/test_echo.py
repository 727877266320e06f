"""Our frames paired with the line's, the guard's modes, and where the transports put them."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from gateway.config import EchoModes, GatewayConfig
from gateway.gateway import Gateway
from gateway.media.echo import (
    CATCHES_UP,
    CUSHION,
    LEARNS_FROM_FRAMES,
    LEARNS_TIMES,
    SLACK_FRAMES,
    EchoGuard,
    EchoMode,
    EchoReport,
    Reference,
)
from gateway.media.echo_filter import EchoFilter
from gateway.realtime.session import RealtimeSession
from tests.support.clips import clip
from tests.support.echo import echo_of
from tests.support.fake_call import FakeStack
from voice_agent.audio import resample
from voice_agent.cli.serve import gateway_config
from voice_agent.config import Config
from voice_agent.own_words import Echo
from voice_agent.types import (
    IN_FRAME,
    IN_RATE,
    OUT_FRAME,
    OUT_RATE,
    SILENT_IN,
    Frame,
    FrameFlag,
    Pcm16,
)

pytestmark = pytest.mark.unit

OURS = resample(np.concatenate([clip("ps_austen_0870"), clip("ps_austen_0920")]), IN_RATE, OUT_RATE)
OURS_IN = resample(OURS, OUT_RATE, IN_RATE)


def numbered(n: int) -> Pcm16:
    return np.full(IN_FRAME, n, np.int16)


def number(pcm: Pcm16) -> int:
    return int(pcm[0])


def power(pcm: Pcm16) -> float:
    return float(np.square(pcm.astype(np.float64)).mean())


def through(guard: EchoGuard, heard: np.ndarray, ours: Pcm16 = OURS) -> Pcm16:
    out = []
    for i in range(min(len(ours) // OUT_FRAME, len(heard) // IN_FRAME)):
        frame = Frame(heard[i * IN_FRAME : (i + 1) * IN_FRAME].astype(np.int16))
        out.append(guard.heard(frame).pcm)
        guard.sent(ours[i * OUT_FRAME : (i + 1) * OUT_FRAME])
        guard.tick()
    return np.concatenate(out)


# ---------------------------------------------------------------- pairing


def test_frames_are_paired_in_order_whatever_the_bursts():
    reference, paired = Reference(), []
    for n in range(1, 101):
        reference.push(numbered(n))
        if n % 5 == 0:  # the line sends five at once
            paired += [number(reference.pop()) for _ in range(5)]
    assert paired == list(range(1, 101))


def test_a_line_ahead_of_us_leaves_a_cushion_and_then_keeps_its_distance():
    reference, paired = Reference(), []
    for burst in range(20):
        for n in range(5):
            reference.push(numbered(burst * 5 + n + 1))
        # at first two frames more came than were sent: those are paired with silence
        paired += [number(reference.pop()) for _ in range(7 if burst == 0 else 5)]
    assert paired[:7] == [1, 2, 3, 4, 5, 0, 0]
    assert paired[7:] == list(range(6, 101))


def test_a_slow_clock_of_the_line_does_not_let_our_frames_pile_up():
    reference, lag = Reference(), []
    sent = 0
    for n in range(4 * SLACK_FRAMES):
        for _ in range(2 if n % 50 == 49 else 1):  # 2 % slow
            sent += 1
            reference.push(numbered(sent))
        lag.append(sent - number(reference.pop()))
    drift = SLACK_FRAMES // 50
    assert max(lag) <= 2 * drift + 1 < 4 * drift


def test_a_line_that_stood_still_starts_anew():
    reference = Reference()
    for n in range(1, CUSHION + 100):
        reference.push(numbered(n))
    assert number(reference.pop()) == CUSHION + 99
    assert reference.pop() is SILENT_IN


def test_what_was_sent_earlier_is_still_known_also_over_what_was_taken_back():
    reference = Reference()
    for n in range(1, 11):
        reference.push(numbered(n))
        reference.pop()
    assert [number(reference.ago(k)) for k in range(4)] == [10, 9, 8, 7]
    assert number(reference.ago(50)) == 0
    for n in range(11, 11 + CUSHION + 5):  # the line stands still
        reference.push(numbered(n))
    newest = number(reference.pop())
    assert [number(reference.ago(k)) for k in range(3)] == [newest, newest - 1, newest - 2]


# ---------------------------------------------------------------- the guard


def test_off_has_no_guard():
    with pytest.raises(ValueError, match="no guard"):
        EchoGuard(EchoMode.OFF)


@pytest.mark.parametrize("delay_ms", [60, 200, 600])
def test_an_echo_is_found_and_taken_out(delay_ms):
    told: list[EchoReport] = []
    guard = EchoGuard(EchoMode.AUTO, told.append)
    echo = echo_of(OURS_IN, delay_ms, -6)
    clean = through(guard, echo)
    assert [r.verdict for r in told] == [Echo.FOUND]
    assert guard.report.cancelling
    assert guard.report.path is not None
    # the guard hears before it sends: our frame is one tick old when it is paired
    assert guard.report.path.delay_ms == pytest.approx(delay_ms - 20, abs=15)
    settled = slice(8 * IN_RATE, None)
    assert power(clean[settled]) < 0.03 * power(echo[: len(clean)][settled])
    assert str(guard.report).startswith("auto: found ")


def test_no_tick_learns_from_more_frames_than_it_may(monkeypatch):
    learnt = 0
    push = EchoFilter.push

    def counted(self: EchoFilter, sent: Pcm16, heard: Pcm16) -> Pcm16:
        nonlocal learnt
        learnt += 1
        return push(self, sent, heard)

    monkeypatch.setattr(EchoFilter, "push", counted)
    guard = EchoGuard(EchoMode.AUTO)
    echo = echo_of(OURS_IN, 130, -6)
    steps = []
    for i in range(100):
        guard.heard(Frame(echo[i * IN_FRAME : (i + 1) * IN_FRAME].astype(np.int16)))
        guard.sent(OURS[i * OUT_FRAME : (i + 1) * OUT_FRAME])
        guard.tick()
        learnt, n = 0, learnt
        steps.append(n)
    assert guard.report.verdict is Echo.FOUND
    assert max(steps) == CATCHES_UP
    assert steps[-1] == 1, "all that had been heard before is learnt"
    assert sum(steps) > LEARNS_FROM_FRAMES * (LEARNS_TIMES - 1)


def test_on_cancels_before_anything_is_known():
    guard = EchoGuard(EchoMode.ON)
    echo = echo_of(OURS_IN, 130, -6)
    clean = through(guard, echo, OURS[: 2 * OUT_RATE])
    assert guard.report.cancelling
    assert power(clean) < 0.1 * power(echo[: len(clean)])


def test_auto_leaves_a_line_without_echo_as_it_is():
    caller = np.resize(clip("ps_austen_0890"), len(OURS_IN))
    guard = EchoGuard(EchoMode.AUTO)
    heard = through(guard, caller)
    assert guard.report.verdict is Echo.NONE
    assert not guard.report.cancelling
    after = guard.report.after_ms * IN_RATE // 1000 + IN_RATE
    assert np.array_equal(heard[after:], caller[after : len(heard)])


def test_the_frames_flag_stays():
    guard = EchoGuard(EchoMode.ON)
    assert guard.heard(Frame(SILENT_IN, FrameFlag.CONCEALED)).flag is FrameFlag.CONCEALED


# ---------------------------------------------------------------- in the transports


class Box:
    def __init__(self) -> None:
        self.events: list[dict[str, object]] = []

    def put(self, text: str, key: str | None = None) -> None:
        self.events.append(json.loads(text))

    def drop(self, key: str) -> None: ...


class SpyGuard:
    def __init__(self) -> None:
        self.n_sent = self.n_ticks = self.n_cuts = 0
        self.n_heard = 0

    def sent(self, pcm: Pcm16) -> None:
        self.n_sent += 1

    def tick(self) -> None:
        self.n_ticks += 1

    def cut(self) -> None:
        self.n_cuts += 1

    def heard(self, frame: Frame) -> Frame:
        self.n_heard += 1
        return Frame(frame.pcm // 2, frame.flag)


def test_a_realtime_line_is_guarded_by_its_format():
    asked: list[bool] = []
    guards: list[SpyGuard] = []

    def make(telephone: bool) -> SpyGuard:
        asked.append(telephone)
        guards.append(SpyGuard())
        return guards[-1]

    box, events = Box(), []
    session = RealtimeSession(box, "m", lead_ms=100, guard=make)  # type: ignore[arg-type]
    call = FakeStack().open_call(None, lambda e: (events.append(e), session.on_event(e)), 100)
    session.attach(call)
    session.receive(
        json.dumps(
            {
                "type": "session.update",
                "session": {
                    "type": "realtime",
                    "audio": {"input": {"format": {"type": "audio/pcmu"}}},
                },
            }
        )
    )
    assert asked == [False, True]
    sound = base64.b64encode(bytes(160)).decode()
    session.receive(json.dumps({"type": "input_audio_buffer.append", "audio": sound}))
    session.receive(json.dumps({"type": "response.create"}))
    for _ in range(10):
        session.tick()
    guard = guards[-1]
    deltas = sum(e["type"] == "response.output_audio.delta" for e in box.events)
    assert guard.n_sent == deltas > 10
    assert guard.n_ticks == 10
    assert guard.n_heard == len(call.heard) == 1
    assert -17000 < call.heard[0].pcm.min() < -15000  # halved: µ-law 0 is -32124
    session.receive(json.dumps({"type": "response.cancel"}))
    assert guard.n_cuts == 1
    assert guards[0].n_ticks == 0


async def test_what_was_found_reaches_the_call_and_the_metrics():
    gateway = Gateway(FakeStack(), GatewayConfig())
    with gateway.admit("realtime") as live:
        live.call = call = gateway.stack.open_call(None, lambda event: None, 0)
        assert gateway.echo_guard(EchoMode.OFF, live) is None
        guard = gateway.echo_guard(EchoMode.AUTO, live)
        assert guard is not None
        through(guard, echo_of(OURS_IN, 130, -6))
    assert call.echo_notes[0] == "auto: unknown"
    assert call.echo_notes[1] == str(guard.report)
    text = gateway.metrics.render().decode()
    assert 'voice_agent_echo_total{transport="realtime",verdict="found"} 1.0' in text


def test_defaults_by_line():
    assert EchoModes() == EchoModes(EchoMode.OFF, EchoMode.OFF, EchoMode.AUTO)
    assert EchoModes().used
    assert not EchoModes(telephone=EchoMode.OFF).used


def test_the_configuration_reaches_the_door():
    door = gateway_config(Config(echo={"page": "on", "telephone": "off"}), 1)
    assert door.echo == EchoModes(page=EchoMode.ON, telephone=EchoMode.OFF)
