"""The jitter buffer in virtual time: order, loss, bursts, drift, pauses, wrap-around."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.media.jitter import MAX_PACKETS, JitterBuffer, Kind
from gateway.media.opus import Encoder
from gateway.media.receive import OpusReceiver
from tests.support.fake_call import tone
from tests.support.lossy_channel import Arrivals, channel, stalled, ticks
from voice_agent.types import FrameFlag

pytestmark = pytest.mark.unit

TICK = 960


def payload(n: int) -> bytes:
    return n.to_bytes(4, "big")


def run(
    arrivals: list[tuple[float, int]], ticks: int, *, first: int = 1_000, fec: bool = True
) -> tuple[JitterBuffer, list[tuple[Kind, int | None]]]:
    """arrivals: (ms, packet number). Pops every 20 ms from 0.5 ms on."""
    buffer, out, i = JitterBuffer(), [], 0
    arrivals = sorted(arrivals)
    for tick in range(ticks):
        now = tick * 20.0 + 0.5
        while i < len(arrivals) and arrivals[i][0] <= now:
            at, n = arrivals[i]
            buffer.add((first + n * TICK) % (1 << 32), payload(n), TICK, at, fec=fec)
            i += 1
        kind = Kind.SKIP
        while kind is Kind.SKIP:  # it makes no sound: the clock still needs its 20 ms
            popped = buffer.pop()
            kind = popped.kind
            n = int.from_bytes(popped.payload, "big") if popped.payload else None
            out.append((kind, n))
    return buffer, out


def played(out: list[tuple[Kind, int | None]]) -> list[int]:
    return [n for kind, n in out if kind in (Kind.PACKET, Kind.SKIP) and n is not None]


def test_a_steady_stream_plays_in_order_with_forty_milliseconds_of_depth() -> None:
    buffer, out = run([(n * 20.0, n) for n in range(200)], 200)
    assert played(out) == list(range(199))
    assert {kind for kind, _ in out[1:]} == {Kind.PACKET}
    assert buffer.target_ms == 40.0


def test_reordered_packets_play_in_order() -> None:
    arrivals = [(n * 20.0, n ^ 1 if n > 1 else n) for n in range(100)]
    _, out = run(arrivals, 100)
    assert played(out) == sorted(played(out))
    assert len(played(out)) >= 96


def test_one_loss_costs_one_frame_and_no_delay() -> None:
    buffer, out = run([(n * 20.0, n) for n in range(100) if n != 50], 100)
    kinds = [kind for kind, _ in out[1:]]
    assert kinds.count(Kind.FEC) == 1
    assert set(kinds) == {Kind.FEC, Kind.PACKET}
    assert buffer.stats.recovered == 1
    assert buffer.depth_ms <= 60


def test_without_fec_loss_is_concealed() -> None:
    buffer, out = run([(n * 20.0, n) for n in range(100) if n not in (50, 51)], 100, fec=False)
    assert [kind for kind, _ in out].count(Kind.CONCEAL) == 2
    assert buffer.depth_ms <= 60


def test_of_a_run_of_losses_the_last_comes_from_fec() -> None:
    _, out = run([(n * 20.0, n) for n in range(100) if n not in (50, 51, 52)], 100)
    kinds = [kind for kind, _ in out]
    assert kinds.count(Kind.CONCEAL) + kinds.count(Kind.FEC) == 3
    assert kinds.count(Kind.FEC) == 1


def test_a_stall_is_heard_late_not_lost_and_the_delay_is_worked_off() -> None:
    arrivals = [(n * 20.0 if n < 100 or n >= 115 else 115 * 20.0, n) for n in range(1500)]
    buffer, out = run(arrivals, 1500)
    assert sorted(played(out)) == played(out)
    assert set(range(1400)) <= set(played(out))
    assert buffer.depth_ms <= 80.0
    assert buffer.stats.skipped > 0


def test_jitter_deepens_the_buffer_and_calm_makes_it_shallow_again() -> None:
    rng = random.Random(1)
    rough = [(n * 20.0 + rng.uniform(0, 100), n) for n in range(1000)]
    calm = [(n * 20.0 + 50, n) for n in range(1000, 2500)]
    buffer, out = run(rough + calm, 1000)
    assert 100 <= buffer.target_ms <= 140
    bad = sum(kind in (Kind.CONCEAL, Kind.FEC) for kind, _ in out[100:])
    assert bad <= 0.04 * 900
    buffer, out = run(rough + calm, 2500)
    assert buffer.target_ms == 40.0
    assert buffer.depth_ms <= 80.0


def play(arrivals: Arrivals, n_ticks: int) -> tuple[JitterBuffer, list[Kind], list[float]]:
    """(buffer, one kind per tick, depth in ms after each tick)."""
    buffer, kinds, depths = JitterBuffer(), [], []

    def arrive(n: int, at: float) -> None:
        buffer.add(n * TICK, payload(n), TICK, at)

    for _ in ticks(arrivals, n_ticks, arrive):
        kind = Kind.SKIP
        while kind is Kind.SKIP:
            kind = buffer.pop().kind
        kinds.append(kind)
        depths.append(buffer.depth_ms)
    return buffer, kinds, depths


def share(kinds: list[Kind], *of: Kind) -> float:
    return sum(kind in of for kind in kinds) / len(kinds)


def longest(kinds: list[Kind], of: Kind) -> int:
    """Ticks in a row."""
    best = run = 0
    for kind in kinds:
        run = run + 1 if kind is of else 0
        best = max(best, run)
    return best


@pytest.mark.parametrize("seed", [1, 2])
def test_five_percent_loss_and_jitter_of_twenty_milliseconds(seed: int) -> None:
    """Twenty minutes; the goals are 97 %, 3 %, 60 ms in 95 % of minutes, 140 ms."""
    minute = 3000
    _, kinds, depths = play(channel(20 * minute, seed=seed), 20 * minute)
    kinds, depths = kinds[minute // 6 :], depths[minute // 6 :]  # it has learnt after 10 s
    assert share(kinds, Kind.PACKET, Kind.FEC) >= 0.99
    assert share(kinds, Kind.CONCEAL, Kind.SILENCE) <= 0.01
    runs = [longest(kinds[i : i + minute], Kind.CONCEAL) for i in range(0, len(kinds), minute)]
    assert sum(run > 3 for run in runs) <= 0.05 * len(runs)
    assert np.percentile(depths, 95) <= 100.0


def test_loss_makes_it_a_packet_deeper_so_that_copies_are_there() -> None:
    for loss, most in ((0.0, 0.001), (0.05, 0.006)):
        _, kinds, depths = play(channel(9000, seed=3, loss=loss), 9000)
        assert share(kinds[500:], Kind.CONCEAL) <= most
        assert (np.median(depths[500:]) > 30.0) == (loss > 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_bad_minute_the_depth_is_back_within_ten_seconds(seed: int) -> None:
    minute = 3000
    bad = channel(minute, seed=seed)
    good = [(n * 20.0 + 50.0, n) for n in range(minute, 2 * minute)]
    _, kinds, depths = play(sorted(bad + good), 2 * minute)
    assert np.percentile(depths[500:minute], 95) <= 140.0
    low = [all(depth < 80.0 for depth in depths[i : i + 50]) for i in range(minute, minute + 500)]
    assert any(low)
    assert max(depths[minute + 500 :]) < 80.0
    assert share(kinds[minute + 10 :], Kind.PACKET) >= 0.99


@pytest.mark.parametrize("stall_ms", [200.0, 500.0, 900.0])
def test_after_a_stall_the_depth_is_back_within_ten_seconds(stall_ms: float) -> None:
    arrivals = stalled(channel(2000, seed=4), 20_000.0, stall_ms)
    buffer, kinds, depths = play(arrivals, 2000)
    end = int((20_000 + stall_ms) / 20) + 1
    assert max(depths[end - 1 : end + 5]) >= stall_ms - 60
    assert np.median(depths[end + 500 : end + 600]) < 80.0
    assert share(kinds[end + 10 : end + 500], Kind.PACKET, Kind.FEC) >= 0.98
    assert buffer.stats.skipped >= stall_ms / 20 - 8


@pytest.mark.parametrize("jitter_ms", [0.0, 20.0])
@pytest.mark.parametrize("ppm", [-200, 200])
def test_clock_drift_keeps_the_depth_bounded(ppm: int, jitter_ms: float) -> None:
    n = 30 * 60 * 50
    loss = 0.05 if jitter_ms else 0.0
    arrivals = channel(n, seed=5, loss=loss, jitter_ms=jitter_ms, ppm=ppm)
    buffer, kinds, depths = play(arrivals, n)
    assert max(depths[500:]) <= 100.0
    assert buffer.stats.skipped <= 2 * n * abs(ppm) * 1e-6 + 10
    assert share(kinds, Kind.CONCEAL, Kind.SILENCE) <= 0.004


def test_a_sender_that_says_so_is_silent_and_not_lossy() -> None:
    buffer, kinds = JitterBuffer(), []
    for tick in range(300):
        n, talks = tick, tick % 100 < 50
        if talks or tick % 100 == 50 or tick % 20 == 0:  # a first small packet, then refreshes
            buffer.add(n * TICK, payload(n), TICK, n * 20.0, silent=not talks)
        kinds.append(buffer.pop().kind)
    assert share(kinds, Kind.CONCEAL, Kind.FEC) == 0.0
    assert share(kinds, Kind.PACKET) >= 0.5
    assert buffer.stats.late == 0


def test_timestamps_wrap_around() -> None:
    _, out = run([(n * 20.0, n) for n in range(100)], 100, first=(1 << 32) - 20 * TICK)
    assert played(out) == list(range(99))


def test_a_pause_of_the_sender_is_silence_and_then_speech_again() -> None:
    arrivals = [(n * 20.0, n) for n in range(50)] + [(n * 20.0, n) for n in range(150, 200)]
    _, out = run(arrivals, 200)
    kinds = [kind for kind, _ in out]
    assert kinds.count(Kind.SILENCE) > 80
    assert kinds.count(Kind.CONCEAL) <= 3
    assert set(range(49)) | set(range(150, 198)) <= set(played(out))


def test_duplicates_and_late_packets_are_counted_and_dropped() -> None:
    arrivals = [(n * 20.0, n) for n in range(50)] + [(n * 20.0 + 1, n) for n in range(10, 15)]
    arrivals += [(600.0, 3)]
    buffer, out = run(arrivals, 50)
    assert buffer.stats.duplicate + buffer.stats.late == 6
    assert played(out) == list(range(49))


def test_a_flood_is_bounded() -> None:
    buffer = JitterBuffer()
    for n in range(1000):
        buffer.add(n * TICK, payload(n), TICK, 0.0)
    assert buffer.stats.overflow == 1000 - MAX_PACKETS
    assert buffer.depth_ms <= MAX_PACKETS * 20


def test_a_sender_that_restarts_its_clock_is_heard_again() -> None:
    buffer = JitterBuffer()
    for n in range(50):
        buffer.add(10_000_000 + n * TICK, payload(n), TICK, n * 20.0)
        buffer.pop()
    got = []
    for n in range(50, 100):
        buffer.add(5_000 + (n - 50) * TICK, payload(n), TICK, n * 20.0)
        popped = buffer.pop()
        got.append(popped.kind)
    assert got.count(Kind.PACKET) > 40


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, (1 << 32) - 1), st.floats(0, 5000)), max_size=80))
def test_any_arrivals_always_yield_media(arrivals: list[tuple[int, float]]) -> None:
    buffer = JitterBuffer()
    for ts, at in arrivals:
        buffer.add(ts, b"x", TICK, at)
        assert buffer.pop().samples > 0
    for _ in range(200):
        assert buffer.pop().samples > 0


def test_the_receiver_gives_one_flagged_frame_per_tick() -> None:
    encoder, receiver = Encoder(), OpusReceiver()
    flags = []
    for n in range(60):
        packet = encoder.encode(tone(480, 440.0, n * 480))
        if n not in (30, 31):
            receiver.add(n * TICK, packet, n * 20.0)
        frame = receiver.frame()
        assert frame.pcm.shape == (320,)
        flags.append(frame.flag)
    assert flags.count(FrameFlag.RECEIVED) >= 54
    assert FrameFlag.CONCEALED in flags or FrameFlag.RECOVERED in flags
    receiver.add(61 * TICK, b"", 0.0)
    assert receiver.garbage == 1


def test_longer_packets_are_cut_into_frames() -> None:
    """40 ms packets, made by putting two 20 ms frames into one (RFC 6716, code 1 or 2)."""
    encoder, receiver = Encoder(), OpusReceiver()
    frames = [encoder.encode(tone(480, 440.0, n * 480)) for n in range(100)]
    heard = []
    for n in range(0, 100, 2):
        a, b = frames[n], frames[n + 1]
        head = bytes([a[0] & 0xFC | 2])
        size = len(a) - 1
        length = bytes([size]) if size < 252 else bytes([252 + size % 4, (size - 252) // 4])
        receiver.add(n * TICK, head + length + a[1:] + b[1:], n * 20.0)
        heard += [receiver.frame().pcm, receiver.frame().pcm]
    pcm = np.concatenate(heard)[-16_000:]
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    assert abs(int(np.argmax(spectrum)) - 440) <= 2
