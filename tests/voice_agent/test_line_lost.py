"""A call whose line is lost for a while: nothing is said into the void, nothing decided by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fakes import WORD_OUT, Scene, cough, say, silence
from voice_agent.agent import Call
from voice_agent.events import (
    CallFault,
    Decided,
    EndReason,
    ReplyDone,
    ReplyStarted,
    ReplyStatus,
    TurnCommitted,
    TurnTraced,
)
from voice_agent.player import Player
from voice_agent.types import FRAME_MS, OUT_FRAME, OUT_RATE

pytestmark = pytest.mark.unit

LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen."
WORD_MS = WORD_OUT * 1000 // OUT_RATE


def lost(unheard_ms: int = 0) -> Callable[[Call], object]:
    return lambda call: call.line_lost(unheard_ms)


def back(call: Call) -> None:
    call.line_back()


def moved(call: Call) -> None:
    call.play_on(Player())
    call.line_back()


def sounds(scene: Scene) -> list[int]:
    """Offsets of our audible frames."""
    return [tick.offset for _, tick in scene.frames if tick.audible]


@pytest.mark.parametrize("unheard_ms", [0, 60, 800])
@pytest.mark.parametrize("again", [back, moved])
def test_the_reply_goes_on_from_the_start_of_the_word_that_was_cut(
    unheard_ms: int, again: Callable[[Call], object]
) -> None:
    scene = Scene(LONG).play(
        silence(300), say("hello"), silence(2500), lost(unheard_ms), silence(9000), again,
        tail_ms=4000,
    )  # fmt: skip
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, LONG)
    at = sounds(scene)
    (jump,) = [i for i in range(1, len(at)) if at[i] != at[i - 1] + OUT_FRAME]
    left = at[jump - 1] + OUT_FRAME - unheard_ms * OUT_RATE // 1000
    assert at[jump] % WORD_OUT == 0, "a word's start"
    assert left - WORD_OUT < at[jump] <= left
    assert at[-1] + OUT_FRAME >= len(LONG.split()) * WORD_OUT
    gap = [t for t, tick in scene.frames if tick.audible][jump - 1 : jump + 1]
    assert gap[1] - gap[0] == pytest.approx(9.0, abs=2 * FRAME_MS / 1000)


def test_what_was_lost_was_not_heard() -> None:
    whole = Scene(LONG).play(silence(300), say("hello"), silence(2500), tail_ms=20)
    cut = Scene(LONG).play(silence(300), say("hello"), silence(2500), lost(600), tail_ms=20)
    heard, unheard = whole.history[-1][1].split(), cut.history[-1][1].split()
    assert heard[: len(unheard)] == unheard
    assert len(heard) - len(unheard) in (600 // WORD_MS, 600 // WORD_MS + 1)


WHOLE = "One two three four."


@pytest.mark.parametrize("again", [back, moved])
def test_the_end_of_a_reply_that_left_into_the_void_is_said_again(
    again: Callable[[Call], object],
) -> None:
    scene = Scene(WHOLE).play(
        silence(300), say("hello"), silence(1500), lost(800), silence(400), again, tail_ms=3000
    )
    whole, rest = scene.of(ReplyDone)
    assert {whole.status, rest.status} == {ReplyStatus.COMPLETED}
    (_, heard), (_, then) = scene.history[-2:]
    assert f"{heard} {then}" == WHOLE, "each word stands there once"
    assert then == rest.heard
    n_again = sum(tick.reply == rest.reply for _, tick in scene.frames if tick.audible)
    assert 0 < len(then.split()) <= 800 // WORD_MS + 1
    assert n_again * FRAME_MS == pytest.approx(len(then.split()) * WORD_MS, abs=FRAME_MS)


def test_the_end_of_a_reply_of_which_nothing_arrived_is_all_of_it() -> None:
    scene = Scene("Sure.").play(
        silence(300), say("hello"), silence(900), lost(2000), silence(400), back, tail_ms=3000
    )
    assert [done.heard for done in scene.of(ReplyDone)] == ["Sure.", "Sure."]
    assert [text for _, text in scene.history].count("Sure.") == 1


def test_it_is_not_said_to_a_caller_who_had_begun_to_speak() -> None:
    scene = Scene(WHOLE).play(
        silence(300), say("hello"), silence(1500), say("tell me"), lost(1400), silence(400), back,
        say("more"), tail_ms=4000,
    )  # fmt: skip
    replies = scene.of(ReplyDone)
    assert [done.reply.turn is not None for done in replies] == [True] * len(replies)
    assert scene.history[2][1] != WHOLE


def test_one_that_was_over_long_before_stays_heard() -> None:
    scene = Scene("Sure.").play(
        silence(300), say("hello"), silence(7000), lost(800), silence(400), back
    )
    assert scene.history[-1] == ("assistant", "Sure.")
    assert len(scene.of(ReplyDone)) == 1


def test_a_sentence_that_was_cut_by_the_loss_is_one_turn() -> None:
    scene = Scene("Fine.").play(
        silence(300), say("tell me"), lost(), silence(25_000), back, say("more"), tail_ms=4000
    )
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me more"]


def test_a_pause_before_the_loss_goes_on_after_it() -> None:
    scene, committed = Scene("Fine."), []
    scene.play(
        silence(300), say("tell me"), silence(150), lost(), silence(25_000),
        lambda call: committed.append(len(scene.of(TurnCommitted))), back, tail_ms=4000,
    )  # fmt: skip
    assert committed == [0]
    assert [e.text for e in scene.of(TurnCommitted)] == ["tell me"], "now it is the end"


def test_nobody_is_asked_or_hung_up_on_while_the_line_is_away() -> None:
    scene = Scene("Fine.", idle_prompts=["Still there?"], goodbye="Bye.", limits={"idle_s": 5.0})
    asked: list[int] = []

    def look(call: Call) -> None:
        asked.append(len(scene.of(ReplyStarted)))

    scene.play(
        silence(1000), lost(), silence(29_000), look, back, silence(4500), look, tail_ms=1500
    )
    assert asked == [0, 0], "their silence begins when they are back"
    assert len(scene.of(ReplyStarted)) == 1
    assert scene.reason is EndReason.CALLER_HUNG_UP


def test_a_reply_that_was_being_made_waits_and_nobody_recovers() -> None:
    scene = Scene(LONG)
    scene.thinker.first_s = 0.8
    scene.play(silence(300), say("hello"), silence(700), lost(), silence(20_000), back,
               tail_ms=5000)  # fmt: skip
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, LONG)
    assert sounds(scene)[0] == 0
    assert not scene.of(CallFault)


def test_a_cough_over_us_before_the_loss_leaves_us_speaking_after_it() -> None:
    scene = Scene(LONG).play(
        silence(300), say("hello"), silence(2000), cough(200), lost(), silence(8000), back,
        silence(300), tail_ms=6000,
    )  # fmt: skip
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, LONG)


def test_cutting_in_after_the_return_keeps_what_was_heard() -> None:
    scene = Scene(LONG).play(
        silence(300), say("hello"), silence(2500), lost(800), silence(3000), back, silence(100),
        say("stop please"), tail_ms=3000,
    )  # fmt: skip
    done = scene.of(ReplyDone)[0]
    assert done.status is ReplyStatus.INTERRUPTED
    last = [tick.offset for _, tick in scene.frames if tick.audible and tick.reply == done.reply][
        -1
    ]
    assert LONG.startswith(done.heard)
    assert 0 <= last // WORD_OUT + 1 - len(done.heard.split()) <= 1
    assert scene.of(TurnCommitted)[-1].text == "stop please"


def test_hanging_up_while_the_line_is_away() -> None:
    scene = Scene(LONG).play(
        silence(300), say("hello"), silence(2500), lost(), silence(3000),
        lambda call: call.hang_up(EndReason.TRANSPORT_LOST), tail_ms=100,
    )  # fmt: skip
    assert scene.reason is EndReason.TRANSPORT_LOST
    (done,) = scene.of(ReplyDone)
    assert 0 < len(done.heard) < len(LONG)


def test_the_gap_stands_in_the_trace_of_the_turn_it_was_in() -> None:
    scene = Scene(LONG).play(
        silence(300), say("hello"), silence(2500), lost(800), silence(9000), back, tail_ms=4000
    )
    (traced,) = scene.of(TurnTraced)
    what = {d.what: d for d in traced.trace.decisions if d.cause == "line"}
    assert what["line_lost"].why == {"unheard_ms": 800}
    assert what["line_back"].why["gap_ms"] == pytest.approx(9000, abs=60)
    assert len([e for e in scene.of(Decided) if e.decision.cause == "line"]) == 2


def test_a_gap_between_turns_stands_in_the_next_ones_trace() -> None:
    scene = Scene("Fine.").play(
        silence(500), lost(), silence(2000), back, silence(300), say("hello"), tail_ms=4000
    )
    (traced,) = scene.of(TurnTraced)
    assert [d.what for d in traced.trace.decisions if d.cause == "line"] == [
        "line_lost", "line_back",
    ]  # fmt: skip


def test_what_is_said_and_asked_for_twice_is_done_once() -> None:
    scene = Scene(LONG).play(
        back, silence(300), say("hello"), silence(2500), lost(800), lost(800), silence(500), back,
        back, tail_ms=4000,
    )  # fmt: skip
    (done,) = scene.of(ReplyDone)
    assert done.heard == LONG
    assert len([e for e in scene.of(Decided) if e.decision.cause == "line"]) == 2


def test_no_sound_of_the_caller_is_taken_while_it_is_away() -> None:
    scene = Scene("Fine.").play(
        silence(500), lost(), say("hello"), silence(1000), back, tail_ms=3000
    )
    assert not scene.of(TurnCommitted)
    assert not any(tick.pcm.any() for _, tick in scene.frames)
