"""What a reply tells the engine while it is spoken."""

from __future__ import annotations

import pytest

from tests.support.fakes import WORD_OUT, Scene, say, silence
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.unit

LONG = "one two three four five six, seven eight nine ten eleven twelve, thirteen fourteen."


def test_the_engine_learns_how_much_speech_is_buffered_after_every_piece_of_sound() -> None:
    scene = Scene(LONG)
    scene.thinker.token_s = 0.1  # the model goes on while its first words are heard
    scene.play(silence(500), say("hello"), tail_ms=6000)
    sounds = [t for t, tick in scene.frames if tick.audible]
    told = [(t, due) for t, due in scene.thinker.deadlines if t > sounds[0]]
    assert len(told) > 6, "once a clause would be three times"
    ends = sounds[-1] + 0.02
    for t, due in told:
        assert t <= due <= ends + 0.02
    assert max(due - t for t, due in told) > 1.0, "words are heard more slowly than they are made"


def test_what_waits_for_the_voice_counts_as_speech_that_is_there() -> None:
    """The voice is slow, the model is not: what it has written is enough for seconds."""
    scene = Scene(LONG)
    scene.thinker.token_s = 0.02
    scene.speaker.delay_s = 1.0
    scene.play(silence(500), say("hello"), tail_ms=9000)
    sounds = [t for t, tick in scene.frames if tick.audible]
    told = [(t, due) for t, due in scene.thinker.deadlines if t >= sounds[0] - 0.02]
    word_s = WORD_OUT / OUT_RATE
    assert told
    for t, due in told:
        heard = sum(word_s for at in sounds[:: round(word_s / 0.02)] if at <= t)
        assert due - t == pytest.approx(14 * word_s - heard, abs=2.5 * word_s)


def test_before_the_first_sound_only_the_words_to_come_of_a_cut_clause_are_urgent() -> None:
    scene = Scene(LONG)
    scene.thinker.token_s = 0.1
    scene.speaker.delay_s = 2.0
    scene.play(silence(500), say("hello"), tail_ms=9000)
    first = next(t for t, tick in scene.frames if tick.audible)
    before = [due for t, due in scene.thinker.deadlines if t < first - 0.5]
    assert before == sorted(before), "the more is cut, the later is more needed"
    assert before[-1] - before[0] > 1.0
