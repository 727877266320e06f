"""The turn machine: examples of every rule, then any sequence of events at all."""

from __future__ import annotations

from dataclasses import replace

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
    assert kinds(effects) == ["Listen", "Duck"]
    assert s.floor is Floor.HELD
    s, effects = run(s, tm.Lasted(), tm.Lasted())
    assert kinds(effects) == ["Hold"]
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
    assert kinds(effects) == ["Revise", "Duck"]
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


def test_the_last_words_are_nobodys_to_interrupt() -> None:
    s, _ = run(fresh(), tm.ReplyBegins(Floor.DRAINING))
    after, effects = run(s, tm.Onset(100), tm.Pause(900), tm.Ended(900))
    assert effects == []
    assert after == s


def guarded() -> TurnState:
    s, _ = run(fresh(), tm.ReplyBegins(), tm.Guard(True), tm.FirstSound())
    assert s.floor is Floor.UNINTERRUPTIBLE
    return s


def test_words_over_an_uninterruptible_reply_wait_and_are_committed_after_it() -> None:
    s, effects = run(guarded(), tm.Onset(100), tm.Pause(900))
    assert kinds(effects) == ["Listen", "Transcribe"], "our voice goes on as loud as before"
    s, effects = run(s, words(s), tm.Ended(900))
    assert effects == []
    s, effects = run(s, tm.ReplyOver())
    assert kinds(effects) == ["Interrupt", "Commit"]
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.THINKING)


def test_words_that_wait_and_go_on_are_one_turn() -> None:
    s, _ = run(guarded(), tm.Onset(100), tm.Pause(900))
    s, effects = run(s, words(s), tm.Ended(900), tm.Onset(2000))
    assert kinds(effects) == ["Revise"]
    s, _ = run(s, tm.Pause(3000), tm.ReplyOver(), tm.Ended(3000))
    s, effects = run(s, words(s, "hello there friend"))
    assert effects == [tm.Commit(TurnId("c", 0, 1), "hello there friend", 3000)]


@pytest.mark.parametrize("speech", [Speech.NOTHING, Speech.BACKCHANNEL])
def test_a_cough_over_an_uninterruptible_reply_is_forgotten(speech: Speech) -> None:
    s, _ = run(guarded(), tm.Onset(100), tm.Pause(400))
    s, effects = run(s, tm.Heard(s.turn, "mm-hm", speech, True), tm.Ended(400))
    assert kinds(effects) == ["Dismiss"]
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.UNINTERRUPTIBLE)


def test_a_guard_that_is_over_under_speech_lowers_our_voice_to_judge_it() -> None:
    s, _ = run(guarded(), tm.Onset(100))
    s, effects = run(s, tm.Guard(False))
    assert kinds(effects) == ["Duck"]
    s, effects = run(s, words(s, complete=False))
    assert kinds(effects) == ["Interrupt"]
    s, effects = run(guarded(), tm.Guard(False))
    assert (s.floor, effects) == (Floor.SPEAKING, [])


def test_a_guard_frees_a_hold() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.Guard(True))
    assert kinds(effects) == ["Resume"]
    assert s.floor is Floor.UNINTERRUPTIBLE


def test_a_hold_while_thinking_is_silent_at_once_and_so_is_one_without_ducking() -> None:
    _, effects = run(committed(), tm.Onset(1800))
    assert kinds(effects) == ["Listen", "Hold"]
    plain, _ = run(fresh(), tm.ReplyBegins(), tm.FirstSound())
    _, effects = run(replace(plain, ducks=False), tm.Onset(1800))
    assert kinds(effects) == ["Listen", "Hold"]


def test_a_caller_who_goes_on_with_the_turn_just_answered_silences_us_at_once() -> None:
    begun, _ = run(committed(), tm.FirstSound())
    soon, effects = run(begun, tm.Onset(900 + 1500))
    assert kinds(effects) == ["Listen", "Hold"]
    assert not soon.ducked
    _, effects = run(begun, tm.Onset(900 + 1501))
    assert kinds(effects) == ["Listen", "Duck"]


def test_a_lowered_voice_stays_lowered_while_the_caller_pauses() -> None:
    s, _ = run(speaking(), tm.Onset(5000), tm.Pause(5300))
    after, effects = run(s, tm.Lasted())
    assert (after, effects) == (s, [])


