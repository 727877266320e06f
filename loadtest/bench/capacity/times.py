"""What each stage takes: measured on this machine, or assumed of another and said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.budget import CostModel, fit
from engine.warmup import WarmupReport

WINDOW_S = 9.0
"""Of sound that the recogniser's shortest window holds."""


@dataclass(frozen=True, slots=True)
class SttTimes:
    """A pass, ms: over at most 9 s of sound, each further second, each word of its transcript."""

    base_ms: float
    second_ms: float
    word_ms: float

    def pass_s(self, sound_s: float, n_words: int) -> float:
        beyond = max(0.0, sound_s - WINDOW_S)
        return (self.base_ms + self.second_ms * beyond + self.word_ms * n_words) / 1000


@dataclass(frozen=True, slots=True)
class VoiceTimes:
    """A reply's first piece takes first_ms, and word_ms for each word of its clause; a further
    piece of a clause piece_ms, and second_ms for each second of its sound.

    pieces_s: how long a clause's pieces are, the last for all that follow; a reply's later clauses
    begin with the piece of number `later`. A word sounds for word_s.
    """

    first_ms: float
    word_ms: float
    piece_ms: float
    second_ms: float
    pieces_s: tuple[float, ...]
    word_s: float
    later: int = 0

    def lengths(self, n_words: int, clause: int) -> list[float]:
        """Seconds of sound in each piece of a reply's clause of this number."""
        left, out = n_words * self.word_s, list[float]()
        at = self.later if clause else 0
        while left > 1e-3:
            out.append(min(self.pieces_s[min(at, len(self.pieces_s) - 1)], left))
            left -= out[-1]
            at += 1
        return out

    def work_s(self, n_words: int, clause: int, piece: int) -> float:
        """Seconds of work for a piece of a clause."""
        lengths = self.lengths(n_words, clause)
        sound_s = lengths[min(piece, len(lengths) - 1)]
        if piece:
            return (self.piece_ms + self.second_ms * sound_s) / 1000
        more_s = max(0.0, sound_s - self.pieces_s[0])
        return (self.first_ms + self.word_ms * n_words + self.second_ms * more_s) / 1000


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, as the simulation knows it.

    cores: processors for what runs on the CPU. device: None: the engine, recogniser and voice share
    the cores; else how many of them a GPU runs at full speed at once. core_ms: of the event loop,
    for 20 ms of one call. engine_options: of `EngineConfig`. beside: see `clock.Cores`, of what
    runs on the cores. notes: (what, value, its source).
    """

    name: str
    cores: float
    device: float | None
    engine: WarmupReport
    engine_options: dict[str, Any]
    n_blocks: int
    max_model_len: int
    stt: SttTimes
    stt_workers: int
    smart_turn_ms: float
    voice: VoiceTimes
    core_ms: float
    target_s: float
    answer_within_s: float
    voice_workers: int = 1
    beside: float = 1.0
    notes: tuple[tuple[str, str, str], ...] = field(default=())

    @property
    def on_device(self) -> float:
        """Processors of the kind that the models run on."""
        return self.cores if self.device is None else self.device


H200_GB_S = 4300.0
EFFICIENCY = 0.75
WEIGHTS_GB = 15.0
KV_BYTES = 131_072
CONTEXT = 1000
FREE_TOKENS = 206
STEP_HOST_MS = 0.5
_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
_PROMPTS = (16, 64, 128, 256, 512, 1024, 2048)
KV_GB = 60.0
BLOCK = 16
AT_ONCE = 2.0


def roofline() -> WarmupReport:
    """Llama-3.1-8B in bf16 on an H200: bytes moved over the bandwidth that is reached; a prompt is
    as fast as its weights are read up to `FREE_TOKENS`, and from there on as many times slower."""
    gb_ms = 1000.0 / (H200_GB_S * EFFICIENCY)
    weights_ms = WEIGHTS_GB * gb_ms
    row_ms = CONTEXT * KV_BYTES / 1e9 * gb_ms
    decode = tuple((n, STEP_HOST_MS + weights_ms + n * row_ms) for n in _ROWS)
    prefill = tuple((n, STEP_HOST_MS + weights_ms * max(1.0, n / FREE_TOKENS)) for n in _PROMPTS)
    return WarmupReport(fit([*decode, *prefill]), decode, prefill, 0.0)


def gpu(core_ms: float, at_once: float = AT_ONCE) -> Machine:
    """A server with one H200; nothing of it was measured but `core_ms`. at_once: stages that the
    GPU runs at full speed together."""
    shown = "roofline"
    stt = SttTimes(base_ms=12.0, second_ms=1.0, word_ms=1.0)
    voice = VoiceTimes(
        first_ms=35.0, word_ms=0.5, piece_ms=0.0, second_ms=10.0, pieces_s=(0.6, 1.5), word_s=0.31
    )
    notes = (
        ("engine", "Llama-3.1-8B bf16, H200: 4.3 TB/s by a copy, 75 % of it reached", shown),
        ("prompt tokens that cost no more than the weights", f"{FREE_TOKENS} a step", shown),
        ("context of every row", f"{CONTEXT} tokens", "assumed"),
        ("host's part of a step that is not hidden", f"{STEP_HOST_MS} ms", "assumed"),
        ("KV cache", f"{KV_GB:.0f} GB", "assumed"),
        ("recognition, a pass", f"{stt.base_ms:.0f} ms + {stt.word_ms:.0f} a word", "assumed"),
        (
            "voice, first piece",
            f"{voice.first_ms:.0f} ms",
            "Kokoro on an RTX 5090, 28-45 ms by its vendor",
        ),
        ("voice, a second of sound after that", f"{voice.second_ms:.0f} ms", "assumed"),
        ("stages at full speed together on the GPU", f"{at_once:g}; more share it", "assumed"),
        ("end-of-turn model, on a CPU core", "12 ms", "Smart Turn v3's authors"),
        ("event loop for 20 ms of a call", f"{core_ms:.3f} ms", "measured here: bench gil"),
    )
    return Machine(
        "gpu",
        cores=16.0,
        device=at_once,
        engine=roofline(),
        engine_options={
            "device": "cuda",
            "max_step_ms": 30.0,
            "idle_step_ms": 30.0,
            "target_s": 0.3,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_requests": 1024,
        },
        n_blocks=int(KV_GB * 1e9 / (KV_BYTES * BLOCK)),
        max_model_len=8192,
        stt=stt,
        stt_workers=1,
        smart_turn_ms=12.0,
        voice=voice,
        core_ms=core_ms,
        target_s=0.3,
        answer_within_s=3.0,
        notes=notes,
    )


def machine_from(body: Mapping[str, Any]) -> Machine:
    """What `dataclasses.asdict` made of one, after JSON. Raises KeyError, TypeError."""
    engine = body["engine"]
    report = WarmupReport(
        CostModel(**engine["cost"]),
        tuple((int(n), float(ms)) for n, ms in engine["decode_ms"]),
        tuple((int(n), float(ms)) for n, ms in engine["prefill_ms"]),
        float(engine["seconds"]),
    )
    parts = {
        "engine": report,
        "stt": SttTimes(**body["stt"]),
        "voice": VoiceTimes(
            **{**body["voice"], "pieces_s": tuple(float(s) for s in body["voice"]["pieces_s"])}
        ),
        "notes": tuple(tuple(note) for note in body["notes"]),
    }
    return Machine(**{**body, **parts})
