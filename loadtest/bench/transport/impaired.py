"""`python -m loadtest.bench transport --impaired`: calls over a line that loses and delays packets.

Real time, real sockets: WebRTC between two network namespaces (root, Linux) that `wan.py` joins.
The server's side is `RtcLeg` as a media worker has it; the caller's is aiortc with the same jitter
buffer. Both speak recorded clips all the time; what the server heard is transcribed and compared
with the same packets over a line without faults.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import uvloop
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from gateway.config import RtcNetwork
from gateway.media.jitter import JitterBuffer
from gateway.media.receive import OpusReceiver
from gateway.media.resample import Resampler
from gateway.pacer import Pacer
from gateway.webrtc_leg import JITTER_ATTRIBUTE, OpusTrack, RtcLeg
from loadtest.bench.stt import load_clips
from loadtest.report import hardware, quantile
from voice_agent.audio import to_float
from voice_agent.clock import Clock, MonotonicClock
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import (
    FRAME_MS,
    IN_FRAME,
    IN_RATE,
    OUT_FRAME,
    OUT_RATE,
    Frame,
    FrameFlag,
    Pcm16,
)

from .namespaces import Namespace, lacking, namespaces
from .quality import GOALS, MINUTE, SECOND, Quality, Track, judge, table
from .voice import opus_packets
from .wan import Impairment, wan

BAD = Impairment(loss=0.05, delay_ms=50.0, jitter_ms=20.0)
CALM = Impairment(delay_ms=50.0)
WARM_S, LEARN_S, AFTER_S = 3.0, 10.0, 15.0
GAP_S = 1.0  # of a quiet room before each clip
BEFORE, AFTER = 15, 25  # ticks around a clip that are transcribed with it, of the gap
LAG = 6  # ticks from our packet to the sound of it, about: delay and jitter buffer


@dataclass(frozen=True, slots=True)
class Spoken:
    """A clip in the recording: packets `first` to `end`."""

    words: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    """What is said again and again. speech: int16, 24 kHz; packets: the same in Opus."""

    speech: Pcm16
    packets: Sequence[bytes]
    clips: Sequence[Spoken]


def script(folder: Path) -> Script:
    """The clips of transcripts.tsv, with a quiet room between them."""
    rng = np.random.default_rng(0)
    parts: list[Pcm16] = []
    clips: list[Spoken] = []
    at = 0
    for clip, pcm in load_clips(folder):
        quiet = rng.integers(-4, 5, int(GAP_S * IN_RATE)).astype(np.int16)
        rest = np.zeros(-len(pcm) % IN_FRAME, np.int16)
        first = (at + len(quiet)) // IN_FRAME
        parts += [quiet, pcm, rest]
        at += len(quiet) + len(pcm) + len(rest)
        clips.append(Spoken(clip.reference, first, at // IN_FRAME))
    n = at // IN_FRAME * OUT_FRAME
    speech = Resampler(IN_RATE, OUT_RATE).push(np.concatenate(parts))
    speech = np.concatenate([speech, np.zeros(max(0, n - len(speech)), np.int16)])[:n]
    return Script(speech, opus_packets(speech), clips)


class Ear:
    """What one side hears, tick by tick."""

    def __init__(self, jitter: JitterBuffer, frame: Callable[[], Frame]) -> None:
        self._jitter = jitter
        self._frame = frame
        self.flags: list[FrameFlag] = []
        self.depths_ms: list[float] = []
        self.pcm: list[Pcm16] = []

    def tick(self) -> None:
        self.depths_ms.append(self._jitter.depth_ms)
        frame = self._frame()
        self.flags.append(frame.flag)
        self.pcm.append(frame.pcm)

    def track(self, start: int, calm: int, end: int) -> Track:
        return Track(self.flags[start:end], self.depths_ms[start:end], calm - start)


class TwoWayCall:
    """One call: the server's leg in one network, the caller in the other."""

    def __init__(self, clock: Clock, said: Script, at: int) -> None:
        """at: the packet to begin with."""
        self._script = said
        self._at = at
        self._up = asyncio.Event()
        self._leg = RtcLeg(self._told, clock, RtcNetwork())
        self._receiver = OpusReceiver()
        self._track = OpusTrack()
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._clock = clock
        self.server = Ear(self._leg.jitter, self._leg.frame)
        self.caller = Ear(self._receiver.jitter, self._receiver.frame)

    def _told(self, kind: str, **fields: Any) -> None:
        if kind == "connected":
            self._up.set()
        elif kind == "gone":
            raise RuntimeError(f"a call was lost: {fields}")

    def add(self, packet: Any) -> tuple[bool, None]:
        """Takes the place of aiortc's own jitter buffer at the caller."""
        now_ms = self._clock.now() * 1000.0
        self._receiver.add(packet.timestamp, packet.payload, now_ms)
        return False, None

    def _on_track(self, track: Any) -> None:
        for receiver in self._pc.getReceivers():
            setattr(receiver, JITTER_ATTRIBUTE, self)

    async def connect(self, near: Namespace, far: Namespace) -> None:
        pc = self._pc
        pc.on("track", self._on_track)
        pc.createDataChannel("events")
        pc.addTrack(self._track)
        with near.entered():
            await pc.setLocalDescription(await pc.createOffer())
        with far.entered():
            answer = await self._leg.open({"sdp": pc.localDescription.sdp})
        await pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
        async with asyncio.timeout(20):
            await self._up.wait()

    def tick(self) -> None:
        n = self._at % len(self._script.packets)
        self._at += 1
        self._track.push(self._script.packets[n])
        self._leg.send(self._script.speech[n * OUT_FRAME : (n + 1) * OUT_FRAME])
        self.server.tick()
        self.caller.tick()

    def spoken(self, start: int, end: int) -> list[tuple[Spoken, Pcm16]]:
        """Clips that were said as a whole between two ticks, and what the server heard of each."""
        n = len(self._script.packets)
        begun = self._at - len(self.server.pcm)  # the packet of tick 0
        found = []
        for clip in self._script.clips:
            for tick in range((clip.first - begun) % n, end, n):
                length = clip.end - clip.first
                if start + BEFORE <= tick and tick + length + LAG + AFTER < end:
                    cut = slice(tick + LAG - BEFORE, tick + LAG + length + AFTER)
                    found.append((clip, np.concatenate(self.server.pcm[cut])))
        return found

    async def close(self) -> None:
        self._track.stop()
        await self._pc.close()
        await self._leg.close()
        self._receiver.close()


