"""This machine's stage times, for the virtual clock: each stage alone, the least of some runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from voice_agent.clauses import ClauseSplitter
from voice_agent.measure import load_voice
from voice_agent.models import ModelStore
from voice_agent.smart_turn import SmartTurn
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.tts.base import Voice
from voice_agent.types import IN_RATE, OUT_RATE, PcmF32

from .scene import REPLIES
from .virtual import StageTimes

ROUNDS = 9  # the least of them is what a stage takes when nobody else wants the core
SHORT, LONG = "Sure, of course.", "The museum opens at nine in the morning and closes at six."


def _least_ms(job: Callable[[], object]) -> float:
    job()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        job()
        took.append((time.perf_counter() - began) * 1000)
    return min(took)


def measured(store: ModelStore) -> StageTimes:
    """Recognition, end-of-turn model and voice as they are here; the language model's times stay
    the table's."""
    voice = load_voice(store, "piper-joe", threads=1)
    times = _voice(voice, StageTimes())
    sound = np.concatenate([_said(voice, t) for t in REPLIES[:3]])
    recognizer = WhisperRecognizer(store.path("whisper-tiny.en"))
    smart_turn = SmartTurn(store.path("smart-turn-v3.2"))
    try:
        model = recognizer.model
        words = [len(model.decode(sound[: n * IN_RATE]).words) for n in (3, 8, 20)]
        took = [_least_ms(lambda n=n: model.decode(sound[: n * IN_RATE])) for n in (3, 8, 20)]  # type: ignore[misc]
        word = max(0.0, (took[1] - took[0]) / max(1, words[1] - words[0]))
        second = max(0.0, (took[2] - took[1] - word * (words[2] - words[1])) / 11)
        first = max(took[0] / 2, took[0] - word * words[0])
        return replace(
            times,
            recognise=round(first, 1),
            recognise_word=round(word, 2),
            recognise_s=round(second, 2),
            smart_turn=round(_least_ms(lambda: smart_turn.predict(sound[: 8 * IN_RATE])), 1),
        )
    finally:
        recognizer.close()
        smart_turn.close()


def _said(voice: Voice, text: str) -> PcmF32:
    from voice_agent.audio import resample, to_float

    from .synthetic import spoken

    return to_float(resample(spoken(voice, text), OUT_RATE, IN_RATE))


def _voice(voice: Voice, times: StageTimes) -> StageTimes:
    def first(text: str) -> tuple[float, int]:
        splitter = ClauseSplitter()
        clause = [*splitter.push(text), *splitter.finish()][0]
        make = voice.synthesize
        ms = _least_ms(lambda: next(make(clause, speed=1.0, cancelled=lambda: False)))
        return ms, len(clause.words)

    (short_ms, n_short), (long_ms, n_long) = first(SHORT), first(LONG)
    word = max(0.0, (long_ms - short_ms) / (n_long - n_short))
    whole = _least_ms(lambda: _said(voice, LONG))
    seconds = len(_said(voice, LONG)) / IN_RATE
    return replace(
        times,
        first_piece=round(short_ms - word * n_short, 1),
        first_piece_word=round(word, 2),
        voice_s=round(whole / seconds, 1),
    )
