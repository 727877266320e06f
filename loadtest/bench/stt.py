"""Recognition as a call uses it: word error rate, final-transcript latency, passes, confirmed
share.

Run: python -m loadtest.bench.stt --clips DIR [--model DIR] [--end-of-turn FILE] [--json F]

Clips run through voice activity, endpointing, end-of-turn scoring and the streaming recogniser in
media time: nothing sleeps, each pass takes as long as it really took, and one recogniser serves one
pass after another. Latencies count from the caller's last voiced window.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import platform
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import jiwer
import numpy as np
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from voice_agent.audio import read_wav, to_float
from voice_agent.clock import MonotonicClock
from voice_agent.endpointing import PRESETS, Edge, EdgeKind, Endpointer
from voice_agent.models import ModelStore
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.partials import PartialPolicy, Why
from voice_agent.stt.streaming import PRE_ROLL_MS, Utterance
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, Frame, Pcm16
from voice_agent.vad import VadService, VadWindow

LEAD_S, TAIL_S = 0.5, 2.0  # silence around a clip
PRE_ROLL = PRE_ROLL_MS // FRAME_MS
CLEAN = ("ps_austen", "ms_")


@dataclass(slots=True)
class Turn:
    """One onset-to-end stretch. Times are media seconds."""

    onset_s: float
    last_voiced_s: float = 0.0
    ended_s: float = 0.0
    final_s: float = 0.0
    n_words: int = 0
    n_confirmed_at_end: int = 0
    timed_passes: int = 0
    pause_passes: int = 0
    text: str = ""
    p_complete: list[float] = field(default_factory=list)

    @property
    def final_ms(self) -> float:
        return (self.final_s - self.last_voiced_s) * 1000

    @property
    def endpoint_ms(self) -> float:
        return (self.ended_s - self.last_voiced_s) * 1000

    @property
    def ready_ms(self) -> float:
        """When the answer can start: the turn has ended and its words are known."""
        return max(self.final_ms, self.endpoint_ms)


@dataclass(slots=True)
class Clip:
    name: str
    reference: str
    seconds: float
    turns: list[Turn] = field(default_factory=list)
    compute_s: float = 0.0

    @property
    def hypothesis(self) -> str:
        return " ".join(t.text for t in self.turns)


class Listener:
    """One call's hearing in simulated media time."""

    def __init__(
        self, clip: Clip, vad: VadService, recognizer: WhisperRecognizer, judge: SmartTurn | None,
        preset: str,
    ) -> None:  # fmt: skip
        self.clip = clip
        self._vad = vad.open()
        self._judge = judge
        self._endpointer = Endpointer(PRESETS[preset])
        self._utterance = Utterance(recognizer)
        self._policy = PartialPolicy()
        self._heard = np.zeros(0, np.int16)
        self._pre_roll: deque[Pcm16] = deque(maxlen=PRE_ROLL)
        self._free_s = 0.0  # when the recogniser has finished what it was given
        self._later: list[tuple[float, float | str]] = []  # (media time, estimate or words)
        self._voiced = False
        self._at_onset: Turn | None = None
        self._voice_marks: list[tuple[float, int]] = []  # (result ready, confirmed words)

    async def run(self, pcm: Pcm16) -> None:
        for at in range(0, len(pcm) - IN_FRAME + 1, IN_FRAME):
            frame = pcm[at : at + IN_FRAME]
            self._heard = pcm[: at + IN_FRAME]
            if self._endpointer.in_speech:
                self._utterance.append(frame, voiced=self._voiced)
            else:
                self._pre_roll.append(frame)
            for window in await self._vad.push(Frame(frame)):
                await self._window(window)
        self._vad.close()

    async def _window(self, window: VadWindow) -> None:
        now_s = window.end_sample / IN_RATE
        for ready_s, news in [x for x in self._later if x[0] <= now_s]:
            self._later.remove((ready_s, news))
            if isinstance(news, str):
                self._endpointer.set_evidence(news)
            else:
                self._endpointer.set_completion(news)
        self._voiced = window.prob >= self._endpointer.config.end_threshold
        edges = self._endpointer.on_window(window.prob, window.end_sample)
        for edge in edges:
            await self._edge(edge, now_s)
        if self._endpointer.in_speech:
            why = self._policy.due(
                window.start_sample, window.end_sample, voiced=self._voiced, agent_speaking=False
            )
            if why is not None:
                await self._transcribe(now_s, why)

    async def _edge(self, edge: Edge, now_s: float) -> None:
        if edge.kind is EdgeKind.ONSET:
            self._utterance.reset()
            self._utterance.append(np.concatenate(self._pre_roll), voiced=True)
            self._pre_roll.clear()
            self._policy.begin(edge.sample)
            self._at_onset = Turn(edge.sample / IN_RATE)
            self._voice_marks = []
        elif edge.kind is EdgeKind.RESUMED:
            self._later.clear()
        elif edge.kind is EdgeKind.PAUSE:
            if self._judge is not None:
                began = time.perf_counter()
                p = self._judge.predict(to_float(self._heard[-8 * IN_RATE :]))
                self._later.append((now_s + time.perf_counter() - began, p))
                if self._at_onset is not None:
                    self._at_onset.p_complete.append(round(p, 2))
            if self._policy.pause(edge.sample, edge.at_sample):
                words = await self._transcribe(now_s, Why.PAUSE)
                self._later.append((self._free_s, words))
        else:
            await self._ended(edge, now_s)

    async def _transcribe(self, now_s: float, why: Why) -> str:
        before = self._utterance.compute_s
        result = await self._utterance.transcribe(pause=why is Why.PAUSE)
        spent = self._utterance.compute_s - before
        self._free_s = max(self._free_s, now_s) + spent
        self.clip.compute_s += spent
        self._voice_marks.append((self._free_s, result.n_confirmed))
        if self._at_onset is not None:
            if why is Why.PAUSE:
                self._at_onset.pause_passes += 1
            else:
                self._at_onset.timed_passes += 1
        return result.text

    async def _ended(self, edge: Edge, now_s: float) -> None:
        turn, self._at_onset = self._at_onset, None
        assert turn is not None
        before = self._utterance.compute_s
        final = await self._utterance.transcribe(final=True)
        spent = self._utterance.compute_s - before
        if spent:
            self._free_s = max(self._free_s, now_s) + spent
            self.clip.compute_s += spent
        turn.last_voiced_s = edge.sample / IN_RATE
        turn.ended_s = now_s
        turn.final_s = self._free_s
        turn.text = final.text
        turn.n_words = len(final.words)
        in_time = [n for ready_s, n in self._voice_marks if ready_s <= turn.last_voiced_s]
        turn.n_confirmed_at_end = max(in_time, default=0)
        self.clip.turns.append(turn)
        self._later.clear()


