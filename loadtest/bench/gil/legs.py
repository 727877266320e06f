"""`python -m loadtest.bench.gil.legs FD`: a media worker whose callers are recordings.

Everything but the network is a real worker's: its players, clock and link.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Any

import numpy as np

from gateway.workers import __main__ as entry
from gateway.workers.host import Host, Tell
from gateway.workers.link import Message
from voice_agent.audio import read_wav
from voice_agent.types import IN_FRAME, IN_RATE, SILENT_IN, Frame, Pcm16

KIND = "bench"
AUDIBLE = 50
QUIET_FRAMES = (50, 150)
"""Of ours, before the caller speaks again: 1 to 3 s."""
DEAF_FRAMES = 500
"""Without an answer the caller speaks again after 10 s."""


class Leg:
    """A caller who speaks, listens until we are silent, and speaks again."""

    def __init__(self, tell: Tell, clips: list[Pcm16], rng: random.Random) -> None:
        self._tell = tell
        self._clips = clips
        self._rng = rng
        self._clip = clips[0][:0]
        self._at = 0
        self._waits = rng.randint(25, 250)  # frames before the next words

    async def open(self, offer: Message) -> Message:
        self._tell("connected")
        return {}

    def frame(self) -> Frame:
        pcm = self._clip[self._at : self._at + IN_FRAME]
        if len(pcm) == IN_FRAME:
            self._at += IN_FRAME
            return Frame(pcm)
        self._waits -= 1
        if self._waits <= 0:
            self._clip, self._at = self._rng.choice(self._clips), 0
            self._waits = DEAF_FRAMES
        return Frame(SILENT_IN)

    def send(self, pcm: Pcm16) -> None:
        if len(self._clip) > self._at + IN_FRAME:
            return
        if np.abs(pcm[::16]).max() > AUDIBLE:
            self._waits = self._rng.randint(*QUIET_FRAMES)

    def told(self, message: Message) -> None:
        """Events for a page: nobody reads them."""

    async def close(self) -> None: ...


def _recordings(folder: Path) -> list[Pcm16]:
    clips = [read_wav(path, IN_RATE).pcm for path in sorted(folder.glob("*.wav"))]
    return [clip for clip in clips if 1.5 <= len(clip) / IN_RATE <= 8.0]


async def serve(sock: socket.socket, start: dict[str, Any]) -> None:
    clips = _recordings(Path(start["clips"]))
    rng = random.Random(start["seed"])
    await Host(lambda tell: Leg(tell, clips, rng)).run(sock)


if __name__ == "__main__":
    entry.KINDS[KIND] = "loadtest.bench.gil.legs"
    entry.main()
