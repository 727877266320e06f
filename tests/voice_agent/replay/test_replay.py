"""A call that was recorded decides the same again, from its file and without its stages."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.fakes import Scene, cough, say, silence
from voice_agent.agent import Call
from voice_agent.endpointing import PRESETS
from voice_agent.errors import CapacityError, InternalError, UsageError
from voice_agent.events import EndReason, Event, ReplyDone, TurnCommitted, WordsHeard
from voice_agent.replay.answers import raised
from voice_agent.replay.compare import rows
from voice_agent.replay.play import Replayed, replay
from voice_agent.replay.record import TapedCall, taped
from voice_agent.replay.tape import Recorded, Taken, load, save, thinned
from voice_agent.replay.taping import fault_of
from voice_agent.reply_settings import ReplySettings, Said
from voice_agent.stt.jobs import SupersededError

pytestmark = pytest.mark.unit

REPLY = "It is four. And there is very much more to say about that, if you wish."


def record(*parts: Any, scene: Scene | None = None, **agent: Any) -> tuple[Scene, Recorded]:
    scene = scene or Scene(REPLY, greeting="Hello there.", **agent)
    calls: list[TapedCall] = []
    scene.stack.make_call = taped(calls.append)
    scene.play(*parts)
    (call,) = calls
    return scene, call.recorded()


def what(decisions: list[Taken]) -> Counter[str]:
    return Counter(taken.key[0] for taken in decisions)


def assert_same(recorded: Recorded, replayed: Replayed) -> None:
    differing = [row for row in rows(recorded.tape.decisions, replayed.decisions) if not row.same]
    assert not differing
    assert replayed.guessed == 0


def of(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def test_a_call_with_a_barge_in_decides_the_same_again(tmp_path: Path) -> None:
    scene, recorded = record(
        silence(900),
        say("what is the time"),
        silence(1100),
        cough(150),
        silence(1500),
        say("tell me more"),
        silence(2500),
    )
    assert what(recorded.tape.decisions) >= Counter(["commit", "resume", "interrupt"])
    save(recorded, tmp_path / "a.call")
    replayed = replay(load(tmp_path / "a.call"))
    assert_same(recorded, replayed)
    events = replayed.events
    texts = [e.text for e in of(events, TurnCommitted)]
    assert texts == [e.text for e in scene.of(TurnCommitted)]
    heard = [(e.reply.n, e.heard) for e in of(events, ReplyDone)]
    assert heard == [(e.reply.n, e.heard) for e in scene.of(ReplyDone)]
    words = [(e.reply.n, e.chars) for e in of(events, WordsHeard)]
    assert words == [(e.reply.n, e.chars) for e in scene.of(WordsHeard)]
    assert replayed.reason is EndReason.CALLER_HUNG_UP


def test_what_the_client_asked_for_is_asked_again() -> None:
    def change(call: Call) -> None:
        call.client.update(turn_taking=PRESETS["patient"])
        call.client.interruptible = False

    def ask(call: Call) -> None:
        call.client.add_message("user", "is it late")
        assert call.client.respond()

    def cut(call: Call) -> None:
        assert call.client.cancel_reply()

    _, recorded = record(
        silence(900), change, say("what is the time"), silence(6000), ask, silence(900), cut
    )
    named = [control.name for control in recorded.tape.controls]
    assert named == ["update", "interruptible", "add_message", "respond", "cancel_reply"]
    assert "cancelled" in [taken.key[3] for taken in recorded.tape.decisions]
    assert_same(recorded, replay(recorded))


def test_a_session_of_a_protocol_is_asked_the_same_again() -> None:
    function = {"name": "clock", "parameters": {"type": "object"}}
    clock = {"type": "function", "function": function}

    def begin(call: Call) -> None:
        call.client.idle_timeout_ms = 2500
        call.client.update(tools=[clock])
        call.client.add_message("user", "is it late", "m1")
        call.client.add_message("system", "be kind", "m0", after=None)
        call.client.tool_call("c1", "clock", "{}")
        call.client.tool_result("c1", "four")
        assert call.client.remove_message("m0")

    def ask(call: Call) -> None:
        assert call.client.respond(ReplySettings("be brief", said=(Said("user", "and now"),)))

    _, recorded = record(silence(900), begin, ask, silence(9000))
    names = {control.name for control in recorded.tape.controls}
    assert names >= {"idle_timeout_ms", "tool_call", "tool_result", "remove_message", "respond"}
    replayed = replay(recorded)
    assert_same(recorded, replayed)
    assert len(of(replayed.events, ReplyDone)) > 2  # to the question, and to silence, by time


def test_manual_turns_are_noted_once() -> None:
    def manual(call: Call) -> None:
        call.client.manual_turns = True

    def commit(call: Call) -> None:
        assert call.client.commit_audio()

    _, recorded = record(
        silence(900), manual, silence(200), say("what is the time"), commit, silence(2500)
    )
    assert [control.name for control in recorded.tape.controls] == ["manual_turns", "commit_audio"]
    assert_same(recorded, replay(recorded))


def test_a_recogniser_that_fails_fails_again() -> None:
    def fail(call: Call) -> None:
        scene.recognizer.fail = True

    scene = Scene(REPLY, greeting="Hello there.")
    _, recorded = record(silence(900), fail, say("what is the time"), scene=scene)
    assert any(take.error for take in recorded.tape.stt)
    assert_same(recorded, replay(recorded))


def test_code_that_decides_otherwise_is_shown() -> None:
    _, recorded = record(silence(900), say("what is the time"), silence(2500))
    recorded.tape.head.agent["turn_taking"] = {"preset": "patient"}
    replayed = replay(recorded)
    found = rows(recorded.tape.decisions, replayed.decisions)
    (commit,) = [row for row in found if row.then and row.then.key[0] == "commit"]
    assert not commit.same
    assert {"silence_ms", "timeout_ms"} <= set(commit.changed)


def test_what_was_not_asked_then_is_guessed_and_counted() -> None:
    _, recorded = record(silence(900), say("what is the time"), silence(2500))
    del recorded.tape.voice[-1]
    replayed = replay(recorded)
    assert replayed.guessed > 0
    assert [e.status.value for e in of(replayed.events, ReplyDone)][-1] == "completed"


def test_a_tape_has_an_end() -> None:
    scene = Scene(REPLY, greeting="Hello there.")
    calls: list[TapedCall] = []

    def make(*args: Any, **kwargs: Any) -> Call:
        return TapedCall(*args, **kwargs, max_s=1.0, done=calls.append)

    scene.stack.make_call = make
    scene.play(silence(900), say("what is the time"), silence(2500))
    recorded = calls[0].recorded()
    assert len(recorded.tape.frame_times) <= 51
    assert len(recorded.caller) == 320 * len(recorded.tape.frame_times)
    assert max(taken.at_s for taken in recorded.tape.decisions) <= 1.0
    assert_same(recorded, replay(recorded))


def test_the_file_keeps_every_sample_and_thinning_only_our_voices(tmp_path: Path) -> None:
    _, recorded = record(silence(300), say("hello"), silence(900))
    recorded.caller[:160] = np.arange(-80, 80)
    save(recorded, tmp_path / "a.call")
    loaded = load(tmp_path / "a.call")
    assert np.array_equal(loaded.caller, recorded.caller)
    assert np.array_equal(loaded.sound, recorded.sound)
    assert loaded.tape == recorded.tape
    assert (tmp_path / "a.call").stat().st_mode & 0o077 == 0
    thin = thinned(recorded)
    assert np.abs(thin.sound.astype(int) - recorded.sound).max() < 1024
    assert np.array_equal(thin.caller, recorded.caller)


@pytest.mark.parametrize("damage", ["text", "cut", "version", "frames"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.call"
    _, recorded = record(silence(300))
    if damage == "version":
        recorded.tape.head.version = 99
    if damage == "frames":
        recorded.tape.frame_times.pop()
    save(recorded, path)
    if damage == "text":
        path.write_text("not a call")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UsageError) as error:
        load(path)
    assert error.value.code == "VA490"


@pytest.mark.parametrize(
    "error",
    [
        InternalError("it broke: badly", code="VA311"),
        CapacityError("full", code="VA201"),
        SupersededError("newer"),
        asyncio.InvalidStateError("odd"),
    ],
)
def test_errors_come_back_as_their_like(error: Exception) -> None:
    again = raised(fault_of(error))
    known = isinstance(error, asyncio.InvalidStateError)
    assert type(again) is (InternalError if known else type(error))
    assert again.args == error.args
    assert known or getattr(again, "code", None) == getattr(error, "code", None)
