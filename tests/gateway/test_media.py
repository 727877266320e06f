"""Codecs and rates: lengths, round trips against references, and no state shared."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.media import g711
from gateway.media.opus import Decoder, Encoder, OpusError, has_fec, packet_samples
from gateway.media.resample import Resampler
from tests.support.fake_call import tone
from voice_agent.errors import InternalError

pytestmark = pytest.mark.unit

RATES = [(24_000, 16_000), (8_000, 16_000), (24_000, 8_000), (16_000, 16_000), (48_000, 16_000)]


@pytest.mark.parametrize(("rate_in", "rate_out"), RATES)
def test_every_second_in_is_a_second_out_whatever_the_chunks(rate_in: int, rate_out: int) -> None:
    rng = np.random.default_rng(0)
    pcm = rng.integers(-20_000, 20_000, rate_in, dtype=np.int16)
    whole = Resampler(rate_in, rate_out).push(pcm)
    assert len(whole) == rate_out
    stream, parts, at = Resampler(rate_in, rate_out), [], 0
    while at < len(pcm):
        n = int(rng.integers(1, 700))
        parts.append(stream.push(pcm[at : at + n]))
        at += n
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize(("rate_in", "rate_out"), RATES)
def test_resampling_agrees_with_soxr_in_the_voice_band(rate_in: int, rate_out: int) -> None:
    t = np.arange(rate_in) / rate_in
    pcm = (6000 * (np.sin(2 * np.pi * 300 * t) + np.sin(2 * np.pi * 2700 * t))).astype(np.int16)
    ours = Resampler(rate_in, rate_out).push(pcm).astype(np.float64)
    theirs = soxr.resample(pcm, rate_in, rate_out, quality="VHQ").astype(np.float64)
    middle = slice(rate_out // 4, rate_out * 3 // 4)
    spectra = [np.abs(np.fft.rfft(x[middle] * np.hanning(rate_out // 2))) for x in (ours, theirs)]
    assert np.max(np.abs(spectra[0] - spectra[1])) < 0.01 * np.max(spectra[1])


def test_what_the_lower_rate_cannot_hold_is_removed() -> None:
    t = np.arange(24_000) / 24_000
    pcm = (10_000 * np.sin(2 * np.pi * 5_500 * t)).astype(np.int16)
    out = Resampler(24_000, 8_000).push(pcm)[200:]
    assert np.abs(out).max() < 10_000 * 10 ** (-50 / 20)


def test_a_click_is_not_delayed_by_more_than_three_milliseconds() -> None:
    pcm = np.zeros(24_000, np.int16)
    pcm[12_000] = 30_000
    out = Resampler(24_000, 16_000).push(pcm)
    assert 0 <= int(np.argmax(np.abs(out))) - 8_000 <= 3 * 16


def _reference_ulaw(code: int) -> int:
    """The formula of G.711, one code at a time."""
    code = ~code & 0xFF
    value = (((code & 15) << 3) + 132 << ((code >> 4) & 7)) - 132
    return -value if code & 128 else value


def _reference_alaw(code: int) -> int:
    code ^= 0x55
    exponent, value = (code >> 4) & 7, ((code & 15) << 4) + 8
    if exponent:
        value = (value + 256) << (exponent - 1)
    return value if code & 128 else -value


@pytest.mark.parametrize(
    ("decode", "encode", "reference"),
    [
        (g711.decode_ulaw, g711.encode_ulaw, _reference_ulaw),
        (g711.decode_alaw, g711.encode_alaw, _reference_alaw),
    ],
)
def test_g711_tables(decode, encode, reference) -> None:  # type: ignore[no-untyped-def]
    codes = bytes(range(256))
    levels = decode(codes)
    assert levels.tolist() == [reference(code) for code in codes]
    # re-encoding a level gives the level back (mu-law has two zeros)
    np.testing.assert_array_equal(decode(encode(levels)), levels)
    # every int16 goes to a nearest level, within half a step
    every = np.arange(-32_768, 32_768, dtype=np.int32).astype(np.int16)
    sorted_levels = np.unique(levels.astype(np.int32))
    got = decode(encode(every)).astype(np.int32)
    error = np.abs(got - every.astype(np.int32))
    step = np.diff(sorted_levels)
    allowed = np.empty(len(every))
    position = np.clip(np.searchsorted(sorted_levels, every), 1, len(step)) - 1
    allowed = step[position]
    beyond = (every > sorted_levels[-1]) | (every < sorted_levels[0])
    assert np.all(error[~beyond] <= allowed[~beyond])


def test_opus_there_and_back() -> None:
    encoder, decoder = Encoder(), Decoder()
    packets = [encoder.encode(tone(480, 440.0, 480 * i)) for i in range(50)]
    assert all(packet_samples(p) == 960 for p in packets)
    pcm = np.concatenate([decoder.decode(p) for p in packets])
    assert len(pcm) == 16_000
    spectrum = np.abs(np.fft.rfft(pcm[-8_000:] * np.hanning(8_000)))
    assert int(np.argmax(spectrum)) * 2 == 440


def test_fec_recovers_speech_that_concealment_cannot() -> None:
    """Bursts of noise, one in four packets lost: the copy in the next packet is nearer."""
    rng = np.random.default_rng(3)
    pcm = np.zeros(24_000, np.int16)
    for start in range(0, 24_000, 2_400):
        pcm[start : start + 1_200] = rng.normal(0, 8_000, 1_200)
    encoder = Encoder(bitrate=32_000, expected_loss_percent=30)
    packets = [encoder.encode(pcm[i : i + 480]) for i in range(0, 24_000, 480)]
    assert sum(has_fec(p) for p in packets) > len(packets) // 2

    def envelope(recover: bool) -> np.ndarray:
        decoder, out = Decoder(), []
        for i, packet in enumerate(packets):
            if i % 4 == 2 and i + 1 < len(packets):
                following = packets[i + 1]
                got = (
                    decoder.recover(following, 320)
                    if recover and has_fec(following)
                    else decoder.conceal(320)
                )
            else:
                got = decoder.decode(packet)
            out.append(np.abs(got.astype(np.float64)).mean())
        return np.array(out)

    whole = Decoder()
    clean = np.array([np.abs(whole.decode(p).astype(np.float64)).mean() for p in packets])
    lost = np.arange(len(packets)) % 4 == 2
    with_fec = np.abs(envelope(True) - clean)[lost].mean()
    without = np.abs(envelope(False) - clean)[lost].mean()
    assert with_fec < 0.7 * without


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_never_hurts_the_decoder(payload: bytes) -> None:
    decoder = Decoder()
    with contextlib.suppress(OpusError):
        assert len(decoder.decode(payload)) <= 1_920
    assert len(decoder.conceal(320)) == 320


def test_closed_codecs_say_so_and_close_twice() -> None:
    encoder, decoder = Encoder(), Decoder()
    for codec in (encoder, decoder):
        codec.close()
        codec.close()
    with pytest.raises(InternalError):
        encoder.encode(tone(480))
    with pytest.raises(InternalError):
        decoder.conceal(320)
    with pytest.raises(InternalError):
        Encoder().encode(tone(100))