def test_one_word_of_a_sentence_waits_for_the_next_transcript_but_not_for_ever() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    unsure = tm.Heard(s.turn, "the", Speech.UNSURE, False)
    after, effects = run(s, unsure)
    assert (after, effects) == (s, [])
    s, effects = run(s, tm.Undecided())
    assert kinds(effects) == ["Resume"]
    s, effects = run(s, words(s, "the weather", complete=False))
    assert kinds(effects) == ["Interrupt"], "a later transcript may still decide"


def test_one_word_at_a_pause_is_a_turn() -> None:
    s, _ = run(speaking(), tm.Onset(5000), tm.Pause(5300))
    s, effects = run(s, tm.Heard(s.turn, "Tuesday", Speech.UNSURE, True), tm.Ended(5300))
    assert kinds(effects) == ["Interrupt", "ThinkEarly", "Commit"]


def test_a_key_cuts_the_reply_and_is_a_turn_of_its_own() -> None:
    s, effects = run(speaking(), tm.Pressed(5000))
    assert (s.floor, kinds(effects)) == (Floor.IDLE, ["Cut"])
    s, effects = run(s, tm.Keyed("I pressed 1.", 7000))
    assert effects == [tm.Commit(TurnId("c", 1), "I pressed 1.", 7000)]
    assert s.floor is Floor.THINKING


def test_a_key_under_judged_speech_makes_it_a_turn() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.Pressed(5200))
    assert kinds(effects) == ["Interrupt"]
    s, effects = run(s, tm.Keyed("I pressed 1.", 5300))
    assert effects == [], "who speaks is heard first"


@pytest.mark.parametrize("floor", [Floor.IDLE, Floor.UNINTERRUPTIBLE, Floor.DRAINING])
def test_a_key_cuts_nothing_that_may_not_be_cut(floor: Floor) -> None:
    s = fresh() if floor is Floor.IDLE else run(fresh(), tm.ReplyBegins(floor))[0]
    assert run(s, tm.Pressed(100)) == (s, [])


def test_a_second_reply_never_takes_the_floor_from_the_first() -> None:
    s = speaking()
    assert run(s, tm.ReplyBegins()) == (s, [])
    s, _ = run(s, tm.ReplyBegins(Floor.DRAINING))
    assert s.floor is Floor.DRAINING


def test_a_goodbye_ends_a_hold_and_drops_the_caller() -> None:
    s, _ = run(speaking(), tm.Onset(5000))
    s, effects = run(s, tm.ReplyBegins(Floor.DRAINING))
    assert kinds(effects) == ["Dismiss", "Resume"]
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.DRAINING)


def test_a_turn_that_goes_on_for_ever_is_revised_but_no_longer_thought_early() -> None:
    s, effects = run(fresh(), tm.Onset(0))
    for i in range(20):
        s, _ = run(s, tm.Pause(1000 * i + 500))
        s, more = run(s, words(s), tm.Resumed())
        effects += more
    assert kinds(effects).count("Revise") == 20
    assert kinds(effects).count("ThinkEarly") == s.max_revisions


def test_a_turn_is_reopened_a_bounded_number_of_times() -> None:
    s, effects = committed(), []
    for i in range(20):
        s, _ = run(s, tm.Onset(1000 * i + 1000))
        s, more = run(s, words(s, complete=False), tm.Pause(1000 * i + 1500))
        s, _ = run(s, words(s), tm.Ended(1000 * i + 1500))
        effects += more
        if s.turn.index:
            break
    assert kinds(effects).count("Reopen") == s.max_revisions
    assert kinds(effects)[-1] != "Reopen"


def test_muting_ends_the_turn_and_the_words_said_until_then_are_answered() -> None:
    s, effects = run(fresh(), tm.Onset(100), tm.Mute(True, 900))
    assert kinds(effects) == ["Listen", "Transcribe"]
    s, effects = run(s, tm.Resumed(), tm.Onset(950), words(s, "hel", complete=False))
    assert effects == [], "nothing that comes later belongs to it"
    s, effects = run(s, words(s))
    assert effects == [tm.Commit(TurnId("c", 0), "hello there", 900)]
    assert (s.caller, s.floor) == (Caller.MUTED, Floor.THINKING)
    s, _ = run(s, tm.Onset(1000), tm.Mute(False, 1100))
    assert s.caller is Caller.SILENT


