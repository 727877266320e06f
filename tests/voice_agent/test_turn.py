"""The turn machine: examples of every rule, then any sequence of events at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice_agent import turn as tm
from voice_agent.turn import Caller, Floor, Speech, TurnState, step
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit


def fresh() -> TurnState:
    return TurnState(TurnId("c", -1))


def run(state: TurnState, *events: tm.Event) -> tuple[TurnState, list[tm.Effect]]:
    effects: list[tm.Effect] = []
    for event in events:
        state, more = step(state, event)
        effects += more
    return state, effects


def words(state: TurnState, text: str = "hello there", complete: bool = True) -> tm.Heard:
    return tm.Heard(state.turn, text, Speech.WORDS, complete)


def nothing(state: TurnState, complete: bool = True) -> tm.Heard:
    return tm.Heard(state.turn, "", Speech.NOTHING, complete)


def committed() -> TurnState:
    s, _ = run(fresh(), tm.Onset(0), tm.Pause(900))
    s, _ = run(s, words(s), tm.Ended(900))
    assert s.floor is Floor.THINKING
    return s


def speaking() -> TurnState:
    s, _ = run(committed(), tm.FirstSound())
    assert s.floor is Floor.SPEAKING
    return s


def kinds(effects: list[tm.Effect]) -> list[str]:
    return [type(e).__name__ for e in effects]


def test_plain_turn_commits_once_with_the_text_of_the_pause() -> None:
    s, effects = run(fresh(), tm.Onset(100), tm.Pause(900))
    assert kinds(effects) == ["Listen", "Transcribe"]
    s, effects = run(s, words(s), tm.Ended(900))
    assert kinds(effects) == ["ThinkEarly", "Commit"]
    assert effects[-1] == tm.Commit(TurnId("c", 0), "hello there", 900)
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.THINKING)
    s, effects = run(s, tm.FirstSound(), tm.ReplyOver())
    assert (s.floor, effects) == (Floor.IDLE, [])


def test_commit_waits_for_the_transcript() -> None:
    s, effects = run(fresh(), tm.Onset(0), tm.Pause(900), tm.Ended(900))
    assert "Commit" not in kinds(effects)
    s, effects = run(s, words(s))
    assert kinds(effects) == ["Commit"]


def test_resuming_before_commit_is_a_revision_and_voids_the_old_transcript() -> None:
    s, _ = run(fresh(), tm.Onset(0), tm.Pause(900))
    old = words(s)
    s, effects = run(s, old, tm.Resumed())
    assert kinds(effects) == ["ThinkEarly", "Revise"]
    assert s.turn == TurnId("c", 0, 1)
    s, effects = run(s, old, tm.Pause(2000), old, tm.Ended(2000))
    assert kinds(effects) == ["Transcribe"], "a stale transcript must not commit"
    s, effects = run(s, words(s, "hello there friend"))
    assert effects == [tm.Commit(TurnId("c", 0, 1), "hello there friend", 2000)]


def test_speech_after_the_end_but_before_its_transcript_goes_on_with_the_turn() -> None:
    s, effects = run(fresh(), tm.Onset(0), tm.Pause(900), tm.Ended(900), tm.Onset(1500))
    assert kinds(effects) == ["Listen", "Transcribe", "Revise"]
    assert s.caller is Caller.SPEAKING


def test_onset_while_we_speak_holds_and_words_interrupt() -> None:
    s, effects = run(speaking(), tm.Onset(5000))
    assert kinds(effects) == ["Listen", "Hold"]
    assert s.floor is Floor.HELD
    s, effects = run(s, words(s, "wait", complete=False))
    assert effects == [tm.Interrupt(TurnId("c", 1), 5000)]
    assert s.floor is Floor.IDLE
    s, effects = run(s, tm.Pause(6000))
    s, effects = run(s, words(s, "wait please"), tm.Ended(6000))
    assert kinds(effects) == ["ThinkEarly", "Commit"]


@pytest.mark.parametrize("speech", [Speech.NOTHING, Speech.BACKCHANNEL])
def test_a_cough_or_mm_hm_gives_the_floor_back_and_is_forgotten(speech: Speech) -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.Heard(s.turn, "mm-hm", speech, False))
    assert kinds(effects) == ["Resume"]
    assert s.floor is Floor.SPEAKING
    s, effects = run(s, tm.Pause(5400))
    s, effects = run(s, tm.Heard(s.turn, "mm-hm", speech, True), tm.Ended(5400))
    assert kinds(effects) == ["Dismiss"]
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.SPEAKING)


def test_backchannel_that_turns_into_words_interrupts() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.Heard(s.turn, "yeah", Speech.BACKCHANNEL, False))
    assert kinds(effects) == ["Resume"]
    s, effects = run(s, words(s, "yeah but stop", complete=False))
    assert kinds(effects) == ["Interrupt"]


def test_a_dismissed_pause_that_goes_on_is_held_and_judged_again() -> None:
    s, _ = run(speaking(), tm.Onset(5000), tm.Pause(5400))
    s, effects = run(s, nothing(s))
    assert kinds(effects) == ["Resume"]
    s, effects = run(s, tm.Resumed())
    assert kinds(effects) == ["Revise", "Hold"]
    assert s.floor is Floor.HELD


def test_words_soon_after_commit_reopen_the_same_turn() -> None:
    s = committed()
    s, effects = run(s, tm.Onset(1800))
    assert kinds(effects) == ["Listen", "Hold"]
    s, effects = run(s, words(s, "and one more thing", complete=False))
    assert effects == [tm.Reopen(TurnId("c", 0), TurnId("c", 0, 1), 1800)]
    assert (s.caller, s.floor, s.turn) == (Caller.SPEAKING, Floor.IDLE, TurnId("c", 0, 1))


def test_reopening_in_a_pause_asks_for_the_transcript_again() -> None:
    s, _ = run(committed(), tm.Onset(1800), tm.Pause(2300))
    s, effects = run(s, words(s, "and more", complete=False))
    assert kinds(effects) == ["Reopen", "Transcribe"]


def test_words_long_after_commit_are_a_new_turn() -> None:
    s, _ = run(committed(), tm.Onset(900 + 1501))
    s, effects = run(s, words(s, "no wait", complete=False))
    assert kinds(effects) == ["Interrupt"]
    assert s.turn == TurnId("c", 1)


def test_speech_without_words_is_no_input() -> None:
    s, _ = run(fresh(), tm.Onset(1000), tm.Pause(1700))
    s, effects = run(s, nothing(s), tm.Ended(1700))
    assert effects == [tm.NoInput(TurnId("c", 0), 700)]
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.IDLE)


def test_a_candidate_outlives_the_reply_as_an_ordinary_turn() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.ReplyOver())
    assert kinds(effects) == ["Interrupt"]
    s, _ = run(s, tm.Pause(5600))
    s, effects = run(s, tm.Heard(s.turn, "okay", Speech.BACKCHANNEL, True), tm.Ended(5600))
    assert kinds(effects) == ["ThinkEarly", "Commit"], "okay to nobody's speech is an answer"


def test_uninterruptible_and_draining_ignore_the_caller() -> None:
    for floor in (Floor.UNINTERRUPTIBLE, Floor.DRAINING):
        s, _ = run(fresh(), tm.ReplyBegins(floor))
        after, effects = run(s, tm.Onset(100), tm.Pause(900), tm.Ended(900))
        assert effects == []
        assert after == s


def test_mute_drops_what_was_being_said_and_frees_a_hold() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.Mute(True))
    assert kinds(effects) == ["Dismiss", "Resume"]
    assert (s.caller, s.floor) == (Caller.MUTED, Floor.SPEAKING)
    s, _ = run(s, tm.Onset(6000), tm.Mute(False))
    assert s.caller is Caller.SILENT


def test_a_reply_requested_while_the_caller_speaks_is_held() -> None:
    s, _ = run(fresh(), tm.Onset(0))
    s, effects = run(s, tm.ReplyBegins())
    assert kinds(effects) == ["Hold"]
    assert s.floor is Floor.HELD


_EVENTS = st.sampled_from(
    [
        "onset",
        "pause",
        "resumed",
        "ended",
        "words",
        "mm-hm",
        "nothing",
        "partial",
        "stale",
        "begin",
        "drain",
        "sound",
        "over",
        "mute",
        "unmute",
    ]
)


def _event(name: str, s: TurnState, ms: int) -> tm.Event:
    match name:
        case "onset":
            return tm.Onset(ms)
        case "pause":
            return tm.Pause(ms)
        case "resumed":
            return tm.Resumed()
        case "ended":
            return tm.Ended(ms)
        case "words":
            return words(s)
        case "mm-hm":
            return tm.Heard(s.turn, "mm-hm", Speech.BACKCHANNEL, True)
        case "nothing":
            return nothing(s)
        case "partial":
            return words(s, "hel", complete=False)
        case "stale":
            return tm.Heard(TurnId("c", s.turn.index, s.turn.revision + 7), "x", Speech.WORDS, True)
        case "begin":
            return tm.ReplyBegins()
        case "drain":
            return tm.ReplyBegins(Floor.DRAINING)
        case "sound":
            return tm.FirstSound()
        case "over":
            return tm.ReplyOver()
        case "mute":
            return tm.Mute(True)
    return tm.Mute(False)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(_EVENTS, st.integers(20, 3000)), max_size=60))
def test_any_sequence_keeps_the_rules(script: list[tuple[str, int]]) -> None:
    s, ms = fresh(), 0
    commits: set[TurnId] = set()
    held = False
    for name, later in script:
        ms += later
        before = s
        s, effects = step(s, _event(name, s, ms))  # raises on a forbidden pair
        for effect in effects:
            if isinstance(effect, tm.Commit):
                assert effect.turn not in commits, "a revision is committed once"
                assert effect.text
                commits.add(effect.turn)
            if isinstance(effect, tm.Reopen):
                assert effect.old in commits
            if isinstance(effect, tm.Hold):
                held = True
            if isinstance(effect, tm.Resume | tm.Interrupt | tm.Reopen):
                held = False
        if s.floor is Floor.HELD:
            assert held, "a held floor was announced"
        if before.floor is Floor.DRAINING and name != "mute":
            assert s.floor is Floor.DRAINING
        if name == "stale":
            assert s == before
    # Whatever happened, silence and a finished reply bring the machine to rest.
    if s.floor is Floor.DRAINING or s.caller is Caller.MUTED:
        return
    s, _ = run(s, tm.ReplyOver())
    if s.caller is Caller.SPEAKING:
        s, _ = run(s, tm.Pause(ms + 100))
    if s.caller is Caller.PAUSED:
        s, _ = run(s, nothing(s), tm.Ended(ms + 100))
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.IDLE)
