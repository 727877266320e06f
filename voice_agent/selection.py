"""What a configuration asks of the model choice, and having the chosen models at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from voice_agent.choose import (
    KOKORO,
    LLMS,
    REMOTE,
    STT_RANK,
    TARGET_CPU_MS,
    TARGET_GPU_MS,
    VOICE_RANK,
    Need,
)
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.machine import Machine
from voice_agent.models import REGISTRY, ModelStore, Progress

BASIC = ("whisper-tiny.en", "piper-joe", "smart-turn-v3.2")
"""What every CPU call needs; also what the measurements run on."""
SMALL = (*BASIC, "smollm2-135m")
"""Enough for the tests."""
DEFAULTS = (*BASIC, "qwen2.5-0.5b")
"""What `up` fetches on a new machine."""
FETCHABLE_LLMS = ("smollm2-135m", "qwen2.5-0.5b")
"""Language models that `auto` may download; the 1.5B counts only when it is already there."""

StageFn = Callable[[str, float | None], None]
"""(what is being done, share done or None)."""


def pick_device(config: Config, machine: Machine) -> str:
    """Where the models run: `cpu`, or `cuda` when a GPU is asked for.

    Raises UsageError VA476 when that GPU can't be used.
    """
    if config.profile != "gpu":
        return "cpu"
    gpu = machine.gpu
    if gpu is None or not gpu.usable:
        why = gpu.why if gpu else "no NVIDIA GPU was found"
        raise UsageError(f'profile = "gpu": {why}; use profile = "cpu"', code="VA476")
    return "cuda"


def voice_device(voice: str, device: str) -> str:
    """Where a voice runs: Kokoro where the other models do, any other on the CPU."""
    return device if voice == KOKORO else "cpu"


def wanted_first(config: Config, device: str) -> set[str]:
    """Registry models to have before anything is measured or chosen. A GPU speaks with Kokoro."""
    wanted = config.models
    names = {*BASIC, wanted.stt, wanted.voice}
    if device != "cpu" and wanted.voice == "auto":
        names.add(KOKORO)
    if KOKORO in names:
        names.add("kokoro-voices")
    return names & REGISTRY.keys()


def target_ms(config: Config, device: str) -> float:
    """The operator's voice-to-voice goal, or the profile's."""
    if config.target_ms:
        return float(config.target_ms)
    return float(TARGET_CPU_MS if device == "cpu" else TARGET_GPU_MS)


def need_of(config: Config, store: ModelStore, machine: Machine, device: str) -> Need:
    """What `choose` has to satisfy here."""
    known = (*STT_RANK, *VOICE_RANK, *(spec.name for spec in LLMS))
    present = {name for name in known if store.present(name)}
    if not store.present("kokoro-voices"):
        present.discard(KOKORO)
    gpu = machine.gpu
    return Need(
        calls=config.server.max_calls,
        target_ms=target_ms(config, device),
        memory_mb=gpu.memory_mb if gpu and device != "cpu" else machine.free_mb,
        present=present,
        fetchable=FETCHABLE_LLMS if config.models.fetch else (),
        want_llm=config.models.llm if config.llm.needs_engine else REMOTE.name,
        want_stt=config.models.stt,
        want_voice=config.models.voice,
    )


def ensure(
    store: ModelStore, names: Iterable[str], *, fetch: bool, stage: StageFn = lambda *_: None
) -> None:
    """Have every named model on this machine. Raises UsageError VA411 when one is missing and
    `fetch` is off, else what fetching raises. Paths of the operator's own pass."""
    for name in names:
        if name in REGISTRY and fetch:

            def show(p: Progress) -> None:
                stage(f"{p.stage} {p.model}", p.done / p.total if p.total else None)

            store.fetch(name, show)
        store.path(name)
