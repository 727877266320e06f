"""What a reply tells the engine while it is spoken."""

from __future__ import annotations

import pytest

from tests.support.fakes import Scene, say, silence

pytestmark = pytest.mark.unit

LONG = "one two three four five six, seven eight nine ten eleven twelve, thirteen fourteen."


def test_the_engine_learns_how_much_speech_is_buffered_after_every_piece_of_sound() -> None:
    scene = Scene(LONG)
    scene.thinker.token_s = 0.1  # the model goes on while its first words are heard
    scene.play(silence(500), say("hello"), tail_ms=6000)
    sounds = [t for t, tick in scene.frames if tick.audible]
    told = [(t, due) for t, due in scene.thinker.deadlines if t > sounds[0]]
    assert len({due for _, due in told}) > 6, "once a clause would be three times"
    ends = sounds[-1] + 0.02
    for t, due in told:
        assert t <= due <= ends + 0.02
    assert max(due - t for t, due in told) > 1.0, "words are heard more slowly than they are made"
