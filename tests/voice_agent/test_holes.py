"""Sound that runs out in the middle of a reply is counted where a caller would hear it."""

from __future__ import annotations

import numpy as np
import pytest

from voice_agent.playout import HOLE_TICKS, Playout
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord
from voice_agent.types import FRAME_MS, OUT_FRAME, ReplyId

pytestmark = pytest.mark.unit

REPLY = ReplyId("c", 1)
CLAUSE = Clause(0, "hello", (0, 5), (SpokenWord("hello", (0, 5)),))


def played(*ticks: int) -> Playout:
    """Sound for so many ticks, then none for so many, and so on; the reply ends after that."""
    playout = Playout()
    playout.begin(REPLY)
    for i, n in enumerate(ticks):
        if i % 2 == 0:
            piece = AudioPiece(np.ones(n * OUT_FRAME, np.int16), (), False)
            playout.push(REPLY, CLAUSE, piece)
        for _ in range(n):
            playout.tick()
    playout.end(REPLY)
    playout.tick()
    return playout


def test_a_hole_is_longer_than_40_ms() -> None:
    assert (HOLE_TICKS - 1) * FRAME_MS == 40
    assert played(5, HOLE_TICKS - 1, 5).holes(REPLY) == 0
    assert played(5, HOLE_TICKS, 5).holes(REPLY) == 1


def test_each_hole_counts_once_however_long() -> None:
    assert played(5, 50, 5, 4, 5).holes(REPLY) == 2


def test_waiting_for_the_first_sound_and_a_hold_are_none() -> None:
    playout = Playout()
    playout.begin(REPLY)
    for _ in range(20):
        playout.tick()
    playout.push(REPLY, CLAUSE, AudioPiece(np.ones(OUT_FRAME * 5, np.int16), (), True))
    playout.tick()
    playout.hold()
    for _ in range(20):
        playout.tick()
    assert playout.holes(REPLY) == 0
    assert playout.holes(ReplyId("c", 2)) == 0