@dataclass(frozen=True, slots=True)
class Run:
    """late_p99_ms: of our own clock's ticks, which the line is not to blame for."""

    quality: dict[str, Quality]
    packets: int
    lost: int
    late_p99_ms: float
    spoken: list[tuple[Spoken, Pcm16]]


async def run_calls(said: Script, n_calls: int, seconds: float, impairment: Impairment) -> Run:
    """seconds of impairment are judged; before them the buffers have LEARN_S of it."""
    clock, lates = MonotonicClock(), []
    pacer = Pacer(clock)
    step = len(said.packets) // n_calls
    calls = [TwoWayCall(clock, said, i * step) for i in range(n_calls)]

    def tick() -> None:
        lates.append(pacer.late_ms)
        for call in calls:
            call.tick()

    with namespaces(("near", "far")) as (near, far), wan(near, far, CALM) as line:
        try:
            for call in calls:
                await call.connect(near, far)
            faults: list[Exception] = []
            pacer.join(tick, faults.append)
            async with asyncio.TaskGroup() as group:
                pacing = group.create_task(pacer.run())
                await asyncio.sleep(WARM_S)
                line.impairment = impairment
                await asyncio.sleep(LEARN_S)
                start, sent, lost = len(lates), line.sent, line.lost
                await asyncio.sleep(seconds)
                calm, sent, lost = len(lates), line.sent - sent, line.lost - lost
                line.impairment = CALM
                await asyncio.sleep(AFTER_S)
                pacing.cancel()
            if faults:
                raise faults[0]
            end = len(lates)
        finally:
            for call in calls:
                await call.close()
    return Run(
        {
            "heard by the server": judge([c.server.track(start, calm, end) for c in calls]),
            "heard by the caller": judge([c.caller.track(start, calm, end) for c in calls]),
        },
        sent,
        lost,
        quantile(lates, 0.99),
        [cut for call in calls for cut in call.spoken(start, calm)],
    )


