"""One call, wired, in virtual time with scripted stages: what is heard is what is remembered."""

from __future__ import annotations

import pytest

from tests.support.fakes import Scene, cough, say, silence
from voice_agent.agent import Call
from voice_agent.events import (
    CallFault,
    EndReason,
    ReplyDone,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
    TurnTraced,
    WordsHeard,
)
from voice_agent.trace import Mark
from voice_agent.types import FRAME_MS

pytestmark = pytest.mark.unit

LONG = "one two three four five six seven eight nine ten, eleven twelve thirteen fourteen."


def test_a_turn_is_heard_answered_and_remembered() -> None:
    scene = Scene("It is noon.").play(silence(500), say("what is the time"))
    assert [e.text for e in scene.of(TurnCommitted)] == ["what is the time"]
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.text, done.heard) == (
        ReplyStatus.COMPLETED, "It is noon.", "It is noon.",
    )  # fmt: skip
    assert scene.history == [("user", "what is the time"), ("assistant", "It is noon.")]
    (traced,) = scene.of(TurnTraced)
    order = [Mark.SPEECH_END, Mark.PAUSE, Mark.TRANSCRIPT, Mark.COMMIT, Mark.FIRST_SOUND]
    times = [traced.trace.marks[m] for m in order]
    assert times == sorted(times)
    assert scene.reason is EndReason.CALLER_HUNG_UP
    assert scene.thinker.running == 0
    assert scene.call is not None
    assert scene.thinker.forgotten == [scene.call.id], "the call's cache is freed at hang-up"


def test_the_prompt_of_the_next_turn_starts_with_the_prompt_of_this_one() -> None:
    scene = Scene("Sure.").play(
        silence(300), say("hello"), silence(3000), say("what is the time"), silence(2000)
    )
    first, *_, last = scene.thinker.prompts
    assert last.startswith(first + "Sure.|"), "append-only: the cached prefix stays valid"


def test_the_greeting_is_played_and_enters_the_history() -> None:
    scene = Scene("Sure.", greeting="Hello there.").play(silence(1500), tail_ms=500)
    start = scene.frames[0][0]
    first = next(t for t, tick in scene.frames if tick.audible)
    assert first - start <= 1.0
    assert scene.history == [("assistant", "Hello there.")]


def test_barge_in_stops_within_a_frame_and_keeps_exactly_what_was_heard() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1800), say("stop please"))
    decided = next(
        t for t, e in scene.events if isinstance(e, ReplyDone) and e.status == "interrupted"
    )
    reply = scene.of(ReplyDone)[0].reply
    late = [t for t, tick in scene.frames if tick.reply == reply and t > decided + FRAME_MS / 1000]
    assert late == [], "no frame of the old reply leaves later than one frame after the decision"
    done = scene.of(ReplyDone)[0]
    heard = done.heard
    assert heard
    assert LONG.startswith(heard)
    assert len(heard) < len(LONG)
    words_played = sum(tick.audible for _, tick in scene.frames if tick.reply == reply) * FRAME_MS
    assert abs(len(heard.split()) - words_played / 200) <= 1
    assert ("assistant", heard) in scene.history
    assert scene.of(TurnCommitted)[-1].text == "stop please"
    assert scene.thinker.running == 0


def test_our_voice_is_lowered_from_the_onset_not_from_the_decision() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1800), say("stop please"))
    onset = scene.of(SpeechStarted)[-1].onset_ms / 1000
    start = scene.frames[0][0] - FRAME_MS / 1000
    reply = scene.of(ReplyDone)[0].reply
    loud = [t for t, tick in scene.frames if tick.reply == reply and tick.pcm.max() > 2000]
    assert loud[-1] - (start + onset) <= 0.15
    cut = next(e.trace for e in scene.of(TurnTraced) if e.trace.interrupted)
    decided = cut.marks[Mark.BARGE_IN_DECIDED]
    assert loud[-1] < decided
    assert cut.marks[Mark.LAST_FRAME] <= decided + FRAME_MS / 1000