def test_muting_in_a_pause_commits_the_words_at_once() -> None:
    s, _ = run(fresh(), tm.Onset(100), tm.Pause(900))
    s, effects = run(s, words(s), tm.Mute(True, 1000))
    assert effects[-1] == tm.Commit(TurnId("c", 0), "hello there", 900)
    assert s.caller is Caller.MUTED


def test_unmuted_before_the_words_are_known_the_turn_may_go_on() -> None:
    s, _ = run(fresh(), tm.Onset(100), tm.Mute(True, 900), tm.Mute(False, 1000))
    s, effects = run(s, tm.Onset(1100))
    assert kinds(effects) == ["Revise"]
    assert s.caller is Caller.SPEAKING


@pytest.mark.parametrize("said", [Speech.WORDS, Speech.BACKCHANNEL, Speech.NOTHING])
def test_muting_over_our_voice_leaves_the_verdict_to_the_words(said: Speech) -> None:
    s, _ = run(speaking(), tm.Onset(5000), tm.Mute(True, 5300))
    assert s.floor is Floor.HELD
    s, effects = run(s, tm.Heard(s.turn, "x" if said is Speech.WORDS else "", said, True))
    took = said is Speech.WORDS
    assert kinds(effects) == (["Interrupt", "Commit"] if took else ["Resume", "Dismiss"])
    assert (s.caller, s.floor) == (Caller.MUTED, Floor.THINKING if took else Floor.SPEAKING)


@pytest.mark.parametrize("muted", [False, True])
def test_what_a_client_discards_is_forgotten_and_frees_a_hold(muted: bool) -> None:
    s, _ = run(speaking(), tm.Onset(5000), *[tm.Mute(True, 5300)] * muted)
    s, effects = run(s, tm.Discard())
    assert kinds(effects) == ["Dismiss", "Resume"]
    assert (s.caller, s.floor) == (Caller.MUTED if muted else Caller.SILENT, Floor.SPEAKING)
    assert run(s, tm.Discard()) == (s, [])


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
        "discard",
        "unsure",
        "lasted",
        "undecided",
        "guard",
        "unguard",
        "key",
        "keyed",
        "begin guarded",
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
            return tm.Mute(True, ms)
        case "discard":
            return tm.Discard()
        case "unsure":
            return tm.Heard(s.turn, "the", Speech.UNSURE, ms % 2 == 0)
        case "lasted":
            return tm.Lasted()
        case "undecided":
            return tm.Undecided()
        case "guard":
            return tm.Guard(True)
        case "unguard":
            return tm.Guard(False)
        case "key":
            return tm.Pressed(ms)
        case "keyed":
            return tm.Keyed("I pressed 1.", ms)
        case "begin guarded":
            return tm.ReplyBegins(Floor.UNINTERRUPTIBLE)
    return tm.Mute(False, ms)


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
            if isinstance(effect, tm.Hold | tm.Duck):
                held = True
            if isinstance(effect, tm.Resume | tm.Interrupt | tm.Reopen | tm.Cut):
                held = False
            if isinstance(effect, tm.Interrupt | tm.Reopen | tm.Cut | tm.Duck | tm.Hold):
                assert before.floor is not Floor.UNINTERRUPTIBLE or name in ("over", "unguard")
        if s.floor is Floor.HELD:
            assert held, "a held floor was announced"
        if before.floor is Floor.DRAINING and name != "mute":
            assert s.floor is Floor.DRAINING
        if name == "stale":
            assert s == before
    # Whatever happened, silence and a finished reply bring the machine to rest.
    if s.floor is Floor.DRAINING:
        return
    s, _ = run(s, tm.Mute(False, ms))
    s, _ = run(s, tm.ReplyOver(), tm.ReplyOver())  # of a reply to words that had waited, too
    if s.caller is Caller.SPEAKING:
        s, _ = run(s, tm.Pause(ms + 100))
    if s.caller is Caller.PAUSED:
        s, _ = run(s, nothing(s), tm.Ended(ms + 100))
    assert (s.caller, s.floor) == (Caller.SILENT, Floor.IDLE)
