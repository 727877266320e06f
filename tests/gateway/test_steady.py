"""PCM from a telephone stack to frames: what was lost, late or paused is told apart by count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.media.conceal import Concealer
from gateway.media.steady import MAX_HELD, Steady
from voice_agent.types import IN_FRAME, IN_RATE, Frame, FrameFlag, Pcm16

pytestmark = pytest.mark.unit


def numbered(n: int) -> Pcm16:
    return np.full(IN_FRAME, 1000 + n, np.int16)


def play(ticks: list[list[int]]) -> tuple[Steady, list[Frame]]:
    """ticks: the packets that came during each."""
    steady, out = Steady(), []
    for packets in ticks:
        for n in packets:
            steady.push(numbered(n))
        out.append(steady.frame())
    return steady, out


def order(out: list[Frame]) -> list[int | str]:
    """Packet numbers, by each frame's last sample, which no cross-fade reaches."""
    short = {FrameFlag.CONCEALED: "lost", FrameFlag.SILENCE: "silent"}
    return [short.get(f.flag, int(f.pcm[-1]) - 1000) for f in out]


def test_a_steady_stream_is_one_frame_late() -> None:
    _, out = play([[n] for n in range(50)])
    assert order(out) == ["silent", *range(49)]


def test_a_lost_packet_is_concealed_in_its_place() -> None:
    _, out = play([[n] if n != 20 else [] for n in range(50)])
    assert order(out) == ["silent", *range(20), "lost", *range(21, 49)]


def test_two_lost_in_a_row_are_both_concealed() -> None:
    _, out = play([[n] if n not in (20, 21) else [] for n in range(50)])
    assert order(out) == ["silent", *range(20), "lost", "lost", *range(22, 49)]


def test_a_late_packet_is_not_taken_for_a_lost_one() -> None:
    _, out = play([[n] if n not in (20, 21) else [[], [20, 21]][n - 20] for n in range(50)])
    assert order(out) == ["silent", *range(49)]


@pytest.mark.parametrize("packet_ticks", [2, 3])
def test_longer_packets_play_without_holes(packet_ticks: int) -> None:
    ticks = [list(range(n, n + packet_ticks)) if n % packet_ticks == 0 else [] for n in range(60)]
    _, out = play(ticks)
    assert [n for n in order(out) if isinstance(n, int)] == list(range(60))


def test_ten_millisecond_packets_join_to_frames() -> None:
    steady, flags = Steady(), []
    for _ in range(30):
        for _ in range(2):
            steady.push(np.full(IN_FRAME // 2, 500, np.int16))
        flags.append(steady.frame().flag)
    assert flags == [FrameFlag.SILENCE] + [FrameFlag.RECEIVED] * 29


def test_a_sender_that_pauses_becomes_silence_and_starts_again_whole() -> None:
    _, out = play([[n] if n < 10 else [] for n in range(20)] + [[n] for n in range(20, 30)])
    assert order(out) == [
        "silent", *range(10), *["lost"] * 3, *["silent"] * 7, *range(20, 29),
    ]  # fmt: skip


def test_a_fast_clock_is_worked_off_in_quiet_frames() -> None:
    quiet = np.zeros(IN_FRAME, np.int16)
    steady, depths = Steady(), []
    for tick in range(3000):
        steady.push(quiet)
        if tick % 40 == 0:  # 2.5 % too many
            steady.push(quiet)
        steady.frame()
        depths.append(steady.held_ms)
    assert steady.stats.skipped >= 70
    assert max(depths) <= 100.0
    assert steady.stats.overflow == 0


def test_a_burst_after_a_stall_of_the_reader_is_bounded() -> None:
    steady = Steady()
    for n in range(60):
        steady.push(numbered(n))
    assert steady.held_ms <= MAX_HELD * 1000 / IN_RATE
    assert steady.stats.overflow == 50


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=50, max_size=200))
def test_every_packet_that_came_in_time_is_played_once_and_in_order(came: list[bool]) -> None:
    steady, out = play([[n] if ok else [] for n, ok in enumerate(came)] + [[], []])
    numbers = [n for n in order(out) if isinstance(n, int)]
    assert numbers == [n for n, ok in enumerate(came) if ok]
    assert steady.stats.overflow == 0


def voice(seconds: float = 1.0, f0: float = 120.0) -> Pcm16:
    """A vowel: harmonics of f0."""
    t = np.arange(int(seconds * IN_RATE)) / IN_RATE
    wave = sum(np.sin(2 * np.pi * f0 * k * t) / k for k in range(1, 12))
    return (wave * 6000).astype(np.int16)


@pytest.mark.parametrize("f0", [90.0, 120.0, 180.0])
def test_concealment_is_nearer_to_the_lost_sound_than_silence_is(f0: float) -> None:
    pcm = voice(f0=f0)
    concealer = Concealer()
    made, lost = [], []
    for k in range(len(pcm) // IN_FRAME):
        frame = pcm[k * IN_FRAME : (k + 1) * IN_FRAME]
        if k % 10 == 9:
            made.append(concealer.lost().astype(float))
            lost.append(frame.astype(float))
        else:
            concealer.good(frame)
    error = np.mean((np.concatenate(made) - np.concatenate(lost)) ** 2)
    assert error < 0.2 * np.mean(np.concatenate(lost) ** 2)


def test_concealment_joins_without_a_click_and_fades_out() -> None:
    pcm = voice()
    concealer = Concealer()
    out = [
        concealer.good(pcm[: IN_FRAME * 20][k * IN_FRAME : (k + 1) * IN_FRAME]) for k in range(20)
    ]
    step = max(np.abs(np.diff(frame.astype(int))).max() for frame in out)
    gap = [concealer.lost() for _ in range(5)]
    back = [concealer.good(pcm[k * IN_FRAME : (k + 1) * IN_FRAME]) for k in range(25, 28)]
    joined = np.concatenate([out[-1], *gap, *back]).astype(int)
    assert np.abs(np.diff(joined)).max() <= 1.5 * step
    levels = [float(np.abs(g.astype(float)).mean()) for g in gap]
    assert levels[0] > levels[1] > levels[2] > 0.0
    assert levels[3] == levels[4] == 0.0
    np.testing.assert_array_equal(back[-1], pcm[27 * IN_FRAME : 28 * IN_FRAME])


def test_concealing_before_anything_came_is_silence() -> None:
    assert not Concealer().lost().any()