def test_speech_that_goes_on_is_held_before_it_is_decided() -> None:
    scene = Scene(LONG)
    scene.recognizer.delay_s = 0.5
    scene.play(silence(300), say("hello"), silence(2000), say("what is the time"))
    reply = scene.of(ReplyDone)[0].reply
    cut = next(e.trace for e in scene.of(TurnTraced) if e.trace.interrupted)
    held = [d.what for d in cut.decisions if d.cause in ("onset", "lasted", "heard")]
    assert held[-3:] == ["hold", "interrupt", "think_early"] or "hold" in held
    assert cut.marks[Mark.LAST_FRAME] < cut.marks[Mark.BARGE_IN_DECIDED] - 0.1
    assert scene.of(ReplyDone)[0].reply == reply


def test_a_cough_holds_and_resumes_and_nothing_is_lost() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1500), cough(300), tail_ms=6000)
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, LONG)
    assert len(scene.of(SpeechStarted)) == 1, "a cough is not announced as an interruption"
    low = [tick for _, tick in scene.frames if tick.audible and tick.pcm.max() < 1000]
    assert low, "the voice was lowered while the cough was judged"
    assert not any(tick.reply == done.reply and not tick.audible for _, tick in scene.frames[150:])


def test_mm_hm_does_not_stop_us_and_is_not_a_turn() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1500), say("mm-hm"), tail_ms=6000)
    (done,) = scene.of(ReplyDone)
    assert done.heard == LONG
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello"]


def test_going_on_before_a_word_was_heard_reopens_the_message() -> None:
    scene = Scene("Fine.")
    scene.thinker.first_s = 1.2  # a slow model: the caller goes on first
    scene.play(silence(300), say("tell me"), silence(1100), say("more please"))
    assert len(scene.of(TurnReopened)) == 1
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me", "tell me more please"]
    assert scene.history == [("user", "tell me more please"), ("assistant", "Fine.")]
    turns = [e.turn for e in scene.of(TurnCommitted)]
    assert turns[0].index == turns[1].index
    assert turns[1].revision > turns[0].revision


def test_going_on_after_words_were_heard_keeps_three_messages() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), silence(1250), say("tell me more"))
    roles = [role for role, _ in scene.history]
    assert roles[:3] == ["user", "assistant", "user"]
    assert scene.history[0] == ("user", "hello")
    assert scene.history[2][1] == "tell me more"


def test_speech_without_words_is_no_input_and_recovers_once() -> None:
    scene = Scene("Fine.").play(silence(300), cough(900), silence(4000), cough(900), tail_ms=4000)
    assert [e.text for e in scene.of(TurnCommitted)] == ["", ""]
    spoken = [e.text for e in scene.of(ReplyDone)]
    assert len(spoken) == 1, "a recovery is spoken at most once in ten seconds"
    assert "again" in spoken[0]


def test_a_short_cough_gets_no_recovery() -> None:
    scene = Scene("Fine.").play(silence(300), cough(200))
    assert scene.of(ReplyDone) == []


def test_a_failing_model_is_told_and_followed_by_a_recovery() -> None:
    scene = Scene("Fine.")
    scene.thinker.fail = True
    scene.play(silence(300), say("hello"), tail_ms=5000)
    assert "VA331" in [f.code for f in scene.of(CallFault)]
    assert any(e.status is ReplyStatus.COMPLETED for e in scene.of(ReplyDone))
    assert scene.reason is EndReason.CALLER_HUNG_UP


def test_a_failing_recogniser_ends_the_turn_as_no_input() -> None:
    scene = Scene("Fine.")
    scene.recognizer.fail = True
    scene.play(silence(300), say("hello"), tail_ms=5000)
    assert "VA311" in [f.code for f in scene.of(CallFault)]
    assert scene.of(TurnCommitted)[0].text == ""


@pytest.mark.parametrize("reply", ["...", "🙂 🙂", "—", ""])
def test_a_reply_with_nothing_to_say_becomes_a_recovery(reply: str) -> None:
    scene = Scene(reply).play(silence(300), say("hello"), tail_ms=5000)
    said = [e.text for e in scene.of(ReplyDone) if e.status is ReplyStatus.COMPLETED]
    assert len(said) == 1
    assert "again" in said[0]


def test_ten_minutes_of_silence_end_in_the_goodbye() -> None:
    scene = Scene("Fine.", goodbye="Bye now.", limits={"idle_s": 60.0})
    scene.play(silence(600_000))
    assert scene.reason is EndReason.IDLE_TIMEOUT
    assert scene.history[-1] == ("assistant", "Bye now.")


