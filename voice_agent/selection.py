"""From `auto` to names: fetch what is needed, measure this machine, choose, say why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voice_agent.choose import (
    LLMS,
    STT_RANK,
    TARGET_CPU_MS,
    TARGET_GPU_MS,
    VOICE_RANK,
    Choice,
    Need,
    choose,
)
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.machine import Machine, inspect
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


@dataclass(frozen=True, slots=True)
class Selection:
    """config: as given, but with every model named. device: `cpu` or `cuda`."""

    config: Config
    store: ModelStore
    machine: Machine
    device: str
    choice: Choice


def select(config: Config, stage: StageFn = lambda *_: None) -> Selection:
    """Make every model of `config` a name that is on this machine.

    Raises UsageError VA411 (missing and `models.fetch` is off), VA452 (no usable GPU), and what
    fetching raises; CapacityError VA203 (too little memory).
    """
    store = ModelStore(sources=config.models.sources)
    stage("looking at the machine", None)
    machine = inspect(gpu=config.profile != "cpu")
    device = pick_device(config, machine)
    want = config.models
    _require(store, _wanted(config), config, stage)
    if "auto" not in (want.stt, want.llm, want.voice):
        choice = Choice(want.llm, want.stt, want.voice, "as configured", ())
    else:
        from voice_agent.measure import measure

        speeds = measure(
            store, machine, device=device, stage=lambda what: stage(f"measuring {what}", None)
        )
        choice = choose(speeds, _need(config, store, machine, device))
        _require(store, (choice.stt, choice.llm, choice.voice), config, stage)
    models = want.model_copy(update={"stt": choice.stt, "llm": choice.llm, "voice": choice.voice})
    named = config.model_copy(
        update={"models": models, "profile": "cpu" if device == "cpu" else "gpu"}
    )
    return Selection(named, store, machine, device, choice)


def pick_device(config: Config, machine: Machine) -> str:
    """`cpu` or `cuda`. Raises UsageError VA452 when a GPU is asked for and cannot be used."""
    usable = machine.gpu is not None and machine.gpu.usable
    if config.profile == "gpu" and not usable:
        why = machine.gpu.why if machine.gpu else "no NVIDIA GPU was found"
        raise UsageError(f'profile = "gpu": {why}; use profile = "cpu"', code="VA452")
    return "cuda" if usable and config.profile != "cpu" else "cpu"


def target_ms(config: Config, device: str) -> float:
    """The operator's voice-to-voice goal, or the profile's."""
    if config.target_ms:
        return float(config.target_ms)
    return float(TARGET_CPU_MS if device == "cpu" else TARGET_GPU_MS)


def _wanted(config: Config) -> tuple[str, ...]:
    """Models that are needed whatever is chosen: named ones, and the basics behind `auto`."""
    want = config.models
    names = ["smart-turn-v3.2"]
    names.append("whisper-tiny.en" if want.stt == "auto" else want.stt)
    names.append("piper-joe" if want.voice == "auto" else want.voice)
    if want.voice == "kokoro-int8":
        names.append("kokoro-voices")
    if want.llm != "auto":
        names.append(want.llm)
    return tuple(names)


def _need(config: Config, store: ModelStore, machine: Machine, device: str) -> Need:
    known = (*STT_RANK, *VOICE_RANK, *(spec.name for spec in LLMS))
    present = {name for name in known if store.present(name)}
    if not store.present("kokoro-voices"):
        present.discard("kokoro-int8")
    return Need(
        calls=config.server.max_calls,
        target_ms=target_ms(config, device),
        memory_mb=machine.free_mb,
        present=present,
        fetchable=FETCHABLE_LLMS if config.models.fetch else (),
        want_llm=config.models.llm,
        want_stt=config.models.stt,
        want_voice=config.models.voice,
    )


def _require(store: ModelStore, names: tuple[str, ...], config: Config, stage: StageFn) -> None:
    for name in names:
        if name in REGISTRY and config.models.fetch:

            def show(p: Progress) -> None:
                stage(f"{p.stage} {p.model}", p.done / p.total if p.total else None)

            store.fetch(name, show)
        store.path(name)
