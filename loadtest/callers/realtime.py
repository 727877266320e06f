"""One caller over the OpenAI Realtime protocol: a microphone in real time, and a clock.

Speaks recorded clips in 20 ms frames that never stop, and times what comes back as a player without
a buffer would play it. Imports nothing of the server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import wave
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
import websockets
from numpy.typing import NDArray

RATE = 24_000
FRAME = RATE // 50
LOUD = 0.01 * 32768  # -40 dBFS: quieter than this is not sound
Pcm = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class Clip:
    """pcm: int16 [n] at 24 kHz; last: sample after the last voiced one."""

    name: str
    pcm: Pcm
    last: int


def load_clip(path: Path) -> Clip:
    """A mono 16-bit WAV. Voiced: 10 ms frames within 20 dB of the loud level, lone clicks apart."""
    with wave.open(str(path)) as w:
        if (w.getnchannels(), w.getsampwidth()) != (1, 2):
            raise ValueError(f"{path}: a mono 16-bit WAV is needed")
        raw = np.frombuffer(w.readframes(w.getnframes()), np.int16)
        pcm = soxr.resample(raw, w.getframerate(), RATE) if w.getframerate() != RATE else raw
    n = RATE // 100
    frames = pcm[: len(pcm) // n * n].reshape(-1, n).astype(np.float64)
    db = 20 * np.log10(np.sqrt((frames**2).mean(axis=1)) + 1e-9)
    voiced = np.flatnonzero(db > np.percentile(db, 95) - 20)
    known = set(voiced.tolist())
    voiced = np.array([i for i in voiced if i - 1 in known or i + 1 in known])
    return Clip(path.stem, pcm.astype(np.int16), int(voiced[-1] + 1) * n)


@dataclass(slots=True)
class Turn:
    """Seconds. v2v: last voiced sample sent to the first loud sample played; None: no answer."""

    clip: str
    v2v_s: float | None
    gaps_s: list[float] = field(default_factory=list)
    transcript: str = ""
    commits: int = 0


@dataclass(slots=True)
class CallResult:
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0
    refused: str = ""
    errors: list[str] = field(default_factory=list)


class RealtimeCaller:
    """Call `run` once."""

    def __init__(self, url: str, key: str, seed: int) -> None:
        self._url = url
        self._key = key
        self._rng = np.random.default_rng(seed)
        self._clip: Clip | None = None
        self._position = 0
        self._spoken_s: float | None = None  # when the clip's last voiced sample was sent
        self._play_end_s = 0.0
        self._loud: asyncio.Future[float] | None = None  # when the answer became audible
        self._in_reply = False
        self._turn = Turn("", None)
        self.result = CallResult()

    async def run(self, clips: Sequence[Clip], turns: int, timeout_s: float) -> CallResult:
        start = time.perf_counter()
        headers = {"Authorization": f"Bearer {self._key}"}
        try:
            async with websockets.connect(
                self._url, compression=None, max_size=None, additional_headers=headers
            ) as ws:
                await self._talk(ws, clips, turns, timeout_s)
        except (OSError, websockets.WebSocketException) as error:
            self.result.refused = str(error)
        self.result.seconds = time.perf_counter() - start
        return self.result

    async def _talk(self, ws: Any, clips: Sequence[Clip], turns: int, timeout_s: float) -> None:
        tasks = [asyncio.create_task(self._send(ws)), asyncio.create_task(self._receive(ws))]
        try:
            await asyncio.sleep(1.0)
            await self._quiet(1.0, 20.0)  # a greeting, if any
            for i in range(turns):
                await self._ask(clips[i % len(clips)], timeout_s)
                await asyncio.sleep(0.2 + float(self._rng.uniform(0, 0.5)))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, clip: Clip, timeout_s: float) -> None:
        self._turn = Turn(clip.name, None)
        self._spoken_s = None
        self._loud = asyncio.get_running_loop().create_future()
        self._clip, self._position = clip, 0
        try:
            async with asyncio.timeout(len(clip.pcm) / RATE + timeout_s):
                loud_s = await self._loud
            self._turn.v2v_s = loud_s - (self._spoken_s or loud_s)
            await self._quiet(1.5, 60.0)
        except TimeoutError:
            pass
        self.result.turns.append(self._turn)

    async def _quiet(self, hang_s: float, limit_s: float) -> None:
        """Until playback has been over for `hang_s`; the end moves while sound arrives."""
        give_up = time.perf_counter() + limit_s
        while True:
            left = min(give_up, self._play_end_s + hang_s) - time.perf_counter()
            if left <= 0:
                break
            await asyncio.sleep(left)
        self._in_reply = False

    async def _send(self, ws: Any) -> None:
        start, k = time.perf_counter(), 0
        while True:
            k += 1
            due = start + k * 0.02
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            frame = self._rng.integers(-4, 5, FRAME).astype(np.int16)
            clip = self._clip
            if clip is not None:
                part = clip.pcm[self._position : self._position + FRAME]
                frame[: len(part)] = part
                if self._position <= clip.last < self._position + FRAME:
                    self._spoken_s = due - 0.02 + (clip.last - self._position) / RATE
                self._position += FRAME
                if self._position >= len(clip.pcm):
                    self._clip = None
            audio = base64.b64encode(frame.tobytes()).decode()
            await ws.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))

    async def _receive(self, ws: Any) -> None:
        async for message in ws:
            now = time.perf_counter()
            event = json.loads(message)
            match event["type"]:
                case "response.output_audio.delta":
                    self._play(np.frombuffer(base64.b64decode(event["delta"]), np.int16), now)
                case "input_audio_buffer.speech_started":
                    self._play_end_s, self._in_reply = min(self._play_end_s, now), False
                case "input_audio_buffer.committed":
                    self._turn.commits += 1
                case "conversation.item.input_audio_transcription.completed":
                    self._turn.transcript = event["transcript"]
                case "error":
                    self.result.errors.append(str(event["error"].get("message")))

    def _play(self, pcm: Pcm, now: float) -> None:
        if self._in_reply and now > self._play_end_s:
            self._turn.gaps_s.append(now - self._play_end_s)
        start = max(now, self._play_end_s)
        self._in_reply = True
        self._play_end_s = start + len(pcm) / RATE
        loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > LOUD)
        waiting = self._loud is not None and not self._loud.done() and self._spoken_s is not None
        if len(loud) and waiting and self._loud is not None:
            self._loud.set_result(start + int(loud[0]) / RATE)
