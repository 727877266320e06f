"""Every turn ends, whatever breaks: a part fails, hangs, or says nothing. Virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.fakes import FakeRecognizer, FakeSpeaker, FakeThinker, Scene, cough, say, silence
from voice_agent import turn as tm
from voice_agent.agent import Call
from voice_agent.errors import InternalError
from voice_agent.events import (
    CallFault,
    EndReason,
    Partial,
    ReplyDone,
    ReplyStatus,
    TurnCommitted,
    TurnTraced,
)
from voice_agent.reply import Speaker
from voice_agent.scope import CancelScope
from voice_agent.stack import ANSWER_WITHIN_S, GPU_ANSWER_WITHIN_S
from voice_agent.stt.base import Transcript
from voice_agent.think import Thought
from voice_agent.trace import Mark
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.types import IN_RATE, Pcm16, PcmF32

pytestmark = pytest.mark.unit

RECOVERY = "Sorry, I didn't catch that. Could you say it again?"
FRAME_S = 0.02 + 1e-6
WATCH_S = 0.1
LONG = "one two three four five six, seven eight nine ten. eleven twelve thirteen fourteen."


class BrokenSpeaker(FakeSpeaker):
    """Fails for clauses that `breaks` picks: in which way, and how often."""

    def __init__(self, how: str, times: int = 10**6, word: str = "") -> None:
        super().__init__()
        self.how, self.times, self.word = how, times, word

    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        if self.word not in clause.spoken or not self.times:
            async for piece in super().speak(
                clause, speed=speed, deadline_s=deadline_s, scope=scope
            ):
                yield piece
            return
        self.times -= 1
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "fails":
            raise InternalError("the voice was told to fail", code="VA341")
        if self.how == "empty":
            yield AudioPiece(np.zeros(0, np.int16), (), last=True)


class HangingThinker(FakeThinker):
    """Stops for ever after `after` characters of its text."""

    def __init__(self, text: str, after: int) -> None:
        super().__init__(lambda _: text)
        self.after = after

    def think(self, *args: object, **kwargs: object) -> Hanging:
        return Hanging(super().think(*args, **kwargs), self.after)  # type: ignore[arg-type]


class Hanging:
    def __init__(self, inner: object, after: int) -> None:
        self._inner, self._after = inner, after

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        said = 0
        async for thought in self._inner:  # type: ignore[attr-defined]
            if said >= self._after:
                await asyncio.Event().wait()
            said += len(thought.text)
            yield thought


class BrokenRecognizer(FakeRecognizer):
    """From pass `first` on it hangs, or raises what is no error of ours."""

    def __init__(self, how: str, first: int = 1, last: int = 10**6) -> None:
        super().__init__()
        self.how, self.first, self.last = how, first, last
        self.waiting = 0

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        heard = await super().transcribe(
            pcm, prefix=prefix, final=final, deadline_s=deadline_s, key=key
        )
        if not self.first <= self.passes <= self.last:
            return heard
        if self.how == "raises":
            raise RuntimeError("something inside the model")
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
        return heard


def with_speaker(scene: Scene, speaker: Speaker) -> Scene:
    """The recovery is made while the voice still works; then it breaks."""
    whole = FakeSpeaker.speak

    async def speak(self: FakeSpeaker, clause: Clause, **how: object) -> AsyncIterator[AudioPiece]:
        inner = speaker.speak if scene.stack.ready else whole.__get__(self)
        async for piece in inner(clause, **how):  # type: ignore[arg-type]
            yield piece

    scene.speaker.speak = speak.__get__(scene.speaker)  # type: ignore[method-assign]
    return scene


def said(scene: Scene) -> list[str]:
    """What was heard to the end, in order."""
    return [e.text for e in scene.of(ReplyDone) if e.status is ReplyStatus.COMPLETED]


def outcomes(scene: Scene) -> list[str]:
    return [e.trace.outcome.partition(":")[0] for e in scene.of(TurnTraced)]


def codes(scene: Scene) -> list[str]:
    return [e.code for e in scene.of(CallFault)]


def waits(scene: Scene) -> list[float]:
    """Seconds from each commit to the first sound after it."""
    sounds = [t for t, tick in scene.frames if tick.audible]
    commits = [e.trace.marks[Mark.COMMIT] for e in scene.of(TurnTraced)]
    return [min(t for t in sounds if t >= at) - at for at in commits]


def rests(scene: Scene) -> None:
    """The call is back to listening, with nothing left running."""
    assert scene.call is not None
    assert scene.reason is EndReason.CALLER_HUNG_UP
    assert scene.thinker.running == 0


# ---------------------------------------------------------------- the voice


@pytest.mark.parametrize("how", ["empty", "nothing", "fails", "hangs"])
def test_a_voice_without_sound_is_followed_by_a_recovery(how: str) -> None:
    scene = with_speaker(Scene("It is noon."), BrokenSpeaker(how))
    scene.play(silence(300), say("what is the time"), tail_ms=9000)
    assert said(scene) == [RECOVERY]
    assert outcomes(scene) == ["recovery"]
    (wait,) = waits(scene)
    assert wait <= ANSWER_WITHIN_S + WATCH_S + FRAME_S
    assert scene.history == [("user", "what is the time"), ("assistant", RECOVERY)]
    rests(scene)


@pytest.mark.parametrize("how", ["empty", "nothing", "fails"])
def test_a_clause_that_fails_once_is_said_all_the_same(how: str) -> None:
    scene = with_speaker(Scene("It is noon."), BrokenSpeaker(how, times=1))
    scene.play(silence(300), say("what is the time"), tail_ms=3000)
    assert said(scene) == ["It is noon."]
    assert codes(scene) == []


@pytest.mark.parametrize("how", ["empty", "fails"])
def test_what_was_made_before_a_failure_is_heard_to_its_end(how: str) -> None:
    scene = with_speaker(Scene(LONG), BrokenSpeaker(how, word="eleven"))
    scene.play(silence(300), say("hello"), tail_ms=9000)
    (done,) = scene.of(ReplyDone)
    assert done.status is ReplyStatus.FAILED
    assert done.heard.rstrip() == "one two three four five six, seven eight nine ten."
    assert outcomes(scene) == ["spoken"]
    assert len(codes(scene)) == 1
    rests(scene)


def test_a_voice_that_stops_in_the_middle_gives_the_floor_back() -> None:
    scene = with_speaker(Scene(LONG), BrokenSpeaker("hangs", word="eleven"))
    scene.play(silence(300), say("hello"), silence(12_000), say("what"), tail_ms=9000)
    first = scene.of(ReplyDone)[0]
    assert (first.status, codes(scene)[0]) == (ReplyStatus.FAILED, "VA321")
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello", "what"]
    assert outcomes(scene)[0] == "spoken"


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize(("limit_s", "after"), [(ANSWER_WITHIN_S, 0), (GPU_ANSWER_WITHIN_S, 0)])
def test_a_model_that_hangs_is_followed_by_a_recovery_in_time(limit_s: float, after: int) -> None:
    scene = Scene("", thinker=HangingThinker("It is noon.", after))
    scene.stack.answer_within_s = limit_s
    scene.play(silence(300), say("what is the time"), tail_ms=9000)
    assert said(scene) == [RECOVERY]
    (wait,) = waits(scene)
    assert limit_s <= wait <= limit_s + WATCH_S + 2 * FRAME_S
    assert codes(scene) == ["VA321"]


def test_a_model_that_hangs_in_the_middle_gives_the_floor_back() -> None:
    scene = Scene("", thinker=HangingThinker(LONG, 40))
    scene.play(silence(300), say("hello"), silence(12_000), say("what"), tail_ms=9000)
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello", "what"]
    first = scene.of(ReplyDone)[0]
    assert first.status is ReplyStatus.FAILED
    assert first.heard
    assert LONG.startswith(first.heard)
    assert outcomes(scene) == ["spoken", "spoken"]


def test_a_model_that_fails_each_time_recovers_twice_and_then_says_why_in_the_trace() -> None:
    scene = Scene("Fine.")
    scene.thinker.fail = True
    turn = (say("hello"), silence(8000))
    scene.play(silence(300), *turn, *turn, *turn)
    assert said(scene) == [RECOVERY, RECOVERY]
    assert outcomes(scene) == ["recovery", "recovery", "no_input"]
    assert scene.of(TurnTraced)[-1].trace.outcome == "no_input: VA331"
    rests(scene)


def test_an_answer_that_was_heard_earns_a_recovery_again() -> None:
    scene = Scene("Fine.")
    parts: list[Pcm16 | Callable[[Call], object]] = [silence(300)]
    for fail in (True, True, False, True):
        parts += [lambda _, f=fail: setattr(scene.thinker, "fail", f), say("hello"), silence(8000)]  # type: ignore[misc]
    scene.play(*parts)
    assert said(scene) == [RECOVERY, RECOVERY, "Fine.", RECOVERY]


# ---------------------------------------------------------------- recognition


def test_recognition_that_hangs_ends_the_turn_and_keeps_nothing_running() -> None:
    scene = Scene("Fine.")
    broken = scene.recognizer = scene.stack.recognizer = BrokenRecognizer("hangs")
    scene.play(silence(300), say("tell me more please"), tail_ms=8000)
    assert codes(scene) == ["VA310"]
    assert outcomes(scene) == ["recovery"]
    assert said(scene) == [RECOVERY]
    assert broken.waiting == 0, "a pass that hung is cancelled with its utterance"
    rests(scene)


def test_recognition_that_hangs_once_answers_the_next_turn() -> None:
    scene = Scene("Fine.")
    scene.stack.recognizer = BrokenRecognizer("hangs", last=1)
    scene.play(silence(300), say("hello"), silence(8000), say("what"), tail_ms=4000)
    assert [e.text for e in scene.of(TurnCommitted)] == ["", "what"]
    assert said(scene)[-1] == "Fine."


@pytest.mark.parametrize("how", ["hangs", "raises"])
def test_words_that_were_heard_before_recognition_broke_are_answered(how: str) -> None:
    scene = Scene("Fine.")
    scene.stack.recognizer = BrokenRecognizer(how, first=2)
    scene.play(silence(300), say("tell me more and what is the weather"), tail_ms=9000)
    (partial, *_) = scene.of(Partial)
    heard = f"{partial.confirmed} {partial.tail}".strip()
    assert heard
    assert [e.text for e in scene.of(TurnCommitted)] == [heard]
    assert said(scene) == ["Fine."]


def test_recognition_that_raises_anything_is_no_input_at_once() -> None:
    scene = Scene("Fine.")
    scene.stack.recognizer = BrokenRecognizer("raises")
    scene.play(silence(300), say("hello"), tail_ms=3000)
    assert outcomes(scene) == ["no_input"]
    assert codes(scene) == ["VA300"]


def test_recognition_that_hangs_over_our_voice_gives_it_back() -> None:
    scene = Scene(LONG)
    scene.stack.recognizer = BrokenRecognizer("hangs", first=2)
    scene.play(silence(300), say("hello"), silence(1000), cough(8000), tail_ms=12_000)
    assert said(scene)[0] == LONG
    rests(scene)


class ForgettingRecognizer(FakeRecognizer):
    """Hears `words` in any sound until pass `last`, and nothing in it later on."""

    def __init__(self, words: str, last: int) -> None:
        super().__init__()
        self.words, self.last = tuple(words.split()), last

    async def transcribe(self, pcm: PcmF32, **how: Any) -> Transcript:
        heard = await super().transcribe(pcm, **how)
        sounds = self.passes <= self.last
        return replace(heard, words=self.words if sounds else ())


def test_a_reply_cut_for_words_that_come_to_nothing_is_followed_by_a_recovery() -> None:
    """Voice far too short to ask for words, had it not cut us."""
    scene = Scene("Fine.", greeting=LONG)
    scene.recognizer = scene.stack.recognizer = ForgettingRecognizer("what is", 1)
    scene.play(silence(1000), cough(200), silence(200), cough(100), tail_ms=9000)
    statuses = [(e.status, e.text) for e in scene.of(ReplyDone)]
    assert statuses == [(ReplyStatus.INTERRUPTED, LONG), (ReplyStatus.COMPLETED, RECOVERY)]
    assert outcomes(scene)[-1] == "recovery"
    rests(scene)


def test_noise_that_cuts_the_recovery_too_is_followed_by_one_more_and_no_third() -> None:
    scene = Scene("Fine.", greeting=LONG)
    scene.recognizer = scene.stack.recognizer = EveryOtherRecognizer()
    burst = [cough(200), silence(200), cough(100), silence(1800)]
    scene.play(silence(1000), *burst * 4, tail_ms=4000)
    begun = [e.text for e in scene.of(ReplyDone)]
    assert begun == [LONG, RECOVERY, RECOVERY]
    rests(scene)


class EveryOtherRecognizer(FakeRecognizer):
    """Words in the first pass over a sound, and none in the next."""

    async def transcribe(self, pcm: PcmF32, **how: Any) -> Transcript:
        heard = await super().transcribe(pcm, **how)
        return replace(heard, words=("what", "is") if self.passes % 2 else ())


# ---------------------------------------------------------------- noise


def test_voice_without_words_for_minutes_ends_in_two_recoveries_and_no_reply() -> None:
    scene = Scene("Fine.").play(silence(300), cough(120_000), tail_ms=2000)
    assert said(scene) == [RECOVERY] * 2
    assert {e.text for e in scene.of(TurnCommitted)} == {""}
    assert set(outcomes(scene)) == {"recovery", "no_input"}
    assert scene.reason is EndReason.CALLER_HUNG_UP


def test_five_minutes_of_bursts_of_noise_give_two_recoveries_and_no_reply() -> None:
    rng = np.random.default_rng(0)
    noise: list[Pcm16 | Callable[[Call], object]] = []
    while sum(len(part) for part in noise) < 300 * IN_RATE:  # type: ignore[arg-type]
        noise += [cough(int(rng.integers(80, 6000))), silence(int(rng.integers(100, 4000)))]
    scene = Scene("Fine.", greeting="Hello there.").play(*noise, tail_ms=500)
    assert said(scene) == ["Hello there.", RECOVERY, RECOVERY]
    assert {e.text for e in scene.of(TurnCommitted)} == {""}
    assert len(scene.of(TurnTraced)) > 30
    assert scene.call is not None
    assert scene.reason is EndReason.CALLER_HUNG_UP


def test_a_word_here_and_there_in_a_long_noise_is_no_turn() -> None:
    noise = np.concatenate([cough(3000), say("and")] * 3)
    scene = Scene("Fine.").play(silence(300), noise, tail_ms=4000)
    assert {e.text for e in scene.of(TurnCommitted)} == {""}
    assert said(scene) == [RECOVERY]


def test_a_slow_caller_is_no_noise() -> None:
    slow = "tell me more and what is the weather today now please"
    scene = Scene("Fine.").play(silence(300), say(slow, gap_ms=500), tail_ms=4000)
    assert [e.text for e in scene.of(TurnCommitted)] == [slow]


def test_faint_voice_gets_no_recovery() -> None:
    """Only what the detector is sure of should have been words."""
    scene = Scene("Fine.")
    vad = scene.stack.vad._model
    sure = vad.score

    def unsure(windows: object, states: object) -> object:
        probabilities, states = sure(windows, states)  # type: ignore[arg-type]
        return np.minimum(probabilities, 0.6), states

    vad.score = unsure  # type: ignore[method-assign, assignment]
    scene.play(silence(300), cough(3000), tail_ms=3000)
    assert outcomes(scene) == ["no_input"]
    assert said(scene) == []


# ---------------------------------------------------------------- nobody there


def test_a_silent_caller_is_asked_twice_then_told_goodbye_to_its_last_sample() -> None:
    scene = Scene("Fine.", greeting="Hello there.", goodbye="Goodbye then.")
    scene.play(silence(120_000), tail_ms=0)
    asked = ["Are you still there?", "I can't hear you. Are you there?"]
    assert said(scene) == ["Hello there.", *asked, "Goodbye then."]
    assert scene.reason is EndReason.IDLE_TIMEOUT
    starts = [e for t, e in scene.events if isinstance(e, ReplyDone)]
    assert starts[-1].heard == "Goodbye then.", "drained before the line is cut"


def test_a_word_starts_the_ladder_over() -> None:
    scene = Scene("Fine.", goodbye="Goodbye then.")
    scene.play(silence(30_000), say("hello"), silence(30_000), tail_ms=0)
    assert said(scene) == ["Are you still there?", "Fine.", "Are you still there?"]


def test_the_prompts_are_the_operators_and_may_be_none() -> None:
    scene = Scene("Fine.", goodbye="Bye.", idle_prompts=("Hm?",), limits={"idle_s": 5.0})
    scene.play(silence(20_000), tail_ms=0)
    assert said(scene) == ["Hm?", "Bye."]
    scene = Scene("Fine.", goodbye="Bye.", idle_prompts=(), limits={"idle_s": 5.0})
    scene.play(silence(20_000), tail_ms=0)
    assert said(scene) == ["Bye."]


def test_a_client_that_decides_when_we_speak_hears_no_prompt() -> None:
    scene = Scene("Fine.", goodbye="Bye.")
    scene.play(
        lambda call: setattr(call.client, "auto_response", False), silence(80_000), tail_ms=0
    )
    assert said(scene) == ["Bye."]


def test_noise_without_a_word_does_not_hold_the_line_for_ever() -> None:
    scene = Scene("Fine.", goodbye="Bye.", limits={"silence_s": 30.0})
    scene.play(*[cough(3000), silence(1000)] * 12, tail_ms=0)
    assert scene.reason is EndReason.IDLE_TIMEOUT
    assert said(scene)[-1] == "Bye."


def test_a_call_ends_when_its_time_is_up() -> None:
    scene = Scene("Fine.", goodbye="Bye.", limits={"max_call_s": 8.0})
    scene.play(silence(300), *[say("hello"), silence(2500)] * 5, tail_ms=0)
    assert scene.reason is EndReason.MAX_DURATION
    assert said(scene)[-1] == "Bye."


def test_a_goodbye_that_cannot_be_spoken_hangs_up_all_the_same() -> None:
    scene = Scene("Fine.", goodbye="Bye.", idle_prompts=(), limits={"idle_s": 5.0})
    scene.stack.voice_cache = None
    scene.stack._speakers["fake"] = BrokenSpeaker("hangs")
    scene.play(silence(30_000), tail_ms=0)
    assert scene.reason is EndReason.IDLE_TIMEOUT


def test_a_goodbye_that_nobody_fetches_hangs_up_all_the_same() -> None:
    scene = Scene("Fine.", goodbye="Bye.", limits={"max_call_s": 5.0})

    async def nobody_plays() -> EndReason:
        await scene.stack.start()
        reason = await scene.stack.open_call(None, scene.on_event).run()
        await scene.stack.close()
        return reason

    from tests.support.virtual_loop import run_virtual

    assert run_virtual(nobody_plays(), scene.loop) is EndReason.MAX_DURATION


# ---------------------------------------------------------------- early work


def test_at_rest_the_machine_is_idle_after_every_kind_of_fault() -> None:
    for how in ("empty", "fails", "hangs"):
        scene = with_speaker(Scene("It is noon."), BrokenSpeaker(how))
        seen: list[tm.TurnState] = []
        scene.play(
            silence(300),
            say("what is the time"),
            silence(9000),
            lambda call, seen=seen: seen.append(call._turns.state),  # type: ignore[misc]
            tail_ms=20,
        )
        assert (seen[0].caller, seen[0].floor) == (tm.Caller.SILENT, tm.Floor.IDLE)
