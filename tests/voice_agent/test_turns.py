"""Whole calls, any order of events: one voice of ours, nothing stale, no silent end, and back to
listening."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.fakes import Scene, cough, say, silence
from voice_agent.agent import Call
from voice_agent.events import (
    ReplyDone,
    ReplyStarted,
    ReplyStatus,
    SpeechStarted,
    TurnCommitted,
    TurnTraced,
)
from voice_agent.player import Player
from voice_agent.types import FRAME_MS, Pcm16, ReplyId

pytestmark = pytest.mark.unit

LONG = "one two three four five six seven eight nine ten, eleven twelve thirteen fourteen."
Part = Pcm16 | Callable[[Call], object]

SOUNDS = {
    "hello": say("hello"),
    "question": say("what is the time"),
    "mm-hm": say("mm-hm"),
    "stop": say("stop please"),
    "more": say("and tell me more"),
    "cough": cough(200),
    "noise": cough(1100),
    "breath": silence(150),
    "pause": silence(500),
    "silence": silence(1600),
    "long": silence(3500),
}
CONTROLS = (
    "mute", "unmute", "respond", "cancel", "1", "#", "guard", "unguard", "deaf", "hears", "dumb",
    "thinks", "slow", "quick", "clear", "message", "lost", "back", "moved",
)  # fmt: skip


def control(scene: Scene, name: str) -> Callable[[Call], object]:
    def act(call: Call) -> object:
        match name:
            case "mute" | "unmute":
                return call.client.mute(name == "mute")
            case "respond":
                return call.client.respond()
            case "cancel":
                return call.client.cancel_reply()
            case "1" | "#":
                return call.press(name)
            case "guard" | "unguard":
                call.client.interruptible = name == "unguard"
            case "deaf" | "hears":
                scene.recognizer.fail = name == "deaf"
            case "dumb" | "thinks":
                scene.thinker.fail = name == "dumb"
            case "slow" | "quick":
                scene.recognizer.delay_s = 0.7 if name == "slow" else 0.08
            case "clear":
                call.client.clear_audio()
            case "message":
                call.client.add_message("user", "hello")
            case "lost":
                call.line_lost(300)
            case "back" | "moved":
                if name == "moved":
                    call.play_on(Player())
                call.line_back()
        return None

    return act


def one_voice(scene: Scene) -> None:
    """A reply begins after the one before it is done, and its frames lie in between."""
    begun: dict[ReplyId, float] = {}
    done: dict[ReplyId, float] = {}
    for at, event in scene.events:
        if isinstance(event, ReplyStarted):
            assert begun.keys() == done.keys(), "two replies have the floor"
            begun[event.reply] = at
        elif isinstance(event, ReplyDone):
            assert event.reply in begun
            assert event.reply not in done, "a reply ends once"
            done[event.reply] = at
    for at, tick in scene.frames:
        if tick.reply is not None and tick.pcm.any():
            assert begun[tick.reply] <= at
            ended = done.get(tick.reply)
            assert ended is None or at <= ended + FRAME_MS / 1000, "stale sound"


def no_silent_end(scene: Scene, *, faults: bool) -> None:
    """Every committed turn is accounted for: answered, cut, told of, or empty."""
    traces = [e.trace for e in scene.of(TurnTraced)]
    ended = {trace.turn.index for trace in traces}
    committed = {e.turn.index for e in scene.of(TurnCommitted)}
    assert committed <= ended
    outcomes = {trace.outcome.partition(":")[0] for trace in traces}
    told = {"spoken", "recovery", "no_input", "interrupted", "cancelled"}
    assert outcomes <= (told | {"failed"} if faults else told)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*SOUNDS, *SOUNDS, *CONTROLS]), min_size=1, max_size=14),
    st.sampled_from([0.05, 0.4, 1.3]),
    st.sampled_from(["", "Hello there friend."]),
)
@example(script=["#", "question", "clear"], first_s=0.4, greeting="")
@example(script=["#", "question", "mute", "clear"], first_s=1.3, greeting="Hello there friend.")
@example(script=["hello", "mute", "hello", "#"], first_s=0.4, greeting="Hello there friend.")
@example(script=["respond", "slow", "noise", "hello", "hello"], first_s=0.05, greeting="")
def test_any_order_of_events_ends_in_listening(
    script: list[str], first_s: float, greeting: str
) -> None:
    scene = Scene(LONG, greeting=greeting, limits={"idle_s": 600.0})
    scene.thinker.first_s = first_s
    resting: list[bool] = []
    repair = [control(scene, c) for c in ("back", "unmute", "unguard", "hears", "thinks", "quick")]
    parts: list[Part] = [SOUNDS[n] if n in SOUNDS else control(scene, n) for n in script]
    scene.play(
        *parts,
        *repair,
        silence(14_000),
        lambda call: resting.append(call.idle),
        lambda _: resting.append(scene.thinker.running == 0),
        say("what is the time"),
        tail_ms=8_000,
    )
    assert resting == [True, True]
    one_voice(scene)
    no_silent_end(scene, faults="dumb" in script or "deaf" in script)
    last = scene.of(ReplyDone)[-1]
    assert (last.status, last.text) == (ReplyStatus.COMPLETED, LONG), "it listens and answers"
    assert scene.of(TurnCommitted)[-1].text.endswith("what is the time")


# ---------------------------------------------------------------- barge-in, keys, guards


def interrupted(scene: Scene) -> list[ReplyDone]:
    return [e for e in scene.of(ReplyDone) if e.status is ReplyStatus.INTERRUPTED]


def test_a_stop_word_alone_cuts_at_the_first_transcript_and_another_word_waits() -> None:
    waits = {}
    for text in ("stop", "what"):
        scene = Scene(LONG, barge_in={"stop_words": ["now"]})
        scene.play(silence(300), say("hello"), silence(1900), say(text), cough(250))
        cut = next(e.trace for e in scene.of(TurnTraced) if e.trace.interrupted)
        (why,) = [d.why for d in cut.decisions if d.what == "interrupt"]
        waits[text] = (why["complete"], str(why["why"]).split(",")[0])
    assert waits == {"stop": (False, "stop_word"), "what": (True, "words")}


def test_reasons_tell_no_word_of_what_was_said() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1900), say("stop please"))
    for event in scene.of(TurnTraced):
        for decision in event.trace.decisions:
            assert "please" not in str(decision)


def test_an_agent_may_add_acknowledgements_and_stop_words() -> None:
    scene = Scene(LONG, barge_in={"acknowledgements": ["weather"]})
    scene.play(silence(300), say("hello"), silence(1900), say("weather"), tail_ms=6000)
    assert interrupted(scene) == []
    scene = Scene(LONG, barge_in={"stop_words": ["weather"], "speaking_words": 9})
    scene.play(silence(300), say("hello"), silence(1900), say("weather please"), cough(900))
    assert len(interrupted(scene)) == 1


def test_without_ducking_the_voice_is_silent_at_once() -> None:
    scene = Scene(LONG, barge_in={"duck_db": 0.0})
    scene.play(silence(300), say("hello"), silence(1900), cough(250), tail_ms=6000)
    low = [tick for _, tick in scene.frames if tick.audible and tick.pcm.max() < 1500]
    assert low == []
    (done,) = scene.of(ReplyDone)
    assert done.heard == LONG


def test_a_long_hold_goes_on_at_the_start_of_the_word_heard_once_in_the_history() -> None:
    scene = Scene(LONG, barge_in={"hold_ms": 320})
    scene.recognizer.delay_s = 0.9  # no verdict before the hold is silent for long
    scene.play(silence(300), say("hello"), silence(3500), cough(600), tail_ms=9000)
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, LONG)
    offsets = [tick.offset for _, tick in scene.frames if tick.audible]
    back = [(a, b) for a, b in pairwise(offsets) if b < a]
    assert len(back) == 1
    word = 4800  # 200 ms of the fake voice
    assert back[0][1] % word == 0
    assert 0 < back[0][0] - back[0][1] <= word
    assert scene.history == [("user", "hello"), ("assistant", LONG)]


def test_no_hold_without_a_verdict_outlasts_its_limit() -> None:
    scene = Scene(LONG)
    scene.recognizer.delay_s = 2.5
    scene.play(silence(300), say("hello"), silence(3700), cough(2200), tail_ms=9000)
    reply = scene.of(ReplyDone)[0].reply
    longest = run = 0
    for _, tick in scene.frames:
        run = run + 1 if tick.reply == reply and tick.offset and not tick.audible else 0
        longest = max(longest, run)
    assert 0 < longest * FRAME_MS <= 1200


def test_a_caller_who_goes_on_under_a_requested_reply_is_announced_once() -> None:
    scene = Scene(LONG).play(
        silence(300),
        say("what is"),
        lambda call: call.client.respond(),
        say("the time"),
        tail_ms=6000,
    )
    assert len(scene.of(SpeechStarted)) == len(scene.of(TurnCommitted)) == 1


def test_words_over_an_uninterruptible_reply_are_answered_after_it() -> None:
    scene = Scene(LONG)

    def guard(call: Call) -> None:
        call.client.interruptible = False

    scene.play(guard, silence(300), say("hello"), silence(1900), say("stop please"), tail_ms=9000)
    assert interrupted(scene) == []
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello", "stop please"]
    assert scene.history[:3] == [("user", "hello"), ("assistant", LONG), ("user", "stop please")]
    assert len(scene.of(SpeechStarted)) == 2


@pytest.mark.parametrize("guard_ms", [0, 1500])
def test_the_greeting_is_guarded_at_its_beginning_only(guard_ms: int) -> None:
    scene = Scene("Fine.", greeting=LONG, barge_in={"greeting_guard_ms": guard_ms})
    scene.play(silence(400), say("hello"), silence(1000), tail_ms=9000)
    assert len(interrupted(scene)) == (0 if guard_ms else 1)
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello"]
    scene = Scene("Fine.", greeting=LONG, barge_in={"greeting_guard_ms": guard_ms})
    scene.play(silence(2200), say("stop please"), tail_ms=6000)
    assert len(interrupted(scene)) == 1


def test_keys_cut_the_reply_and_are_a_message() -> None:
    pressed: list[float] = []
    scene = Scene(LONG)

    def press(key: str) -> Callable[[Call], object]:
        def act(call: Call) -> None:
            pressed.append(scene.loop.now())
            call.press(key)

        return act

    scene.play(
        silence(300), say("hello"), silence(1900), press("1"), silence(400), press("2"),
        silence(3000), tail_ms=6000,
    )  # fmt: skip
    (cut,) = interrupted(scene)
    late = [t for t, tick in scene.frames if tick.reply == cut.reply and t > pressed[0] + 0.02]
    assert late == []
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello", "I pressed 1 2."]
    assert scene.of(ReplyDone)[-1].status is ReplyStatus.COMPLETED
    assert len(scene.of(SpeechStarted)) == 1, "a key is no speech"


def test_the_last_key_ends_the_keys_at_once() -> None:
    scene = Scene("Fine.")
    scene.play(silence(300), lambda c: c.press("7"), lambda c: c.press("#"), tail_ms=1500)
    assert [e.text for e in scene.of(TurnCommitted)] == ["I pressed 7 #."]
    assert len(scene.of(ReplyDone)) == 1


def test_yes_is_an_answer_while_we_think_and_an_acknowledgement_while_we_speak() -> None:
    from voice_agent.barge_in import BargeIn, Evidence, judge
    from voice_agent.turn_records import Speech

    for sounded, verdict in ((False, Speech.WORDS), (True, Speech.BACKCHANNEL)):
        evidence = Evidence("Yes.", True, True, sounded, 300)
        assert judge(evidence, BargeIn()).speech is verdict
