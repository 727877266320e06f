"""Real Opus through a lossy channel: what is heard is the speaker, at 16 kHz and in time."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from gateway.media.jitter import Kind
from gateway.media.opus import SILENT_BYTES, Encoder
from gateway.media.receive import OpusReceiver
from gateway.media.resample import Resampler
from tests.support.clips import clip, transcripts
from tests.support.fake_call import tone
from tests.support.lossy_channel import Arrivals, channel, stalled, ticks
from voice_agent.types import FRAME_MS, IN_RATE, OUT_FRAME, SILENT_OUT, FrameFlag, Pcm16

pytestmark = pytest.mark.unit

TICK = 960


def speech(seconds: float) -> Pcm16:
    """24 kHz: the clips one after the other, again and again."""
    pcm = np.concatenate([clip(name) for name in transcripts()])
    n = int(seconds * IN_RATE)
    return Resampler(IN_RATE, 24_000).push(np.tile(pcm, n // len(pcm) + 1)[:n])


def packets(pcm: Pcm16, **settings: int) -> list[bytes]:
    encoder = Encoder(**settings)
    return [encoder.encode(pcm[i : i + OUT_FRAME]) for i in range(0, len(pcm), OUT_FRAME)]


def receive(payloads: list[bytes], arrivals: Arrivals) -> tuple[Pcm16, list[FrameFlag]]:
    receiver, heard, flags = OpusReceiver(), [], []

    def arrive(n: int, at: float) -> None:
        receiver.add(n * TICK, payloads[n], at)

    for _ in ticks(arrivals, len(payloads), arrive):
        frame = receiver.frame()
        heard.append(frame.pcm)
        flags.append(frame.flag)
    return np.concatenate(heard), flags


def test_speech_over_a_bad_line_is_decoded_or_recovered() -> None:
    sent = packets(speech(60.0))
    _, flags = receive(sent, channel(len(sent), seed=1))
    flags = flags[100:]
    concealed = flags.count(FrameFlag.CONCEALED) / len(flags)
    good = sum(f in (FrameFlag.RECEIVED, FrameFlag.RECOVERED) for f in flags) / len(flags)
    assert flags.count(FrameFlag.RECOVERED) > 0.02 * len(flags)
    assert good >= 0.97
    assert concealed <= 0.03


def test_twenty_minutes_of_real_packets_over_a_bad_line() -> None:
    """Where a lost packet's copy is depends on the encoder: no copy of what it took for silence."""
    sent, minute = packets(speech(60.0)), 3000
    receiver = OpusReceiver()
    kinds: list[Kind] = []

    def arrive(n: int, at: float) -> None:
        receiver.add(n * TICK, sent[n % len(sent)], at)

    for _ in ticks(channel(20 * minute, seed=2), 20 * minute, arrive):
        kind = Kind.SKIP
        while kind is Kind.SKIP:
            kind = receiver.jitter.pop().kind
        kinds.append(kind)
    kinds = kinds[500:]
    missing = [kind in (Kind.CONCEAL, Kind.SILENCE) for kind in kinds]
    assert sum(missing) / len(kinds) <= 0.03
    minutes = [missing[i : i + minute] for i in range(0, len(missing), minute)]
    runs = [max((len(list(g)) for m, g in groupby(one) if m), default=0) for one in minutes]
    assert sum(run > 3 for run in runs) <= 0.05 * len(runs)


def test_the_join_of_what_was_left_out_does_not_click() -> None:
    n = 500
    pcm = tone(n * OUT_FRAME, 312.5)  # a packet left out turns its phase by 90 degrees
    sent = packets(pcm)
    clean = channel(n, seed=1, loss=0.0, jitter_ms=0.0)
    heard, flags = receive(sent, stalled(clean, 2_000.0, 400.0))
    start = next(i for i, f in enumerate(flags[150:], 150) if f is FrameFlag.RECEIVED)
    after = heard[(start + 5) * 320 : 400 * 320].astype(np.float64)
    step = np.abs(np.diff(after)).max()
    steepest = 8000 * 2 * np.pi * 312.5 / IN_RATE
    assert step < 1.5 * steepest  # a hard join of a tone's ends would jump by up to 16,000
    receiver_back = heard[-100 * 320 :]
    assert np.abs(receiver_back).max() > 6000


def test_silence_is_not_sent_where_both_want_it_so() -> None:
    talk, pause = speech(2.0), np.tile(SILENT_OUT, 150)
    sent = packets(np.concatenate([talk, pause, talk]), dtx=True)
    small = [len(p) <= SILENT_BYTES for p in sent]
    assert sum(small[: 2000 // FRAME_MS]) < 30
    quiet = small[2400 // FRAME_MS : 5000 // FRAME_MS]
    assert sum(quiet) > 0.9 * len(quiet)
    first_only = [n for n in range(len(sent)) if not (small[n] and n and small[n - 1])]
    arrivals = [(n * 20.0, n) for n in first_only]
    heard, flags = receive(sent, arrivals)
    assert flags[10:].count(FrameFlag.CONCEALED) == 0
    assert flags.count(FrameFlag.SILENCE) > 0.8 * len(quiet)
    again = heard[-(len(talk) * 2 // 3) :].astype(np.float64)  # the second talk, whole
    first = heard[: len(talk) * 2 // 3].astype(np.float64)
    assert np.sqrt((again**2).mean()) > 0.8 * np.sqrt((first**2).mean())