def over_a_good_line(said: Script) -> list[tuple[Spoken, Pcm16]]:
    """Every clip as it is heard when each packet comes in time."""
    receiver, heard = OpusReceiver(), []
    for n, packet in enumerate(said.packets):
        receiver.add(n * OUT_FRAME * 2, packet, n * FRAME_MS)
        heard.append(receiver.frame().pcm)
    receiver.close()
    return [(c, np.concatenate(heard[c.first - BEFORE : c.end + AFTER])) for c in said.clips]


@dataclass(frozen=True, slots=True)
class Words:
    """Word error rates in percent, and how many words they are of."""

    good: float
    impaired: float
    words: int

    @property
    def points(self) -> float:
        return self.impaired - self.good


async def transcribe(
    good: list[tuple[Spoken, Pcm16]], impaired: list[tuple[Spoken, Pcm16]]
) -> Words:
    """tiny.en on both; each clip of the good line counts as often as it was said on the other."""
    recognizer = WhisperRecognizer(ModelStore().path("whisper-tiny.en"))
    normalise = EnglishTextNormalizer({})
    try:

        async def text(pcm: Pcm16) -> str:
            heard = await recognizer.transcribe(to_float(pcm), final=True)
            return str(normalise(heard.text))

        wanted = {clip for clip, _ in impaired}
        once = {clip: await text(pcm) for clip, pcm in good if clip in wanted}
        heard = [await text(pcm) for _, pcm in impaired]
    finally:
        recognizer.close()
    said = [normalise(clip.words) for clip, _ in impaired]
    return Words(
        100 * jiwer.wer(said, [once[clip] for clip, _ in impaired]),
        100 * jiwer.wer(said, heard),
        sum(len(words.split()) for words in said),
    )


def main(a: argparse.Namespace) -> int:
    """Status 1 if a goal is missed, 2 if this machine can't run it."""
    if lack := lacking():
        print(f"NOT RUN: needs {lack}")
        return 2
    said = script(a.clips)
    impairment = Impairment(a.loss / 100.0, a.delay_ms, a.jitter_ms)
    gc.collect()
    gc.freeze()
    seconds = max(a.seconds, MINUTE / SECOND)
    run = uvloop.run(run_calls(said, a.calls, seconds, impairment))
    words = asyncio.run(transcribe(over_a_good_line(said), run.spoken[: a.transcripts]))
    print(f"{hardware()}; {a.calls} calls, {seconds:.0f} s; {impairment}")
    print(f"{run.packets} packets, {run.lost / run.packets:.2%} lost; ticks late p99 ", end="")
    print(f"{run.late_p99_ms:.1f} ms\n\n{table(run.quality)}\n")
    print(f"word error rate over a good line {words.good:.1f} %, over this one ", end="")
    print(f"{words.impaired:.1f} % ({words.words} words, tiny.en): {words.points:+.1f} points")
    missed = {name: quality.missed() for name, quality in run.quality.items() if quality.missed()}
    if words.points > GOALS["wer_points"]:
        missed["transcripts"] = ["wer_points"]
    print(f"goals missed: {missed}" if missed else "every goal is met")
    if a.json is not None:
        body = {
            "hardware": hardware(), "calls": a.calls, "seconds": seconds,
            "impairment": asdict(impairment), "packets": run.packets, "lost": run.lost,
            "late_p99_ms": run.late_p99_ms, "words": asdict(words), "missed": missed,
            "quality": {name: asdict(quality) for name, quality in run.quality.items()},
        }  # fmt: skip
        a.json.parent.mkdir(parents=True, exist_ok=True)
        a.json.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    return 1 if missed else 0
