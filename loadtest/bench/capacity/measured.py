"""This machine's stages, each alone: what the simulation needs of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np

from engine.client import Engine
from engine.config import EngineConfig
from engine.warmup import WarmupReport
from loadtest.bench.conversation.scene import REPLIES
from voice_agent.audio import resample, to_float
from voice_agent.choose import TARGET_CPU_MS
from voice_agent.machine import inspect
from voice_agent.measure import clause, load_voice
from voice_agent.models import ModelStore
from voice_agent.smart_turn import SmartTurn
from voice_agent.stack import ANSWER_WITHIN_S
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.tts.base import Clause, Voice
from voice_agent.types import IN_RATE, OUT_RATE, PcmF32

from .engine import WHOLE
from .times import Machine, SttTimes, VoiceTimes

ROUNDS = 9
"""Their median is what a stage takes: the least of them is what it never takes in a call."""
LLM, STT, VOICE = "smollm2-135m", "whisper-tiny.en", "piper-joe"
SHORT = "Sure, of course."
LONG = "The museum opens at nine in the morning and closes at six."
KV_BYTES = 512 << 20
MAX_SEQS = 64


def cpu(core_ms: float, voice_workers: int = 1) -> Machine:
    """This machine with the small models, as `voice-agent up` starts them: workers of one thread
    each."""
    store = ModelStore()
    voice = load_voice(store, VOICE, threads=1)
    sound = np.concatenate([_said(voice, text) for text in REPLIES[:3]])
    voice_times = _voice(voice)
    stt, smart_turn_ms, beside = _hearing(store, sound, voice)
    warmup, n_blocks, longest = _engine(store)
    cores = inspect().cores
    where = "measured here, alone"
    base, token = warmup.cost.base_ms, warmup.cost.per_token_ms
    v = voice_times
    return Machine(
        "cpu",
        cores=float(cores),
        device=None,
        engine=warmup,
        engine_options={"max_num_seqs": MAX_SEQS, "max_requests": 1024, "kv_bytes": KV_BYTES},
        n_blocks=n_blocks,
        max_model_len=longest,
        stt=stt,
        stt_workers=1,
        smart_turn_ms=smart_turn_ms,
        voice=voice_times,
        core_ms=core_ms,
        voice_workers=voice_workers,
        beside=beside,
        target_s=TARGET_CPU_MS / 1000,
        answer_within_s=ANSWER_WITHIN_S,
        notes=(
            ("processors", f"{cores}, shared equally by the threads at work", "assumed"),
            ("work beside another thread's takes longer", f"{beside:.2f} times", where),
            (
                "workers",
                f"recognition 1, voice {voice_workers}",
                "as up plans them here: 1 below 15 calls, 2 from there on",
            ),
            (
                "language model's word that a turn is over",
                f"{WHOLE:+.1f} log-odds, after a step",
                "median of 20 real turns",
            ),
            (f"engine, {LLM}", f"{base:.1f} ms + {token:.2f} ms a token of a step", where),
            (
                f"recognition, {STT}",
                f"{stt.base_ms:.0f} ms + {stt.word_ms:.1f} a word + {stt.second_ms:.0f} a second "
                "beyond 9",
                where,
            ),
            ("end-of-turn model", f"{smart_turn_ms:.0f} ms", where),
            (
                f"voice, {VOICE}",
                f"first piece {v.first_ms:.0f} ms + {v.word_ms:.1f} a word; a further one "
                f"{v.piece_ms:.0f} ms + {v.second_ms:.0f} a second of sound; pieces of "
                f"{', '.join(f'{s:.2f}' for s in v.pieces_s)} s",
                where,
            ),
            ("event loop for 20 ms of a call", f"{core_ms:.3f} ms", "measured here: bench gil"),
        ),
    )


def _usual_ms(job: Callable[[], object]) -> float:
    job()
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        job()
        took.append((time.perf_counter() - began) * 1000)
    return median(took)


def _beside(job: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times longer `job` takes while `other` goes on in another thread."""
    alone_ms, over = _usual_ms(job), threading.Event()

    def go_on() -> None:
        while not over.is_set():
            other()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        return _usual_ms(job) / alone_ms
    finally:
        over.set()
        thread.join()


