"""Our own words heard again are not the caller's; the caller's are never ours."""

from __future__ import annotations

import pytest

from tests.support.clips import transcripts
from tests.support.fakes import Scene, say, silence
from voice_agent.barge_in import BargeIn, Evidence, judge
from voice_agent.events import Partial, ReplyDone, ReplyStatus, TurnCommitted, TurnTraced
from voice_agent.own_words import Echo, Own, OwnWords, own
from voice_agent.turn_records import Speech

pytestmark = pytest.mark.unit

SAID = "Good morning, this is the front desk. That makes $25 for two nights, until Tuesday."


@pytest.mark.parametrize(
    "heard",
    [
        "Good morning, this is the",
        "this is the front desk that makes",
        "twenty five dollars for two nights",
        "$25 for two nights.",
        "good mourning this is the front test",
        "the front desk. That ma",
    ],
)
def test_what_we_say_is_recognised(heard):
    assert own(heard, SAID, Echo.UNKNOWN) is Own.YES
    assert own(heard, SAID, Echo.FOUND) is Own.YES


@pytest.mark.parametrize("echo", list(Echo))
@pytest.mark.parametrize(
    "heard",
    [
        "wait, that is too much",
        "good morning, I would like to cancel my room please",
        "no",
        "stop",
        "two nights is not what I asked for",
        "",
        "...",
    ],
)
def test_what_the_caller_says_is_the_callers(heard, echo):
    assert own(heard, SAID, echo) is not Own.YES


@pytest.mark.parametrize("heard", list(transcripts().values()))
def test_no_recorded_caller_sounds_like_us(heard):
    assert own(heard, SAID, Echo.FOUND) is Own.NO


def test_a_word_or_two_of_ours_are_an_answer_unless_there_is_an_echo():
    assert own("Tuesday", SAID, Echo.UNKNOWN) is Own.PERHAPS
    assert own("until Tuesday", SAID, Echo.UNKNOWN) is Own.PERHAPS
    assert own("until Tuesday", SAID, Echo.FOUND) is Own.YES
    assert own("Tuesday", SAID, Echo.FOUND) is Own.YES


def test_a_line_without_echo_is_believed():
    assert own("Good morning, this is the front desk", SAID, Echo.NONE) is Own.NO


def test_only_what_was_said_meanwhile_counts():
    own = OwnWords()
    own.add(1.0, "Good morning,", " this is the front desk")
    own.add(1.5, " this is", " the front desk")
    assert own.since(0.0) == "Good morning, this is the front"
    assert own.since(1.2) == " this is the front"
    assert own.since(2.0) == ""


STORY = "what is the weather today " * 8
OURS = say("is the weather today what is the")


def test_our_echo_stops_nothing_and_is_not_answered():
    scene = Scene(STORY)
    scene.play(silence(300), say("tell me more please"), silence(2500), OURS, tail_ms=9000)
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me more please"]
    assert [e.status for e in scene.of(ReplyDone)] == [ReplyStatus.COMPLETED]
    assert scene.stack.own_speech_passes > 0
    assert not any("weather" in e.confirmed + e.tail for e in scene.of(Partial))


def test_the_last_words_coming_back_after_the_end_are_not_answered():
    asked = (silence(300), say("tell me more please"))
    before = Scene("hello now what is the weather today").play(*asked)
    (over_s,) = [at for at, e in before.events if isinstance(e, ReplyDone)]
    since_ms = round((over_s - before.frames[0][0]) * 1000) + 200 - sum(map(len, asked)) // 16
    scene = Scene("hello now what is the weather today", limits={"idle_s": 60})
    scene.play(*asked, silence(since_ms), say("what is the weather today"))
    assert [e.text for e in scene.of(TurnCommitted)][:1] == ["tell me more please"]
    assert not any("weather" in e.text for e in scene.of(TurnCommitted))
    assert len(scene.of(ReplyDone)) == 1, "no recovery is spoken either"
    assert scene.stack.own_speech_passes > 0


def test_a_caller_who_says_something_else_still_cuts_in():
    scene = Scene(STORY)
    scene.play(
        silence(300), say("tell me more please"), silence(2500), say("hello tell me the time now")
    )
    assert ReplyStatus.INTERRUPTED in [e.status for e in scene.of(ReplyDone)]
    assert scene.stack.own_speech_passes == 0


def test_the_trace_says_what_is_known_of_the_line():
    scene = Scene("it is four")
    note = "auto: found 140 ms, -6 dB after 1300 ms"
    scene.play(lambda call: call.tell_echo(Echo.FOUND, note), silence(300), say("what is the time"))
    assert [e.trace.echo for e in scene.of(TurnTraced)] == [note]


@pytest.mark.parametrize(
    ("text", "complete", "ours", "speech"),
    [
        ("this is the front desk", False, Own.YES, Speech.NOTHING),
        ("wait for the front desk", True, Own.YES, Speech.NOTHING),
        ("until Tuesday", False, Own.PERHAPS, Speech.UNSURE),
        ("until Tuesday", True, Own.PERHAPS, Speech.WORDS),
        ("stop", False, Own.PERHAPS, Speech.WORDS),
        ("until Tuesday", False, Own.NO, Speech.WORDS),
    ],
)
def test_a_judgement_weighs_whose_words_they_are(text, complete, ours, speech):
    evidence = Evidence(text, complete, over_us=True, sounded=True, voice_ms=500, ours=ours)
    assert judge(evidence, BargeIn()).speech is speech
