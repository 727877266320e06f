"""One worker, many calls: order, cancel, back-pressure, faults. A scripted voice, no models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from voice_agent.clock import ManualClock
from voice_agent.errors import CapacityError, InternalError, UsageError
from voice_agent.scope import CancelScope
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord
from voice_agent.tts.service import SPARE_S, Speech, VoiceService

pytestmark = pytest.mark.unit

PIECE = 2400


class ScriptedVoice:
    """Makes one piece per word; each piece waits for `allow()`. Logs the order of its work."""

    name = "scripted"
    exact_times = True

    def __init__(self) -> None:
        self.log: list[str] = []
        self.closed: list[str] = []
        self.permits = threading.Semaphore(0)
        self.at_gate = threading.Semaphore(0)
        self.gated = False

    def warm(self) -> None: ...

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        try:
            for i, word in enumerate(clause.words):
                if self.gated:
                    self.at_gate.release()
                    assert self.permits.acquire(timeout=10)
                if cancelled():
                    return
                self.log.append(word.text)
                if word.text == "boom":
                    raise RuntimeError("broken")
                if word.text == "mute":
                    raise InternalError("silence")
                yield AudioPiece(np.full(PIECE, i, np.int16), (), i == len(clause.words) - 1)
        finally:
            self.closed.append(clause.text)


def clause(text: str) -> Clause:
    return Clause(0, text, (0, len(text)), tuple(SpokenWord(w, (0, 1)) for w in text.split()))


@asynccontextmanager
async def service(voice: ScriptedVoice, **options: int) -> AsyncIterator[VoiceService]:
    made = VoiceService(voice, ManualClock(), **options)
    try:
        yield made
    finally:
        voice.permits.release(1000)
        await made.close()


def ask(
    s: VoiceService, text: str, deadline: float = 0.0, scope: CancelScope | None = None
) -> Speech:
    scope = scope or CancelScope(text)
    return s.speak(clause(text), speed=1.0, deadline_s=lambda: deadline, scope=scope)


async def collect(speech: Speech) -> list[AudioPiece]:
    return [piece async for piece in speech]


async def reach(gate: threading.Semaphore) -> None:
    assert await asyncio.to_thread(gate.acquire, timeout=10)


async def test_pieces_arrive_in_order_and_end() -> None:
    voice = ScriptedVoice()
    async with service(voice) as s:
        pieces = await collect(ask(s, "a b c d e f g h"))
        assert [int(p.pcm[0]) for p in pieces] == list(range(8))
        assert [p.last for p in pieces] == [False] * 7 + [True]
        stats = s.stats()
        assert stats.pieces == 8
        assert stats.clauses == 1
        assert stats.audio_s == pytest.approx(0.8)
        assert stats.queued == 0
        assert stats.wasted_s == 0


async def test_a_voice_that_tells_no_times_gets_estimated_ones() -> None:
    voice = ScriptedVoice()
    voice.exact_times = False
    async with service(voice) as s:
        pieces = await collect(ask(s, "so it is"))
        assert sorted(w.index for p in pieces for w in p.words) == [0, 1, 2]
        assert pieces[-1].words[-1].end == 3 * PIECE
    assert voice.closed == ["so it is"]


async def test_earliest_deadline_first_and_a_more_urgent_clause_waits_one_piece() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, max_pending=10) as s:
        slow = ask(s, "x1 x2 x3", deadline=5.0)
        await reach(voice.at_gate)  # the worker is inside x1
        late, soon = ask(s, "l1 l2", deadline=9.0), ask(s, "s1 s2", deadline=1.0)
        voice.permits.release(100)
        await asyncio.gather(collect(slow), collect(late), collect(soon))
        assert voice.log == ["x1", "s1", "s2", "x2", "x3", "l1", "l2"]


async def test_deadline_is_read_at_each_choice() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    due = {"a": 1.0, "b": 2.0}
    async with service(voice, max_pending=10) as s:
        scope = CancelScope("both")
        a = s.speak(clause("a1 a2"), speed=1.0, deadline_s=lambda: due["a"], scope=scope)
        await reach(voice.at_gate)
        b = s.speak(clause("b1 b2"), speed=1.0, deadline_s=lambda: due["b"], scope=scope)
        due["a"] = 3.0
        voice.permits.release(100)
        await asyncio.gather(collect(a), collect(b))
        assert voice.log == ["a1", "b1", "b2", "a2"]


async def test_what_is_heard_and_about_to_run_dry_goes_before_late_first_clauses() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, max_pending=10) as s:
        reply = CancelScope("being heard")
        reply.sounding = True
        heard = ask(s, "h1 h2", 0.0, reply)  # the clock stands at 0: no slack
        await reach(voice.at_gate)
        late = ask(s, "n1", deadline=-1.0)
        voice.permits.release(100)
        await asyncio.gather(collect(heard), collect(late))
        assert voice.log == ["h1", "h2", "n1"]


async def test_the_next_clause_of_a_reply_that_is_heard_goes_before_first_clauses() -> None:
    """Not begun itself, but what it lacks is a hole all the same."""
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, max_pending=10) as s:
        reply = CancelScope("being heard")
        under_way = ask(s, "u1", deadline=-5.0)
        await reach(voice.at_gate)
        first, second = ask(s, "f1", deadline=0.0), ask(s, "s1", 0.0, reply)
        reply.sounding = True
        voice.permits.release(100)
        await asyncio.gather(*map(collect, (under_way, first, second)))
        assert voice.log == ["u1", "s1", "f1"]


async def test_what_is_made_and_not_taken_yet_is_not_missing() -> None:
    """The loop has not run since the last piece: that piece counts all the same."""
    voice, clock = ScriptedVoice(), ManualClock(50.0)
    s = VoiceService(voice, clock, workers=0)
    ask(s, "a1 a2", deadline=52.0)
    ask(s, "b1", deadline=52.05)
    while (job := s.take(wait=False)) is not None:
        s.advance(job, clock.now())
    assert voice.log == ["a1", "b1", "a2"]
    await s.close()


async def test_first_clauses_that_are_late_already_do_not_make_the_others_late() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, max_pending=10) as s:
        under_way = ask(s, "u1", deadline=-9.0)
        await reach(voice.at_gate)
        late, in_time = ask(s, "l1", deadline=-2.0), ask(s, "i1", deadline=0.3)
        voice.permits.release(100)
        await asyncio.gather(*map(collect, (under_way, late, in_time)))
        assert voice.log == ["u1", "i1", "l1"]
        assert s.stats().missed == 2, "the first one was late, too"


async def test_workers_share_the_clauses_and_never_one_of_them() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, workers=2) as s:
        one, two, three = (ask(s, f"{name}1 {name}2", n) for n, name in enumerate("abc"))
        await reach(voice.at_gate)
        await reach(voice.at_gate)  # both are inside a piece, of two clauses
        assert s.stats().unbegun == 3
        voice.permits.release(100)
        made = await asyncio.gather(*map(collect, (one, two, three)))
        assert [[int(p.pcm[0]) for p in pieces] for pieces in made] == [[0, 1]] * 3
        assert sorted(voice.closed) == ["a1 a2", "b1 b2", "c1 c2"]


async def test_a_simulation_takes_and_advances_pieces_in_its_own_time() -> None:
    voice, clock = ScriptedVoice(), ManualClock(50.0)
    s = VoiceService(voice, clock, workers=0)
    late, soon = ask(s, "l1", deadline=59.0), ask(s, "s1 s2", deadline=51.0)
    for _ in range(3):
        job = s.take(wait=False)
        assert job is not None
        began_s = clock.now()
        clock.advance(0.25)
        s.advance(job, began_s)
    assert s.take(wait=False) is None
    assert voice.log == ["s1", "s2", "l1"]
    assert s.stats().busy_s == pytest.approx(0.75)
    assert (s.stats().first_piece_s, s.stats().piece_s) == (0.25, 0.25)
    assert [len(await collect(speech)) for speech in (late, soon)] == [1, 2]
    await s.close()


async def test_no_reply_is_begun_that_would_take_the_sound_of_those_heard() -> None:
    clock = ManualClock()
    s = VoiceService(ScriptedVoice(), clock, workers=0, max_pending=100)
    scope, left_s = CancelScope("heard"), [10.0]
    words = " ".join(str(n) for n in range(50))
    speak = partial(s.speak, speed=1.0)
    heard = speak(clause(words), deadline_s=lambda: clock.now() + left_s[0], scope=scope)
    for _ in range(8):
        job = s.take(wait=False)
        assert job is heard
        began_s = clock.now()
        clock.advance(0.1)  # for as much sound
        s.advance(job, began_s)
    scope.sounding = True
    heard.pending_s = 0.0
    new = speak(
        clause("new"), deadline_s=lambda: clock.now() + SPARE_S - 0.15, scope=CancelScope("new")
    )
    taken = []
    for left_s[0] in (SPARE_S - 0.1, SPARE_S + 0.1):
        job = s.take(wait=False)
        assert job is not None
        taken.append(job)
        job.busy = False
    assert taken == [heard, new], "the more urgent one only while there is sound"
    await s.close()


async def test_a_deadline_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> float:
        raise KeyError("gone")

    voice = ScriptedVoice()
    async with service(voice) as s:
        bad = s.speak(clause("a b"), speed=1.0, deadline_s=broken, scope=CancelScope("a"))
        good = ask(s, "c d")
        assert len(await collect(good)) == 2
        assert len(await collect(bad)) == 2
    assert "deadline" in caplog.text


async def test_cancel_drops_queued_work_at_once_and_ends_the_consumer() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice) as s:
        scope = CancelScope("reply")
        running, queued = ask(s, "r1 r2 r3", 0.0, scope), ask(s, "q1", 1.0, scope)
        other = ask(s, "o1", 2.0)
        await reach(voice.at_gate)
        waiting = asyncio.gather(collect(running), collect(queued))
        await asyncio.sleep(0)
        scope.cancel()
        assert (s.stats().queued, s.stats().unbegun) == (1, 1)
        assert await asyncio.wait_for(waiting, 5) == [[], []]
        voice.permits.release(100)
        assert len(await collect(other)) == 1
        assert "q1" not in voice.log
        assert "r2" not in voice.log
        assert "r1 r2 r3" in voice.closed
        assert s.stats().cancelled == 2


async def test_speaking_under_a_cancelled_scope_does_nothing() -> None:
    voice = ScriptedVoice()
    async with service(voice) as s:
        scope = CancelScope("done")
        scope.cancel()
        assert await collect(ask(s, "a b", 0.0, scope)) == []
        assert voice.log == []
        assert s.stats().queued == 0


async def test_undelivered_pieces_are_bounded_per_consumer() -> None:
    voice = ScriptedVoice()
    async with service(voice, max_pending=2) as s:
        slow = ask(s, "a1 a2 a3 a4 a5 a6", deadline=0.0)
        assert len(await collect(ask(s, "b1 b2 b3", deadline=1.0))) == 3
        assert [w for w in voice.log if w[0] == "a"] == ["a1", "a2"]
        assert len(await collect(slow)) == 6


async def test_faults_reach_their_consumer_only() -> None:
    voice = ScriptedVoice()
    async with service(voice) as s:
        bad, worse, good = ask(s, "a boom b", 0.0), ask(s, "mute", 0.1), ask(s, "c d", 1.0)
        await anext(bad)  # what was made before the fault is delivered
        with pytest.raises(InternalError, match="broken"):
            await anext(bad)
        with pytest.raises(InternalError, match="silence"):
            await collect(worse)
        assert len(await collect(good)) == 2
        assert s.stats().failed == 2


async def test_a_closed_consumer_stops_the_work() -> None:
    voice = ScriptedVoice()
    async with service(voice, max_pending=1) as s:
        speech = ask(s, "a b c d")
        async for _ in speech:
            break
        await speech.aclose()
        assert await collect(speech) == []
        assert len(await collect(ask(s, "e"))) == 1
        assert s.stats().queued == 0
        assert voice.log.count("d") == 0


async def test_waste_is_counted() -> None:
    voice = ScriptedVoice()
    async with service(voice, max_pending=3) as s:
        scope = CancelScope("reply")
        speech = ask(s, "a b c d", 0.0, scope)
        await anext(speech)
        assert len(await collect(ask(s, "x", 1.0))) == 1
        scope.cancel()
        assert s.stats().wasted_s == pytest.approx(0.3)


async def test_limits() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    async with service(voice, max_queued=2) as s:
        with pytest.raises(UsageError, match="speed"):
            s.speak(clause("a"), speed=3.0, deadline_s=lambda: 0.0, scope=CancelScope("x"))
        scope = CancelScope("y")
        ask(s, "a", 0.0, scope)
        ask(s, "b", 0.0, scope)
        with pytest.raises(CapacityError):
            ask(s, "c")
        scope.cancel()
    with pytest.raises(InternalError, match="closed"):
        ask(s, "d")


async def test_close_ends_open_consumers() -> None:
    voice = ScriptedVoice()
    voice.gated = True
    made = VoiceService(voice, ManualClock())
    one, two = ask(made, "a b"), ask(made, "c d")
    await reach(voice.at_gate)
    waiting = asyncio.gather(collect(one), collect(two))
    closing = asyncio.ensure_future(made.close())
    await asyncio.sleep(0)
    voice.permits.release(10)
    await closing
    await made.close()
    first, second = await asyncio.wait_for(waiting, 5)
    assert len(first) <= 1
    assert second == []
