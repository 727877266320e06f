"""Whose word was heard where: found when it is another live caller's, and only then."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.callers.caller import CallLog, Turn
from loadtest.callers.clip import FRAME, RATE, Pcm
from loadtest.crosstalk import judge, parts, windows
from loadtest.plan import PlannedCall
from loadtest.scenario import load_scenario

pytestmark = pytest.mark.unit

GROUP = load_scenario("chatty").callers[0]
SAID = {1: "It is the banana.", 2: "Please call again.", 3: "A piano! A piano, and so on."}


def transcribe(pcm: Pcm) -> str:
    """The sound's level names what is said."""
    return " ".join(SAID[n] for n in sorted({int(x) for x in pcm.tolist() if x}))


def call(
    index: int, word: str, said: list[int], up: float = 0.0, down: float = 60.0
) -> tuple[PlannedCall, CallLog]:
    """One turn every 10 s from second 1 on, each answered by a second of the given level."""
    log = CallLog(up_s=up, down_s=down)
    for i, level in enumerate(said):
        log.turns.append(Turn("a", up + 1 + 10 * i, v2v_s=0.5))
        for k in range(50):
            log.ear.play(np.full(FRAME, level, np.int16), up + 1.5 + 10 * i + 0.02 * k, f"{i}")
    return PlannedCall(index, GROUP, up, down, index, word, ""), log


def test_the_own_word_is_heard_and_no_other() -> None:
    found = judge([call(0, "banana", [1, 1]), call(1, "piano", [3])], transcribe)
    assert (found.answers, found.missing, found.foreign) == (3, 0, [])


def test_another_live_caller_s_word_is_cross_talk() -> None:
    found = judge([call(0, "banana", [1, 3]), call(1, "piano", [3])], transcribe)
    assert found.foreign == [(0, ["piano"])]
    assert found.missing == 1


def test_the_word_of_a_call_that_was_over_is_none_and_the_own_one_is_missing() -> None:
    found = judge([call(0, "banana", [3], up=100, down=160), call(1, "piano", [3])], transcribe)
    assert found.foreign == []
    assert found.missing == 1


def test_an_answer_that_was_cut_into_may_lack_its_word() -> None:
    planned, log = call(0, "banana", [2, 1])
    log.turns[1].cut_in = True
    assert judge([(planned, log)], transcribe).missing == 0
    log.turns[1].cut_in = False
    assert judge([(planned, log)], transcribe).missing == 1


def test_sound_outside_of_answers_is_listened_to_as_well() -> None:
    planned, log = call(0, "banana", [1])
    log.ear.heard.insert(0, (0.5, np.full(FRAME, 3, np.int16)))
    found = judge([(planned, log), call(1, "piano", [3])], transcribe)
    assert found.foreign == [(0, ["piano"])]


def test_parts_hold_all_the_sound_there_was() -> None:
    _, log = call(0, "banana", [1, 2, 1])
    assert sum(len(pcm) for pcm, _ in parts(log)) == 3 * RATE
    assert [whole for _, whole in parts(log)] == [True, True, True]


def test_a_call_without_a_turn_has_no_answer() -> None:
    planned, log = call(0, "banana", [])
    assert judge([(planned, log)], transcribe).answers == 0


def test_long_sound_is_cut_with_a_second_shared() -> None:
    pcm = np.arange(60 * RATE) % 1000
    cut = windows(pcm.astype(np.int16))
    assert [len(w) / RATE for w in cut] == [25, 25, 12]
    assert len(windows(pcm[:100].astype(np.int16))) == 1
