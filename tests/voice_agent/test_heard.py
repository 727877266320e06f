"""What the client says of its own playing, and what of our words then counts as heard."""

from __future__ import annotations

import pytest

from tests.support.fakes import WORD_OUT, Scene, silence
from voice_agent.agent import Call
from voice_agent.context import Role
from voice_agent.events import ReplyDone, ReplyStarted, ReplyStatus, WordsHeard
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.unit

WORD_MS = WORD_OUT * 1000 // OUT_RATE
LONG = " ".join(f"word{'abcdefghijklmnop'[i]}" for i in range(16)) + "."


def ask(call: Call) -> None:
    call.client.add_message("user", "tell me")
    call.client.respond()


def talking(*then: object, ms: int = 2400, tail_ms: int = 1200) -> Scene:
    """An agent asked to speak; `then` happens `ms` later."""
    return Scene(LONG).play(silence(100), ask, silence(ms), *then, tail_ms=tail_ms)  # type: ignore[arg-type]


def cancel(call: Call) -> None:
    assert call.client.cancel_reply()


def n_heard(scene: Scene) -> int:
    (done,) = scene.of(ReplyDone)
    assert done.status is ReplyStatus.CANCELLED
    return len(done.heard.split())


def test_what_lies_in_the_clients_buffer_was_not_heard() -> None:
    def behind(ms: int) -> Scene:
        return talking(lambda call: call.playing_behind(ms), silence(600), cancel)

    at_once = n_heard(behind(0))
    assert at_once >= 8
    assert n_heard(behind(2 * WORD_MS)) == at_once - 2
    assert n_heard(behind(5 * WORD_MS)) == at_once - 5
    assert n_heard(behind(10**6)) == 0
    assert n_heard(behind(-50)) == at_once


def test_a_word_lights_up_when_its_sound_leaves_the_loudspeaker() -> None:
    def first_s(ms: int) -> float:
        scene = Scene(LONG).play(lambda call: call.playing_behind(ms), ask, tail_ms=3000)
        began = next(at for at, e in scene.events if isinstance(e, ReplyStarted))
        return next(at for at, e in scene.events if isinstance(e, WordsHeard)) - began

    assert first_s(300) - first_s(0) == pytest.approx(0.3, abs=0.021)


def test_the_history_says_that_a_reply_was_interrupted() -> None:
    scene = talking(cancel)
    assert scene.call is not None
    said = scene.call.conversation.messages[-1]
    assert (said.role, said.interrupted) == (Role.ASSISTANT, True)
    whole = talking(ms=6000)
    assert whole.call is not None
    assert [m.interrupted for m in whole.call.conversation.messages] == [False] * 3


def test_a_truncation_also_cuts_what_the_callers_next_words_follow() -> None:
    def truncate(call: Call) -> None:
        (reply,) = scene.of(ReplyStarted)[:1]
        call.client.truncate(reply.reply, 3 * WORD_MS)

    scene = Scene(LONG)

    scene.play(
        silence(100), ask, silence(2400), cancel,
        lambda call: call.client.add_message("user", "and more"), truncate, tail_ms=500,
    )  # fmt: skip
    assert [text for _, text in scene.history] == ["tell me", "worda wordb wordc", "and more"]


def test_a_truncation_tells_how_much_the_clients_player_holds() -> None:
    """So that the next cut is right before the client says so, or if it never does."""
    heard: list[int] = []
    for known in (False, True):
        scene = Scene(LONG)

        def truncate(call: Call, scene: Scene = scene) -> None:
            sent_ms = scene.of(ReplyDone)[-1].audio_ms
            call.client.truncate(scene.of(ReplyStarted)[-1].reply, sent_ms - 3 * WORD_MS)

        told = (truncate,) if known else ()
        scene.play(
            silence(100), ask, silence(2400), cancel, *told, silence(200),
            ask, silence(2400), cancel, tail_ms=300,
        )  # fmt: skip
        heard.append(len(scene.of(ReplyDone)[-1].heard.split()))
    assert heard[1] == heard[0] - 3


def test_nothing_heard_of_a_reply_leaves_the_one_before_alone() -> None:
    scene = Scene(LONG)

    def truncate(call: Call) -> None:
        call.client.truncate(scene.of(ReplyStarted)[-1].reply, 0)

    scene.play(
        silence(100), ask, silence(1500), cancel, ask, silence(60), cancel, truncate, tail_ms=300
    )
    assert [bool(done.heard) for done in scene.of(ReplyDone)] == [True, False]
    first = scene.of(ReplyDone)[0].heard
    assert ("assistant", first) in scene.history
