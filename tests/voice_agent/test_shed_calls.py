"""What a call does at the later steps of the shedding order."""

from __future__ import annotations

import pytest

from tests.support.fakes import Scene, say, silence
from voice_agent.events import ReplyDone, ReplyStatus
from voice_agent.shedding import AT, Load, Shed
from voice_agent.stt.partials import PartialPolicy
from voice_agent.types import IN_RATE
from voice_agent.vad import WINDOW

pytestmark = pytest.mark.unit

FIRST = "It is noon in the old town and the sun is out today, my friend."
REST = " There is more to say about the weather. And about the town."


def scene(wait: float, most: Shed, answer: str = FIRST + REST) -> Scene:
    made = Scene(answer)
    wait_s = wait * made.stack.target_s
    made.stack.early.load = Load(made.loop, made.stack.target_s, lambda: wait_s, most)
    return made


def test_a_shortened_reply_ends_with_its_sentence_and_is_what_was_said() -> None:
    made = scene(10.0, Shed.REPLIES).play(silence(300), say("what is the time"), tail_ms=9000)
    (done,) = made.of(ReplyDone)
    assert (done.text, done.status) == (FIRST, ReplyStatus.COMPLETED)
    assert made.history == [("user", "what is the time"), ("assistant", FIRST)]
    assert made.thinker.running == 0, "the model went on for nobody"


@pytest.mark.parametrize(
    ("wait", "most"), [(10.0, Shed.PARTIALS), (0.9 * AT[Shed.REPLIES], Shed.REPLIES)]
)
def test_replies_are_whole_where_it_is_not_allowed_or_not_needed(wait: float, most: Shed) -> None:
    made = scene(wait, most).play(silence(300), say("what is the time"), tail_ms=12000)
    (done,) = made.of(ReplyDone)
    assert done.text == FIRST + REST


def test_partials_are_rarer_under_load() -> None:
    passes = []
    for wait in (0.0, AT[Shed.PARTIALS]):
        made = scene(wait, Shed.PARTIALS)
        made.play(silence(300), say("tell me more and what is the weather today " * 3))
        passes.append(made.recognizer.passes)
    assert passes[1] < passes[0]


def test_partials_over_our_voice_are_as_often_as_ever() -> None:
    """They tell an interruption from "mm-hm"."""
    asked = []
    for stretch in (1.0, 5.0):
        policy = PartialPolicy()
        policy.stretch = stretch
        policy.begin(0)
        asked.append(
            [
                start
                for start in range(0, 2 * IN_RATE, WINDOW)
                if policy.due(start, start + WINDOW, voiced=True, agent_speaking=True)
            ]
        )
    assert asked[0] == asked[1] != []