def test_a_stopped_sender_does_not_leave_the_turn_open() -> None:
    scene = Scene("Fine.")

    async def freeze() -> None:
        import asyncio

        await scene.stack.start()
        call = scene.stack.open_call(None, scene.on_event)
        life = asyncio.create_task(call.run())
        from voice_agent.types import Frame

        sound = say("hello what is")
        for i in range(0, len(sound) - 320, 320):
            await asyncio.sleep(0.02)
            call.hear(Frame(sound[i : i + 320]))
        for _ in range(400):
            await asyncio.sleep(0.02)
            call.tick()
        call.hang_up(EndReason.CALLER_HUNG_UP)
        await life

    from tests.support.virtual_loop import run_virtual

    run_virtual(freeze(), scene.loop)
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello what is"]


def test_words_heard_never_run_ahead_of_the_sound() -> None:
    scene = Scene(LONG).play(silence(300), say("hello"), tail_ms=6000)
    chars = [e.chars for e in scene.of(WordsHeard)]
    assert chars == sorted(chars)
    assert chars[-1] <= len(LONG)
    assert len(chars) >= 10, "words are reported one by one"


@pytest.mark.parametrize("spoken_on", ["", "stop please"])
def test_muting_in_the_middle_of_a_sentence_answers_what_was_said(spoken_on: str) -> None:
    parts = [] if not spoken_on else [say(spoken_on)]
    scene = Scene("Fine.").play(
        silence(300), say("what is the time and"), lambda call: call.client.mute(True), *parts
    )
    assert [e.text for e in scene.of(TurnCommitted)] == ["what is the time and"]
    assert scene.history == [("user", "what is the time and"), ("assistant", "Fine.")]
    (traced,) = scene.of(TurnTraced)
    marks = traced.trace.marks
    assert marks[Mark.COMMIT] - marks[Mark.SPEECH_END] <= 0.2, "no silence is waited for"


def test_talking_on_after_a_short_mute_belongs_to_the_same_turn() -> None:
    scene = Scene("Fine.")
    scene.thinker.first_s = 1.2
    scene.play(
        silence(300), say("tell me"), lambda call: call.client.mute(True), silence(500),
        lambda call: call.client.mute(False), say("more please"),
    )  # fmt: skip
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me", "tell me more please"]
    assert scene.history == [("user", "tell me more please"), ("assistant", "Fine.")]


def test_a_client_that_ends_turns_itself_may_mute_before_it_does() -> None:
    scene = Scene("Fine.").play(
        lambda call: call.client.use_manual_turns(True),
        silence(300), say("hello"), lambda call: call.client.mute(True), say("stop"), silence(100),
        lambda call: call.client.commit_audio(), lambda call: call.client.respond(),
    )  # fmt: skip
    assert [e.text for e in scene.of(TurnCommitted)] == ["hello"]
    assert scene.of(ReplyDone)[0].heard == "Fine."


def test_manual_turns_wait_for_commit_and_respond() -> None:
    scene = Scene("It is noon.").play(
        lambda call: call.client.use_manual_turns(True),
        silence(200),
        say("what is the time"),
        silence(1500),
        lambda call: call.client.commit_audio(),
        lambda call: call.client.respond(),
        tail_ms=3000,
    )
    assert [e.text for e in scene.of(TurnCommitted)] == ["what is the time"]
    assert [e.heard for e in scene.of(ReplyDone)] == ["It is noon."]


def test_typed_messages_are_answered() -> None:
    scene = Scene("It is noon.").play(
        silence(100),
        lambda call: call.client.add_message("user", "what time is it?"),
        lambda call: call.client.respond(),
        tail_ms=2500,
    )
    assert scene.history == [("user", "what time is it?"), ("assistant", "It is noon.")]


def test_client_truncate_cuts_the_history_further() -> None:
    scene = Scene(LONG)
    scene.play(
        silence(300),
        say("hello"),
        silence(1800),
        say("stop please"),
        silence(100),
        lambda call: call.client.truncate(scene.of(ReplyDone)[0].reply, 500),
    )
    spoken = next(text for role, text in scene.history if role == "assistant")
    assert spoken == "one two"


