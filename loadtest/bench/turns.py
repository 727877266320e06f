"""Every pause of recorded callers: how long we would wait, and whether it would cut the caller.

Run: python -m loadtest.bench.turns --clips DIR [--preset NAME] [--answer-ms MS] [--json F]

Each WAV of the folder is one caller's turn: its last pause is the end, the pauses before it are
not. Voice activity, end-of-turn model and recogniser are the real ones, time is media time, and
nothing is ended, so that every pause is judged in the same recording, by the same `Endpointer`
code as a call's. Files are split in two halves by the hash of their name: settings are tuned on
half 0 and reported on half 1. A fixed 700 ms of silence stands beside it.

--answer-ms: the answer's first sound is ready that long after the caller's last voiced sample; the
turn stays open for it as in a call. 0: there is no early answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from loadtest.report import hardware, quantile, write_json
from voice_agent.audio import read_wav, to_float
from voice_agent.clock import MonotonicClock
from voice_agent.ear import Ear
from voice_agent.endpointing import PRESETS, Edge, EdgeKind, Endpointer, TurnTaking
from voice_agent.models import ModelStore
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.streaming import PRE_ROLL_MS
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import IN_FRAME, IN_RATE, Frame, Pcm16
from voice_agent.vad import WINDOW, VadService

LEAD_S, TAIL_S = 0.5, 4.5
NEVER_MS = 4000  # a pause this long is the end of the recording
PLAIN_MS = 700.0
PER_MS = IN_RATE // 1000
WINDOW_MS = WINDOW // PER_MS
MAX_PASS_S = 28.0


@dataclass(frozen=True, slots=True)
class Pause:
    """length_ms: None for the end of the turn. wait_ms: silence at which we would end it."""

    clip: str
    half: int
    length_ms: float | None
    p_complete: float
    text: str
    wait_ms: float

    def cut_by(self, wait_ms: float) -> bool:
        return self.length_ms is not None and wait_ms <= self.length_ms


class Judge:
    """The real stages, and the policy under test."""

    def __init__(self, preset: str, answer_ms: float) -> None:
        store = ModelStore()
        self.recognizer = WhisperRecognizer(store.path("whisper-tiny.en"))
        self.smart_turn = SmartTurn(store.path("smart-turn-v3.2"))
        self.vad = VadService(MonotonicClock())
        self.config = PRESETS[preset]
        self.answer_ms = answer_ms

    async def pauses(self, name: str, pcm: Pcm16) -> list[Pause]:
        """Every pause of one recording, int16 [n] at 16 kHz."""
        never = TurnTaking(
            pause_ms=self.config.pause_ms, min_silence_ms=NEVER_MS, max_silence_ms=NEVER_MS
        )
        edges: list[Edge] = []
        ear = Ear(self.vad, Endpointer(never), MonotonicClock(), edges.append, lambda _: None)
        for at in range(0, len(pcm) - IN_FRAME + 1, IN_FRAME):
            await ear.process(Frame(pcm[at : at + IN_FRAME]))
        return self._judge(name, pcm, edges, Endpointer(self.config))

    def _judge(
        self, name: str, pcm: Pcm16, edges: Sequence[Edge], policy: Endpointer
    ) -> list[Pause]:
        sound, out, onset = to_float(pcm), [], 0
        half = hashlib.sha256(name.encode()).digest()[0] & 1
        for edge, after in zip(edges, [*edges[1:], None], strict=True):
            if edge.kind is EdgeKind.ONSET:
                onset = max(0, edge.sample - PRE_ROLL_MS * PER_MS)
            if edge.kind is not EdgeKind.PAUSE:
                continue
            heard = sound[onset : edge.at_sample][-int(MAX_PASS_S * IN_RATE) :]
            text = self.recognizer.recognize(heard).text
            p = self.smart_turn.predict(sound[: edge.at_sample])
            policy.set_completion(p)
            policy.set_evidence(text)
            wait = max(policy.timeout_ms, min(self.answer_ms, self.config.prepare_ms))
            wait = -(-wait // WINDOW_MS) * WINDOW_MS
            goes_on = after is not None and after.kind is EdgeKind.RESUMED
            length = (after.sample - edge.sample) / PER_MS if after and goes_on else None
            out.append(Pause(name, half, length, round(p, 3), text, wait))
            if length is not None:
                policy.learn_pause(length)
        return out

    def close(self) -> None:
        self.recognizer.close()
        self.smart_turn.close()
        self.vad.close()


def load(folder: Path) -> list[tuple[str, Pcm16]]:
    lead, tail = (np.zeros(int(s * IN_RATE), np.int16) for s in (LEAD_S, TAIL_S))
    return [
        (path.name, np.concatenate([lead, read_wav(path, IN_RATE).pcm, tail]))
        for path in sorted(folder.glob("*.wav"))
    ]


def totals(pauses: Sequence[Pause]) -> dict[str, object]:
    """Ends, inner pauses, cuts by us and by plain silence; waits at the ends in ms."""
    ends = [p.wait_ms for p in pauses if p.length_ms is None]
    inner = [p for p in pauses if p.length_ms is not None]
    return {
        "ends": len(ends),
        "wait_ms_p50": round(quantile(ends, 0.5)) if ends else None,
        "wait_ms_p95": round(quantile(ends, 0.95)) if ends else None,
        "wait_ms_mean": round(float(np.mean(ends))) if ends else None,
        "pauses": len(inner),
        "cut": sum(p.cut_by(p.wait_ms) for p in inner),
        "cut_by_plain_700_ms": sum(p.cut_by(PLAIN_MS) for p in inner),
    }


async def measure(args: argparse.Namespace) -> list[Pause]:
    judge = Judge(args.preset, args.answer_ms)
    try:
        return [p for name, pcm in load(args.clips) for p in await judge.pauses(name, pcm)]
    finally:
        judge.close()


def show(pauses: Sequence[Pause], report: dict[str, object]) -> None:
    print(f"{'clip':28} {'pause':>6} {'P':>5} {'wait':>5}")
    for p in pauses:
        length = "end" if p.length_ms is None else f"{p.length_ms:.0f}"
        mark = "CUT" if p.cut_by(p.wait_ms) else ""
        print(
            f"{p.clip:28} {length:>6} {p.p_complete:5.2f} {p.wait_ms:5.0f} {mark:3} {p.text[-48:]}"
        )
    print(json.dumps(report, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clips", type=Path, required=True, help="folder of WAV files")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="balanced")
    parser.add_argument("--answer-ms", type=float, default=0.0)
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    pauses = asyncio.run(measure(args))
    halves = {f"half_{h}": totals([p for p in pauses if p.half == h]) for h in (0, 1)}
    report: dict[str, object] = {"preset": args.preset, "answer_ms": args.answer_ms, **halves}
    show(pauses, report)
    if args.json:
        rows = [asdict(p) for p in pauses]
        write_json(args.json, {"hardware": hardware(), **report, "pauses": rows})


if __name__ == "__main__":
    main()