def load_clips(folder: Path) -> list[tuple[Clip, Pcm16]]:
    """Clips named by the folder's transcripts.tsv (columns file, transcript) that exist."""
    out = []
    with (folder / "transcripts.tsv").open(newline="") as f:
        for row in csv.DictReader(f, delimiter="\t"):
            path = folder / row["file"]
            if path.is_file():
                sound = read_wav(path)
                words = row["transcript"].removeprefix("[ASR only, uncertain] ")
                out.append((Clip(row["file"], words, sound.seconds), sound.pcm))
    return out


def error_rate(clips: Iterable[Clip], normalise: EnglishTextNormalizer) -> float | None:
    chosen = [c for c in clips if c.reference != "digits"]
    if not chosen:
        return None
    return float(
        jiwer.wer(
            [normalise(c.reference) for c in chosen], [normalise(c.hypothesis) for c in chosen]
        )
    )


def percentile(values: list[float], q: float) -> float | None:
    return round(float(np.percentile(values, q)), 1) if values else None


def summary(clips: list[Clip]) -> dict[str, object]:
    normalise = EnglishTextNormalizer({})
    turns = [t for c in clips for t in c.turns]
    long = [t for c in clips for t in c.turns if t.last_voiced_s - t.onset_s >= 5.0]
    clean = [c for c in clips if c.name.startswith(CLEAN)]
    noisy = [c for c in clips if c.name.startswith(("ps_", "ms_")) and c not in clean]
    n_turns = max(1, len(turns))
    return {
        "wer_all": error_rate(clips, normalise),
        "wer_librivox_beckett": error_rate(clean, normalise),
        "wer_noisy_handheld": error_rate(noisy, normalise),
        "wer_prompts": error_rate([c for c in clips if c.name.startswith("ast_")], normalise),
        "turns": len(turns),
        "final_ms_p50": percentile([t.final_ms for t in turns], 50),
        "final_ms_p95": percentile([t.final_ms for t in turns], 95),
        "endpoint_ms_p50": percentile([t.endpoint_ms for t in turns], 50),
        "endpoint_ms_p95": percentile([t.endpoint_ms for t in turns], 95),
        "ready_ms_p50": percentile([t.ready_ms for t in turns], 50),
        "ready_ms_p95": percentile([t.ready_ms for t in turns], 95),
        "timed_passes_per_final": round(sum(t.timed_passes for t in turns) / n_turns, 2),
        "pause_passes_per_final": round(sum(t.pause_passes for t in turns) / n_turns, 2),
        "confirmed_share_over_5_s": round(
            sum(t.n_confirmed_at_end for t in long) / max(1, sum(t.n_words for t in long)), 3
        ),
        "recogniser_s_per_audio_s": round(
            sum(c.compute_s for c in clips) / max(1e-9, sum(c.seconds for c in clips)), 3
        ),
    }


