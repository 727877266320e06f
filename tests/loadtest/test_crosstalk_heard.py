"""Cross-talk by a real voice and a real recogniser: found where it is made, and only there."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.callers.caller import CallLog, Turn
from loadtest.callers.clip import FRAME, RATE, Pcm
from loadtest.crosstalk import judge, whisper
from loadtest.figures import cross_talk
from loadtest.plan import PlannedCall
from loadtest.scenario import load_scenario
from loadtest.words import instructions, reply_text
from voice_agent.clauses import ClauseSplitter
from voice_agent.measure import load_voice
from voice_agent.models import ModelStore
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.model

GROUP = load_scenario("chatty").callers[0]
WORDS = ("banana", "piano")


def spoken() -> list[Pcm]:
    """What the scripted model answers to each word's session, as a caller hears it."""
    assert OUT_RATE == RATE
    voice, out = load_voice(ModelStore(), "piper-joe", 1), []
    for word in WORDS:
        splitter = ClauseSplitter({})
        clauses = [*splitter.push(reply_text(instructions(word, 1), 2)), *splitter.finish()]
        pieces = [
            piece.pcm
            for clause in clauses
            for piece in voice.synthesize(clause, speed=1.0, cancelled=lambda: False)
        ]
        out.append(np.concatenate(pieces))
    return out


def call(index: int, answers: list[Pcm], reply: str = "own/1") -> tuple[PlannedCall, CallLog]:
    """A call in which each answer is heard after a turn; all of the reply that it was told of."""
    log, at_s = CallLog(up_s=0.0, down_s=100.0), 1.0
    log.ear.own("own/1")
    for pcm in answers:
        log.turns.append(Turn("a", at_s, v2v_s=0.5))
        for start in range(0, len(pcm), FRAME):
            log.ear.play(pcm[start : start + FRAME], at_s + 0.5 + start / RATE, reply)
        at_s += 10.0
    return PlannedCall(index, GROUP, 0.0, 60.0, index, WORDS[index], ""), log


def test_an_answer_that_went_to_the_wrong_caller_is_heard() -> None:
    banana, piano = spoken()
    listen = whisper(ModelStore().path("whisper-tiny.en"))

    right = [call(0, [banana]), call(1, [piano])]
    found = judge(right, listen)
    assert (found.answers, found.missing, found.foreign) == (2, 0, [])
    assert cross_talk(found, sum(log.ear.foreign for _, log in right))["cross_talk"] == 0

    crossed = [call(0, [banana]), call(1, [piano, banana], "someone else's/1")]
    found = judge(crossed, listen)
    assert found.foreign == [(1, ["banana"])]
    assert found.missing == 1
    pieces = sum(log.ear.foreign for _, log in crossed)
    assert pieces == crossed[1][1].ear.pieces
    assert cross_talk(found, pieces)["cross_talk"] == 1 + pieces
