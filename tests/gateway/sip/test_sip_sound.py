"""A call's sound between the SIP stack and our frames, at every rate it may agree on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from baresip import AudioNotActive, AudioRestarted

from gateway.sip.sound import CallSound
from voice_agent.types import FRAME_MS, OUT_FRAME, OUT_RATE, FrameFlag, Pcm16

pytestmark = pytest.mark.unit


@dataclass
class FakeAudio:
    """A stack that was agreed on `rate` and `channels`; `play` passes 20 ms of its clock."""

    rate: int = 8000
    channels: int = 1
    tx_ready: bool = True
    rx_ready: bool = True
    fault: type[Exception] | None = None
    waiting: bytes = b""
    received: bytes = b""
    sent: list[bytes] = field(default_factory=list)

    @property
    def tx_sample_rate(self) -> int:
        return self.rate

    rx_sample_rate = tx_sample_rate

    @property
    def tx_channels(self) -> int:
        return self.channels

    rx_channels = tx_channels

    @property
    def tx_buffered(self) -> int:
        return len(self.waiting)

    @property
    def rx_buffered(self) -> int:
        return len(self.received)

    def info(self) -> FakeAudio:
        if self.fault is not None:
            raise self.fault("now")
        return self

    def read(self, max_bytes: int) -> bytes:
        out, self.received = self.received[:max_bytes], self.received[max_bytes:]
        return out

    def write(self, pcm: bytes) -> int:
        self.waiting += pcm
        return len(pcm)

    def flush_tx(self) -> None:
        self.waiting = b""

    @property
    def frame(self) -> int:
        return self.rate * FRAME_MS // 1000 * self.channels * 2

    def play(self) -> None:
        out, self.waiting = self.waiting[: self.frame], self.waiting[self.frame :]
        self.sent.append(out)

    def hear(self, hz: float, at: int) -> None:
        n = self.rate * FRAME_MS // 1000
        t = (at * n + np.arange(n)) / self.rate
        wave = (8000 * np.sin(2 * np.pi * hz * t)).astype(np.int16)
        self.received += np.repeat(wave, self.channels).tobytes()


def ours(k: int, hz: float = 500.0) -> Pcm16:
    t = (k * OUT_FRAME + np.arange(OUT_FRAME)) / OUT_RATE
    return (8000 * np.sin(2 * np.pi * hz * t)).astype(np.int16)


@pytest.mark.parametrize(("rate", "channels"), [(8000, 1), (16_000, 1), (48_000, 1), (48_000, 2)])
def test_both_directions_at_every_rate(rate: int, channels: int) -> None:
    audio = FakeAudio(rate, channels)
    sound = CallSound(audio)
    heard = []
    for k in range(50):
        audio.hear(700.0, k)
        heard.append(sound.receive())
        sound.send(ours(k))
        audio.play()
    assert [f.flag for f in heard] == [FrameFlag.SILENCE] + [FrameFlag.RECEIVED] * 49
    level = np.abs(np.concatenate([f.pcm for f in heard[5:]]).astype(float)).mean()
    assert level == pytest.approx(8000 * 2 / np.pi, rel=0.02)
    sent = np.frombuffer(b"".join(audio.sent[2:]), np.int16).reshape(-1, channels)
    assert np.abs(sent.astype(float)).mean() == pytest.approx(8000 * 2 / np.pi, rel=0.02)
    assert all(len(frame) == audio.frame for frame in audio.sent), "never dry in the middle"
    spectrum = np.abs(np.fft.rfft(sent[:, 0].astype(float)))
    assert np.argmax(spectrum) * rate / len(sent) == pytest.approx(500.0, abs=5.0)


def test_one_frame_waits_in_the_stack_and_no_more_than_four() -> None:
    audio = FakeAudio()
    sound = CallSound(audio)
    for k in range(10):
        sound.send(ours(k))
        audio.play()
    assert audio.tx_buffered == audio.frame
    for k in range(10):  # the stack's clock stands still
        sound.send(ours(k))
    assert audio.tx_buffered <= 5 * audio.frame
    assert sound.unsent == 10 - 4
    assert not sound.sent_all
    sound.cut()
    assert sound.sent_all


def test_a_change_of_codec_goes_on_at_the_new_rate() -> None:
    audio = FakeAudio(8000)
    sound = CallSound(audio)
    for k in range(20):
        audio.hear(700.0, k)
        sound.receive()
    audio.fault = AudioRestarted
    assert sound.receive().flag is FrameFlag.RECEIVED, "the reserve"
    assert sound.receive().flag is FrameFlag.CONCEALED
    sound.send(ours(0))
    assert sound.unsent == 1
    audio.fault, audio.rate, audio.received = None, 16_000, b""
    flags = []
    for k in range(20):
        audio.hear(700.0, k)
        flags.append(sound.receive().flag)
        sound.send(ours(k))
        audio.play()
    assert flags[5:] == [FrameFlag.RECEIVED] * 15
    assert len(audio.sent[-1]) == 640


def test_before_the_media_is_up_there_is_silence() -> None:
    audio = FakeAudio(fault=AudioNotActive)
    sound = CallSound(audio)
    assert sound.receive().flag is FrameFlag.SILENCE
    sound.send(ours(0))
    assert sound.sent_all
    audio.fault, audio.tx_ready, audio.rx_ready = None, False, False
    assert sound.receive().flag is FrameFlag.SILENCE
    sound.send(ours(0))
    assert audio.waiting == b""
