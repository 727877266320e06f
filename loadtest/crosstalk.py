"""Did anybody hear another caller's answer? The agent's sound is transcribed, and code words told.

With a model's answers there are no words; then every piece of sound must belong to a reply that its
own call was told of, where the transport names replies (WebSocket, in process).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soxr

from loadtest.callers.caller import CallLog
from loadtest.callers.clip import RATE, Pcm
from loadtest.plan import PlannedCall
from loadtest.words import words_in

WINDOW_S = 25.0
"""A recogniser's pass takes 30 s of sound at most."""
SHORT_S = 0.8
"""Less sound than this holds no whole answer."""
Transcribe = Callable[[Pcm], str]
"""int16 [n] at 24 kHz -> text."""


@dataclass(slots=True)
class CrossTalk:
    """foreign: of answers in which another live caller's word was heard, (call, words). missing: of
    whole answers, those without the call's own word. answers: that were transcribed."""

    answers: int = 0
    missing: int = 0
    foreign: list[tuple[int, list[str]]] = field(default_factory=list)


def parts(log: CallLog) -> list[tuple[Pcm, bool]]:
    """All sound of a call, cut where the caller's turns ended: (sound, whether it is a whole answer
    that was not cut into)."""
    marks = [*(t.spoken_s for t in log.turns), float("inf")]
    out = [(log.ear.between(float("-inf"), marks[0]), False)]
    for i, turn in enumerate(log.turns):
        cut = i + 1 < len(log.turns) and (log.turns[i + 1].cut_in or log.turns[i + 1].early)
        whole = turn.v2v_s is not None and not cut and not log.lost
        out.append((log.ear.between(marks[i], marks[i + 1]), whole))
    return [(pcm, whole) for pcm, whole in out if len(pcm)]


def judge(calls: Sequence[tuple[PlannedCall, CallLog]], transcribe: Transcribe) -> CrossTalk:
    """Blocking: passes of the recogniser."""
    found = CrossTalk()
    for planned, log in calls:
        if planned.word is None:
            continue
        others = {o.word for o, theirs in calls if o is not planned and _both_live(log, theirs)}
        for pcm, whole in parts(log):
            heard = words_in(" ".join(map(transcribe, windows(pcm))))
            if not heard and len(pcm) < SHORT_S * RATE:
                continue
            found.answers += 1
            found.missing += whole and planned.word not in heard
            strange = sorted(heard & (others - {planned.word}))
            if strange:
                found.foreign.append((planned.index, strange))
    return found


def windows(pcm: Pcm) -> list[Pcm]:
    """Pieces of 25 s, each beginning a second before the last one ended: no word is cut in two."""
    n, step = int(WINDOW_S * RATE), int((WINDOW_S - 1.0) * RATE)
    return [pcm[at : at + n] for at in range(0, max(1, len(pcm) - RATE), step)]


def _both_live(a: CallLog, b: CallLog) -> bool:
    if a.up_s is None or b.up_s is None or a.down_s is None or b.down_s is None:
        return False
    return a.up_s < b.down_s and b.up_s < a.down_s


def whisper(model: Path) -> Transcribe:
    """The real recogniser, in this process."""
    from voice_agent.stt.whisper_model import WhisperModel

    loaded = WhisperModel(model, 1, "en")

    def transcribe(pcm: Pcm) -> str:
        sound = soxr.resample(pcm.astype(np.float32) / 32768.0, RATE, 16_000)
        return " ".join(loaded.decode(sound.astype(np.float32)).words)

    return transcribe
