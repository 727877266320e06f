"""Packets as a receiver hears them."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.media.g711 import decode_ulaw, encode_ulaw
from loadtest.callers.clip import FRAME
from loadtest.callers.ear import Ear
from loadtest.callers.rtp import BUFFER_S, RtpEar, header, parse, ulaw_decode, ulaw_encode

pytestmark = pytest.mark.unit

LOUD = np.full(FRAME, 8000, np.int16)


def test_mu_law_is_the_server_s() -> None:
    every = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)
    codes = bytes(range(256))
    assert np.array_equal(ulaw_decode(codes), decode_ulaw(codes))
    heard = ulaw_decode(ulaw_encode(every)).astype(int)
    theirs = decode_ulaw(encode_ulaw(every)).astype(int)
    wrong, worst = np.abs(heard - every), np.abs(theirs - every)
    assert wrong.max() <= worst.max()


def test_a_header_comes_apart_as_it_was_put_together() -> None:
    packet = header(0, 70_000, 1 << 33, 7) + b"abc"
    assert parse(packet) == (0, 70_000 & 0xFFFF, 0, b"abc")
    with_source = bytes([0x81]) + packet[1:12] + b"\0\0\0\1" + b"abc"
    assert parse(with_source) == parse(packet)
    extended = bytes([0x90]) + packet[1:12] + b"\0\0\0\1" + b"\0" * 4 + b"abc"
    assert parse(extended) == parse(packet)
    for broken in (b"", packet[:11], b"\x40" + packet[1:], bytes([0x90]) + packet[1:12] + b"\0"):
        assert parse(broken) is None


def send(rtp: RtpEar, n: int, arrivals: dict[int, float], skip: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    for k in range(n):
        if k not in skip:
            at = arrivals.get(k, 10.0 + 0.02 * k)
            rtp.add((65_530 + k) & 0xFFFF, (160 * k - 480) & 0xFFFFFFFF, LOUD, at)


def test_packets_in_time_make_no_hole_over_both_wraps() -> None:
    ear = Ear()
    send(RtpEar(ear, 8000), 50, {7: 10.0 + 0.02 * 7 + 0.05})
    assert not ear.gaps
    assert ear.pieces == 50
    assert ear.stretches[0].start_s == pytest.approx(10.0 + BUFFER_S)
    assert ear.stretches[0].end_s == pytest.approx(10.0 + BUFFER_S + 1.0)


def test_a_late_packet_is_a_hole_and_the_buffer_deeper_from_then_on() -> None:
    ear = Ear()
    late = dict.fromkeys(range(20, 28), 10.0 + 0.02 * 20 + 0.16)
    send(RtpEar(ear, 8000), 50, late)
    assert [round(seconds, 3) for _, seconds in ear.gaps] == [0.1]
    assert ear.stretches[-1].end_s == pytest.approx(10.0 + BUFFER_S + 0.1 + 1.0)


def test_lost_packets_are_holes_from_three_on() -> None:
    ear = Ear()
    rtp = RtpEar(ear, 8000)
    send(rtp, 50, {}, skip={10, 20, 21, 22})
    assert rtp.lost == 4
    assert [round(seconds, 3) for _, seconds in ear.gaps] == [0.06]


def test_what_comes_twice_or_after_its_successor_is_dropped() -> None:
    ear = Ear()
    rtp = RtpEar(ear, 8000)
    for k in (0, 1, 1, 3, 2, 4):
        rtp.add(k, 160 * k, LOUD, 10.0 + 0.02 * k)
    assert ear.pieces == 4
