"""A client's player that records what it plays, and where a recording ends in the sound sent.

The recording is the ground truth of what was heard: nothing in it comes from the server's counters.
"""

from __future__ import annotations

import numpy as np

from voice_agent.types import OUT_RATE, Pcm16

PER_MS = OUT_RATE // 1000
TAIL = OUT_RATE * 3 // 2  # of a recording, to be found again


class Player:
    """Begins `buffer_ms` after the first sound came, then plays without a gap while there is any;
    after a gap it waits for its buffer again. Times in ms of the client's clock."""

    def __init__(self, buffer_ms: int) -> None:
        self._buffer_ms = buffer_ms
        self._frames: list[tuple[float, Pcm16]] = []  # when each begins to be played
        self._free_ms = 0.0

    def receive(self, now_ms: float, pcm: Pcm16) -> None:
        """pcm: int16 [n] at 24 kHz."""
        begins = self._free_ms if now_ms < self._free_ms else now_ms + self._buffer_ms
        self._frames.append((begins, pcm))
        self._free_ms = begins + len(pcm) / PER_MS

    def stop(self, now_ms: float) -> Pcm16:
        """Drop what is not played yet; returns all that was, int16 [n], gaps left out."""
        played = [pcm[: max(0, round((now_ms - at) * PER_MS))] for at, pcm in self._frames]
        self._frames, self._free_ms = [], 0.0
        return np.concatenate(played) if played else np.zeros(0, np.int16)


def end_of(recording: Pcm16, sound: Pcm16) -> int:
    """The sample of `sound` up to which `recording` has played it, by normalised cross-correlation
    of the recording's end; 0 for one without any sound."""
    tail = recording[-TAIL:].astype(np.float64)
    if not tail.any():
        return 0
    whole = np.concatenate([np.zeros(len(tail)), sound.astype(np.float64)])
    n = 1 << (len(whole) + len(tail)).bit_length()
    spectrum = np.fft.rfft(whole, n) * np.conj(np.fft.rfft(tail, n))
    product = np.fft.irfft(spectrum, n)[: len(whole) - len(tail) + 1]
    energy = np.concatenate([[0.0], np.cumsum(np.square(whole))])
    power = energy[len(tail) :] - energy[: len(energy) - len(tail)]
    floor = 1e-3 * float(np.square(tail).sum())
    return int(np.argmax(product / np.sqrt(np.maximum(power, floor))))