def test_early_work_is_used_and_never_answers_twice() -> None:
    scene = Scene("It is noon.").play(silence(300), say("what is the time"))
    (traced,) = scene.of(TurnTraced)
    marks = traced.trace.marks
    assert marks[Mark.LLM_SUBMIT] < marks[Mark.COMMIT]
    assert len(scene.of(ReplyDone)) == 1
    assert traced.trace.wasted_tokens == 0


def test_a_pause_inside_a_turn_makes_one_turn() -> None:
    scene = Scene("Fine.").play(
        silence(300), say("tell me"), silence(200), say("more"), tail_ms=3000
    )
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me more"]
    assert len(scene.of(SpeechStarted)) == len(scene.of(SpeechStopped)) == 1


EAGER = {"min_silence_ms": 200, "max_silence_ms": 200, "prepare_ms": 700}


def test_the_end_is_decided_when_there_is_something_to_say() -> None:
    scene = Scene("It is noon.", turn_taking=EAGER).play(silence(300), say("what is the time"))
    (traced,) = scene.of(TurnTraced)
    marks = traced.trace.marks
    assert marks[Mark.COMMIT] - marks[Mark.SPEECH_END] > 0.3, "silence alone would do after 200 ms"
    assert marks[Mark.COMMIT] == marks[Mark.TTS_FIRST_AUDIO]
    assert marks[Mark.FIRST_SOUND] - marks[Mark.COMMIT] <= FRAME_MS / 1000


def test_a_caller_who_goes_on_before_our_sound_is_ready_was_never_cut() -> None:
    scene = Scene("Fine.", turn_taking=EAGER)
    scene.thinker.first_s = 0.5
    scene.play(silence(300), say("tell me"), silence(450), say("more"), tail_ms=3000)
    assert scene.of(TurnReopened) == []
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me more"]


def test_slow_recognition_keeps_the_turn_open_too() -> None:
    scene = Scene("Fine.", turn_taking=EAGER)
    scene.recognizer.delay_s = 0.3
    scene.play(silence(300), say("tell me"), silence(420), say("more"), tail_ms=3000)
    assert scene.of(TurnReopened) == []
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me more"]


def listen_only(call: Call) -> None:
    call.client.auto_response = False


def test_without_an_answer_of_ours_silence_alone_ends_the_turn() -> None:
    scene = Scene("Fine.", turn_taking=EAGER)
    scene.play(listen_only, silence(300), say("tell me"), tail_ms=2000)
    marks = scene.of(TurnTraced)[0].trace.marks
    assert marks[Mark.COMMIT] - marks[Mark.SPEECH_END] < 0.3


def test_a_slow_answer_keeps_the_turn_open_no_longer_than_it_may() -> None:
    scene = Scene("Fine.", turn_taking=EAGER)
    scene.thinker.first_s = 2.0
    scene.play(silence(300), say("tell me"), tail_ms=5000)
    (traced,) = scene.of(TurnTraced)
    marks = traced.trace.marks
    assert 0.68 <= marks[Mark.COMMIT] - marks[Mark.SPEECH_END] <= 0.8


def test_an_answer_that_fails_early_keeps_the_turn_open_no_longer() -> None:
    scene = Scene("Fine.", turn_taking=EAGER)
    scene.thinker.fail = True
    scene.play(silence(300), say("tell me"), tail_ms=5000)
    marks = scene.of(TurnTraced)[0].trace.marks
    assert marks[Mark.COMMIT] - marks[Mark.SPEECH_END] < 0.5


def test_a_reopened_turn_leaves_no_trace_of_its_candidate() -> None:
    scene = Scene("Fine.", turn_taking={"continuation_ms": 6000})
    scene.thinker.first_s = 4.0
    scene.play(
        silence(300), say("tell me"), silence(900), cough(100), silence(1500), say("more please"),
        silence(7000), say("hello"), silence(7000), say("what"), tail_ms=7000,
    )  # fmt: skip
    assert len(scene.of(TurnReopened)) == 1
    traces = [e.trace for e in scene.of(TurnTraced)]
    assert [t.transcript for t in traces] == ["tell me more please", "hello", "what"]
    for trace in traces[1:]:
        spoken_s = trace.marks[Mark.SPEECH_END] - trace.marks[Mark.SPEECH_START]
        assert spoken_s < 1.0, "the onset is this turn's own"