def _engine(store: ModelStore) -> tuple[WarmupReport, int, int]:
    config = EngineConfig(store.path(LLM), threads=1, kv_bytes=KV_BYTES, max_num_seqs=MAX_SEQS)
    engine = Engine.load(config)
    try:
        report = engine.warm()
        return report, engine.stats().kv_blocks_total, engine.max_model_len
    finally:
        engine.close()


def _hearing(store: ModelStore, sound: PcmF32, voice: Voice) -> tuple[SttTimes, float, float]:
    """Recognition, the end-of-turn model, and how much recognition and voice hold each other up."""
    recognizer = WhisperRecognizer(store.path(STT))
    smart_turn = SmartTurn(store.path("smart-turn-v3.2"))
    try:
        took, words = [], []
        for seconds in (3, 8, 20):
            part = sound[: seconds * IN_RATE]
            words.append(len(recognizer.recognize(part).words))
            took.append(_usual_ms(lambda part=part: recognizer.recognize(part)))  # type: ignore[misc]
        word = max(0.0, (took[1] - took[0]) / max(1, words[1] - words[0]))
        second = max(0.0, (took[2] - took[1] - word * (words[2] - words[1])) / (20.0 - 9.0))
        base = max(took[0] / 2, took[0] - word * words[0])
        smart_turn_ms = _usual_ms(lambda: smart_turn.predict(sound[: 8 * IN_RATE]))

        def hear() -> object:
            return recognizer.recognize(sound[: 3 * IN_RATE])

        def speak() -> object:
            return _pieces(voice, clause(LONG))

        beside = max(1.0, (_beside(hear, speak) + _beside(speak, hear)) / 2)
        return SttTimes(base, second, word), smart_turn_ms, beside
    finally:
        recognizer.close()
        smart_turn.close()


def _pieces(voice: Voice, said: Clause) -> tuple[list[float], list[float]]:
    """(ms that each piece took, seconds of its sound)."""
    took_ms, lengths, began = [], [], time.perf_counter()
    for piece in voice.synthesize(said, speed=1.0, cancelled=lambda: False):
        now = time.perf_counter()
        took_ms.append((now - began) * 1000)
        lengths.append(len(piece.pcm) / OUT_RATE)
        began = now
    return took_ms, lengths


def _voice(voice: Voice) -> VoiceTimes:
    """A line through its further pieces, and through first pieces of few and of many words."""
    short, long = clause(SHORT), clause(LONG)
    _pieces(voice, long)
    short_ms = median(_pieces(voice, short)[0][0] for _ in range(ROUNDS))
    runs = [_pieces(voice, long) for _ in range(ROUNDS)]
    lengths = runs[0][1]
    took_ms = [median(run[0][i] for run in runs) for i in range(len(lengths))]
    n_short, n_long = len(short.words), len(long.words)
    word_ms = max(0.0, (took_ms[0] - short_ms) / (n_long - n_short))
    second_ms, piece_ms = np.polyfit(lengths[1:], took_ms[1:], 1)
    later_s = _pieces(voice, replace(long, index=1))[1][0]
    begins = min(range(len(lengths)), key=lambda i: abs(lengths[i] - later_s))
    usual = lengths[: 1 + lengths.index(max(lengths))]  # the clause's end cuts the last one short
    return VoiceTimes(
        first_ms=max(1.0, short_ms - word_ms * n_short),
        word_ms=word_ms,
        piece_ms=max(0.0, float(piece_ms)),
        second_ms=max(1.0, float(second_ms)),
        pieces_s=tuple(usual),
        word_s=sum(lengths) / n_long,
        later=begins,
    )


def _said(voice: Voice, text: str) -> PcmF32:
    made = voice.synthesize(clause(text), speed=1.0, cancelled=lambda: False)
    return to_float(resample(np.concatenate([p.pcm for p in made]), OUT_RATE, IN_RATE))
