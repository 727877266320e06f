"""A player behind the link sounds like one that is here, whatever is asked of it and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.workers.far_player import FarPlayer
from gateway.workers.host import HostLine, Tell
from gateway.workers.link import LEAD, DownFrame, Message, UpFrame
from voice_agent.player import Played, Player
from voice_agent.playout import Playout
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord, WordTime
from voice_agent.types import OUT_FRAME, SILENT_IN, Frame, Pcm16, ReplyId

pytestmark = pytest.mark.unit

WORD = 3600  # samples: 150 ms


class FakeLeg:
    def __init__(self) -> None:
        self.sent: list[Pcm16] = []
        self.asked: list[Message] = []

    async def open(self, offer: Message) -> Message:
        return {}

    def frame(self) -> Frame:
        return Frame(SILENT_IN)

    def send(self, pcm: Pcm16) -> None:
        self.sent.append(pcm)

    def told(self, message: Message) -> None:
        self.asked.append(message)

    async def close(self) -> None: ...


class Wire:
    """Both ends in one place: what the core tells waits until the next tick of the worker."""

    def __init__(self) -> None:
        self.leg = FakeLeg()
        self.messages: list[Message] = []
        self.voice: list[DownFrame] = []
        self.far = FarPlayer(2, self)  # type: ignore[arg-type]
        self.playout = Playout(self.far)
        self.host = HostLine(2, self, self._make_leg)  # type: ignore[arg-type]

    def _make_leg(self, tell: Tell) -> FakeLeg:
        return self.leg

    def tell(self, line: int, kind: str, /, **fields: Any) -> None:
        self.messages.append({"line": line, "type": kind, **fields})

    def put(self, frame: DownFrame) -> None:
        assert len(frame.pcm), "a frame without sound would be followed by another one, for ever"
        self.voice.append(frame)

    def worker_tick(self) -> UpFrame:
        """The worker gets all that was sent and plays 20 ms."""
        messages, self.messages = self.messages, []
        voice, self.voice = self.voice, []
        for message in messages:
            self.host.told(message)
        for frame in voice:
            self.host.play(frame.reply, frame.offset, frame.pcm)
        return self.host.tick()

    def tick(self) -> None:
        self.far.reported(self.worker_tick())
        self.playout.tick()


def ramp(n: int, start: int) -> Pcm16:
    return ((np.arange(start, start + n) % 29_000) + 1).astype(np.int16)


def piece(index: int, words: int) -> tuple[Clause, AudioPiece]:
    text = "so " * words
    spoken = tuple(SpokenWord("so", (3 * i, 3 * i + 2)) for i in range(words))
    times = tuple(WordTime(i, i * WORD, (i + 1) * WORD) for i in range(words))
    at = len(text) * index
    moved = tuple(SpokenWord(w.text, (w.source[0] + at, w.source[1] + at)) for w in spoken)
    clause = Clause(index, text, (at, at + len(text)), moved)
    return clause, AudioPiece(ramp(words * WORD, index * 997), times, True)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(1, 6)),
            st.tuples(st.just("tick"), st.integers(1, 20)),
            st.tuples(st.sampled_from(["hold", "resume", "end", "flush", "begin"]), st.just(0)),
            st.tuples(st.just("duck"), st.integers(0, 10)),
        ),
        max_size=40,
    )
)
def test_here_and_far_are_the_same(steps: list[tuple[str, int]]) -> None:
    wire, player = Wire(), Player()
    near, far = Playout(player), wire.playout
    sent: list[Pcm16] = []
    n, clauses = 0, 0
    play = player.tick

    def noted() -> Played:
        played = play()
        sent.append(played.pcm)
        return played

    player.tick = noted  # type: ignore[method-assign]
    for what, amount in [("begin", 0), ("push", 3), *steps, ("resume", 0), ("tick", 40)]:
        reply = ReplyId("c", n)
        for playout in (near, far):
            match what:
                case "begin" if playout.reply is None:
                    playout.begin(ReplyId("c", n + 1))
                case "push" if playout.reply is not None:
                    playout.push(reply, *piece(clauses, amount))
                case "end":
                    playout.end(reply)
                case "flush":
                    assert near.heard() == far.heard()
                    playout.flush(reply)
                case "hold":
                    playout.hold()
                case "resume":
                    playout.resume()
                case "duck":
                    playout.duck(amount / 10)
        if what == "begin" and near.reply == ReplyId("c", n + 1):
            n, clauses = n + 1, -1
        clauses += what in ("push", "begin")
        for _ in range(amount if what == "tick" else 0):
            near.tick()
            wire.tick()
            assert np.array_equal(sent[-1], wire.leg.sent[-1])
            assert near.heard() == far.heard()
            assert near.reply == far.reply
            assert near.underrun_ticks == far.underrun_ticks
            assert near.buffered_s == far.buffered_s


def spoken(wire: Wire, words: int = 40) -> None:
    wire.playout.begin(ReplyId("c", 1))
    wire.playout.push(ReplyId("c", 1), *piece(0, words))


def test_a_reply_moves_from_one_workers_player_to_anothers() -> None:
    old, new = Wire(), Wire()
    spoken(old)
    old.playout.end(ReplyId("c", 1))
    for _ in range(40):
        old.tick()
    n = len(old.leg.sent)
    assert old.playout.line_lost(10 * OUT_FRAME).samples == 30 * OUT_FRAME
    old.playout.play_on(new.far)
    new.playout = old.playout
    for _ in range(5):
        new.tick()
    assert not any(pcm.any() for pcm in new.leg.sent), "not before the line is back"
    new.playout.line_back()
    while new.playout.reply is not None:
        new.tick()
    start = 30 * OUT_FRAME // WORD * WORD
    said = np.concatenate(new.leg.sent[5:])
    first = int(np.flatnonzero(said)[0])
    assert first < OUT_FRAME
    whole = ramp(40 * WORD, 0)[start:]
    assert np.array_equal(said[OUT_FRAME : len(whole)], whole[OUT_FRAME:])
    old.far.reported(old.worker_tick())
    assert len(old.leg.sent) == n + 1
    assert not old.leg.sent[-1].any(), "the old one is silent"


def test_no_more_than_the_lead_is_sent_ahead_and_it_plays_without_the_core() -> None:
    wire = Wire()
    spoken(wire)
    for _ in range(20):
        wire.tick()
        ahead = wire.voice[-1].offset + len(wire.voice[-1].pcm) - wire.far._played
        assert ahead == LEAD
    silent = [not wire.worker_tick().played for _ in range(12)]  # the core stands still
    assert silent == [False] * 10 + [True] * 2


@pytest.mark.parametrize("stop", ["hold", "flush"])
def test_a_stop_is_obeyed_at_the_workers_next_tick(stop: str) -> None:
    wire = Wire()
    spoken(wire)
    for _ in range(5):
        wire.tick()
    if stop == "hold":
        wire.playout.hold()
    else:
        heard = wire.playout.flush(ReplyId("c", 1))
        assert heard.samples == 5 * OUT_FRAME
    wire.tick()
    assert not wire.leg.sent[-1][OUT_FRAME // 4 :].any()  # a fade of 5 ms at most
    wire.tick()
    assert not wire.leg.sent[-1].any()


def test_reports_of_before_a_jump_are_not_taken_for_the_new_place() -> None:
    wire = Wire()
    spoken(wire)
    for _ in range(12):
        wire.tick()
    wire.playout.hold()
    for _ in range(10):
        wire.tick()
    late = wire.worker_tick()  # on its way while the core decides
    wire.playout.resume()  # back to the start of the cut word
    wire.far.reported(late)
    wire.playout.tick()
    start = 12 * OUT_FRAME // WORD * WORD
    wire.tick()
    assert wire.playout.heard().samples == 12 * OUT_FRAME  # what was heard stays heard
    quarter = OUT_FRAME // 4
    assert np.array_equal(wire.leg.sent[-1][quarter:], ramp(OUT_FRAME, start)[quarter:])


def test_nothing_is_sent_of_a_flushed_reply_that_played_on_for_a_tick() -> None:
    """The worker hears of the flush a tick later than the core, with most of the reply unsent."""
    wire = Wire()
    spoken(wire)
    for _ in range(5):
        wire.tick()
    wire.playout.flush(ReplyId("c", 1))
    late, wire.messages, wire.voice = wire.messages, [], []
    wire.far.reported(wire.worker_tick())
    wire.messages = late
    frames = [wire.worker_tick() for _ in range(3)]
    assert {frame.reply for frame in frames} == {-1}
    for frame in frames:
        wire.far.reported(frame)
    assert wire.voice == []


def test_what_the_player_does_not_know_goes_to_the_leg() -> None:
    wire = Wire()
    wire.tell(2, "text", text="hi")
    wire.tick()
    assert wire.leg.asked == [{"line": 2, "type": "text", "text": "hi"}]