async def measure(args: argparse.Namespace) -> list[Clip]:
    store = ModelStore()
    recognizer = WhisperRecognizer(args.model or store.path("whisper-tiny.en"), args.threads)
    judge = (
        None
        if args.no_end_of_turn
        else SmartTurn(args.end_of_turn or store.path("smart-turn-v3.2"))
    )
    recognizer.warm()
    if judge is not None:
        judge.warm()
    vad = VadService(MonotonicClock())
    clips = []
    for clip, pcm in load_clips(args.clips):
        lead, tail = (np.zeros(int(s * IN_RATE), np.int16) for s in (LEAD_S, TAIL_S))
        await Listener(clip, vad, recognizer, judge, args.preset).run(
            np.concatenate([lead, pcm, tail])
        )
        clips.append(clip)
    recognizer.close()
    if judge is not None:
        judge.close()
    return clips


def show(clips: list[Clip], totals: dict[str, object]) -> None:
    normalise = EnglishTextNormalizer({})
    print(f"{'clip':26} {'final':>6} {'end':>6} {'conf':>5} {'timed':>5} {'pause':>5}  transcript")
    for clip in clips:
        for turn in clip.turns:
            mark = " " if normalise(clip.hypothesis) == normalise(clip.reference) else "*"
            print(
                f"{clip.name:26} {turn.final_ms:6.0f} {turn.endpoint_ms:6.0f} "
                f"{turn.n_confirmed_at_end:2}/{turn.n_words:<2} {turn.timed_passes:5} "
                f"{turn.pause_passes:5} {mark}{turn.text}  {turn.p_complete}"
            )
    for name, value in totals.items():
        print(f"{name:28} {value:.4f}" if isinstance(value, float) else f"{name:28} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=Path, required=True, help="folder with transcripts.tsv")
    parser.add_argument("--model", type=Path, help="recognition model folder")
    parser.add_argument("--end-of-turn", type=Path, help="end-of-turn ONNX file")
    parser.add_argument("--no-end-of-turn", action="store_true", help="time-outs without estimates")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="balanced")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    clips = asyncio.run(measure(args))
    totals = summary(clips)
    hardware = f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}"
    print(f"{hardware}; recogniser threads {args.threads}; preset {args.preset}")
    show(clips, totals)
    if args.json:
        record = {"hardware": hardware, "totals": totals, "clips": [asdict(c) for c in clips]}
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
