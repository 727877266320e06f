"""How far a voice sinks at a pause, told from its own level and not from how loud the line is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clips import clip, transcripts
from voice_agent.types import IN_RATE, Pcm16
from voice_agent.voice_level import (
    DULL_TILT_DB,
    END,
    ENOUGH,
    HEARD,
    VoiceLevel,
    tilt_db,
)

pytestmark = pytest.mark.unit

LOUD, GAP = 1e6, 1.0


def fall(powers: list[float], since: int = 0) -> float | None:
    level = VoiceLevel()
    for power in powers:
        level.hear(power)
    return level.fall_db(since)


def test_a_voice_that_is_kept_up_has_not_fallen() -> None:
    assert fall([LOUD] * 30) == pytest.approx(0.0)


def test_a_voice_that_sinks_has_fallen_by_as_much() -> None:
    assert fall([LOUD] * 30 + [LOUD / 10] * END) == pytest.approx(10.0)


def test_a_voice_that_rises_falls_less_than_nothing() -> None:
    assert fall([LOUD / 4] * 30 + [LOUD] * END) == pytest.approx(-6.02, abs=0.01)


def test_silence_within_and_after_it_is_no_part_of_a_voice() -> None:
    whole = [LOUD] * 20 + [LOUD / 10] * END
    parted = [LOUD] * 10 + [GAP] * 40 + [LOUD] * 10 + [LOUD / 10] * END
    assert fall([*parted, GAP, GAP, GAP], 3) == pytest.approx(fall(whole))


def test_what_sounds_in_the_pause_is_not_the_end_of_the_voice() -> None:
    """A click while nobody speaks, as loud as the voice was."""
    kept_up = [LOUD] * 30
    assert fall([*kept_up, GAP, LOUD / 20, LOUD / 20], 3) == pytest.approx(0.0)


def test_a_word_is_too_short_to_tell() -> None:
    assert fall([LOUD] * (ENOUGH - 1)) is None
    assert fall([LOUD] * ENOUGH) is not None
    assert fall([]) is None
    assert fall([LOUD] * 5, 9) is None


def test_a_speech_of_its_own_begins_anew() -> None:
    level = VoiceLevel()
    for power in [LOUD] * 30:
        level.hear(power)
    level.clear()
    assert level.fall_db(0) is None


@given(
    st.lists(st.floats(1e3, 1e7), min_size=ENOUGH, max_size=HEARD + 40),
    st.floats(0.01, 100.0),
)
def test_a_louder_line_changes_nothing(powers: list[float], gain: float) -> None:
    quiet, loud = fall(powers), fall([p * gain for p in powers])
    assert (quiet is None) == (loud is None)
    if quiet is not None:
        assert loud == pytest.approx(quiet, abs=1e-6)


def turned_away(pcm: Pcm16) -> Pcm16:
    """Without most of what lies above 1.5 kHz."""
    dull = np.convolve(pcm.astype(np.float32), np.full(6, 1 / 6, np.float32), mode="same")
    return np.rint(dull).astype(np.int16)


def test_a_voice_that_turns_away_is_duller_at_any_level() -> None:
    for name in sorted(transcripts()):
        near = clip(name)[: 2 * IN_RATE]
        now_db, dull_db = tilt_db(near), tilt_db(turned_away(near))
        quiet_db = tilt_db((near // 4).astype(np.int16))
        assert now_db is not None
        assert dull_db is not None
        assert quiet_db is not None
        assert now_db > DULL_TILT_DB - 8.0, name
        assert dull_db < now_db - 7.0, name
        assert quiet_db == pytest.approx(now_db, abs=1.0)


def test_too_little_voice_is_neither_dull_nor_clear() -> None:
    assert tilt_db(np.zeros(0, np.int16)) is None
    assert tilt_db(np.zeros(IN_RATE, np.int16)) is None
    assert tilt_db(clip(sorted(transcripts())[0])[:2000]) is None
