"""The recorded callers in tests/data/clips, and what they say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import jiwer
import numpy as np

from voice_agent.audio import read_wav
from voice_agent.types import IN_RATE, Pcm16

CLIPS = Path(__file__).parent.parent / "data" / "clips"


def clip(name: str) -> Pcm16:
    """int16 [n] at 16 kHz."""
    return read_wav(CLIPS / f"{name}.wav", IN_RATE).pcm


def transcripts() -> dict[str, str]:
    with (CLIPS / "transcripts.tsv").open(encoding="utf-8") as rows:
        return {
            row["file"].removesuffix(".wav"): row["transcript"]
            for row in csv.DictReader(rows, delimiter="\t")
        }


def room(seconds: float, seed: int = 0) -> Pcm16:
    """The noise floor of a quiet room, not digital silence."""
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, int(IN_RATE * seconds)).astype(np.int16)


_SAME = {"10": "ten", "mr": "mister", "mr.": "mister"}


def plain(text: str) -> str:
    words = re.findall(r"[a-z0-9']+", text.lower().replace("-", " "))
    return " ".join(_SAME.get(w, w) for w in words)


def word_error_rate(reference: list[str], hypothesis: list[str]) -> float:
    return float(jiwer.wer([plain(r) for r in reference], [plain(h) or "-" for h in hypothesis]))
