"""What a caller notices: onsets, stops, holes; by the sound and the times it came at."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.callers.clip import FRAME, RATE, Pcm
from loadtest.callers.ear import Ear

pytestmark = pytest.mark.unit


def loud(n: int = FRAME) -> Pcm:
    return np.full(n, 8000, np.int16)


def play(ear: Ear, start: float, frames: int, reply: str = "a") -> None:
    for k in range(frames):
        ear.play(loud(), start + k * 0.02, reply)


def test_the_first_loud_sample_counts_not_the_first_piece() -> None:
    ear = Ear()
    pcm = np.concatenate([np.zeros(2 * FRAME, np.int16), loud()])
    ear.play(pcm, 1.0, "a")
    assert ear.onset_after(0.5) == pytest.approx(1.04)
    assert ear.onset_after(1.05) is None


def test_pieces_that_come_early_are_heard_after_one_another() -> None:
    ear = Ear()
    ear.play(loud(RATE), 1.0, "a")
    ear.play(loud(RATE), 1.1, "a")
    assert ear.stretches[0].end_s == pytest.approx(3.0)
    assert len(ear.stretches) == 1
    assert not ear.gaps


def test_time_without_sound_in_a_reply_is_a_hole_between_two_replies_it_is_not() -> None:
    ear = Ear()
    play(ear, 1.0, 10)
    play(ear, 1.3, 10)
    assert [round(seconds, 3) for _, seconds in ear.gaps] == [0.1]
    play(ear, 5.0, 5, "b")
    assert len(ear.gaps) == 1
    play(ear, 5.12, 5, "b")  # 20 ms late
    assert len(ear.gaps) == 1


def test_what_is_cut_is_not_heard_and_a_hold_is_no_hole() -> None:
    ear = Ear()
    ear.play(loud(RATE), 1.0, "a")
    ear.cut(1.3)
    assert ear.stretches[0].end_s == pytest.approx(1.3)
    play(ear, 2.0, 10)  # the same reply goes on
    assert not ear.gaps
    assert len(ear.stretches) == 2


def test_a_stretch_that_lies_behind_the_cut_is_gone() -> None:
    ear = Ear()
    ear.play(np.concatenate([loud(), np.zeros(RATE, np.int16), loud()]), 1.0, "a")
    assert len(ear.stretches) == 2
    ear.cut(1.5)
    assert len(ear.stretches) == 1
    assert ear.stretches[0].end_s == pytest.approx(1.02)


def test_a_stop_is_the_last_sound_before_a_long_pause() -> None:
    ear = Ear()
    play(ear, 1.0, 10)  # to 1.2
    play(ear, 1.5, 10)  # to 1.7: a pause of 0.3 s inside
    play(ear, 3.0, 10, "b")
    assert ear.stopped_after(1.1, 0.6) == pytest.approx(1.7)
    assert ear.stopped_after(1.1, 0.2) == pytest.approx(1.2)
    assert ear.stopped_after(2.0, 0.6) == 2.0


def test_replies_that_the_call_was_not_told_of_are_counted() -> None:
    ear = Ear()
    ear.own("a")
    play(ear, 1.0, 3, "a")
    assert ear.foreign == 0
    play(ear, 2.0, 2, "b")
    assert ear.foreign == 2


def test_a_line_that_never_pauses_has_holes_only_where_there_was_sound() -> None:
    ear = Ear()
    ear.gap(0.5, 1.0)
    assert not ear.gaps
    ear.frame(loud(), 1.0)
    ear.gap(1.02, 0.03)
    ear.gap(1.02, 0.05)
    assert ear.gaps == [(1.02, 0.05)]


def test_the_sound_of_a_part_of_the_call() -> None:
    ear = Ear()
    play(ear, 1.0, 5)
    play(ear, 2.0, 5, "b")
    assert len(ear.between(0.0, 1.5)) == 5 * FRAME
    assert len(ear.between(3.0, 9.0)) == 0
