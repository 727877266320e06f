"""From a configuration to a `Stack`: look at the machine, choose models, load and warm them.

Blocking work runs on a worker thread so that the event loop can show progress and answer /healthz.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from engine.client import Engine
from engine.config import EngineConfig

from .agent_file import DEFAULT, AgentShelf, agent_names
from .choose import Choice as Models
from .choose import choose
from .clock import MonotonicClock
from .config import Config
from .errors import UsageError
from .machine import Machine, inspect
from .measure import load_voice, measure
from .models import REGISTRY, ModelStore
from .reply import Speaker
from .scope import CancelScope
from .selection import BASIC, ensure, need_of, pick_device, target_ms
from .smart_turn import SmartTurn
from .stack import Choice, Progress, Stack
from .stt.whisper import WhisperRecognizer
from .think import EngineThinker
from .tts.base import AudioPiece, Clause, Styled, Voice
from .tts.service import VoiceService
from .vad import VadService

log = logging.getLogger(__name__)

DEFAULT_LLM = "qwen2.5-0.5b"


@dataclass(frozen=True, slots=True)
class NamedVoice:
    """One voice of the shared voice thread, as a reply sees it."""

    service: VoiceService
    voice: Voice

    def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        return self.service.speak(
            clause, speed=speed, deadline_s=deadline_s, scope=scope, voice=self.voice
        )


async def load_stack(config: Config, progress: Progress = lambda stage, share: None) -> Stack:
    """Everything loaded and warm, nothing started.

    Raises UsageError, CapacityError, InternalError.
    """
    return await asyncio.to_thread(_load, config, progress)


def _load(config: Config, progress: Progress) -> Stack:
    store = ModelStore(sources=config.models.sources)
    progress("looking at the machine", None)
    machine = inspect()
    device = runs_on(config, machine)
    models = _choose(config, machine, device, store, progress)
    clock = MonotonicClock()

    progress(f"loading {models.stt}", None)
    recognizer = WhisperRecognizer(_path(store, models.stt), threads=1, clock=clock)
    recognizer.warm()
    vad = VadService(clock)
    vad.warm()
    progress("loading smart-turn-v3.2", None)
    smart_turn = SmartTurn(store.path("smart-turn-v3.2"))
    smart_turn.warm()
    progress(f"loading {models.voice}", None)
    voice = load_voice(store, models.voice, threads=1)
    voice.warm()
    voices = VoiceService(voice, clock)
    progress(f"loading {models.llm}", None)
    engine = _engine(config, _path(store, models.llm), clock)
    progress("warming the engine", None)
    engine.warm()

    return Stack(
        clock=clock,
        vad=vad,
        smart_turn=smart_turn,
        recognizer=recognizer,
        thinker=EngineThinker(engine),
        chat=engine.chat,
        tokenizer=engine.tokenizer,
        speakers=_speakers(voices, voice),
        default_voice=voice.name,
        shelf=AgentShelf(config.agents_dir),
        names=_agent_order(config),
        max_context_tokens=engine.max_model_len,
        target_s=target_ms(config, device) / 1000.0,
        log_content=config.log.content,
        engine=engine,
        voices=voices,
        choices=_explained(models, device),
        closers=(recognizer.close, smart_turn.close, engine.close),
    )


def runs_on(config: Config, machine: Machine) -> str:
    """Where the models run: `cpu`. Raises UsageError VA476 when a GPU is asked for."""
    if pick_device(config, machine) != "cpu" and config.profile == "gpu":
        raise UsageError(
            'profile = "gpu": the models run on the CPU only, as yet; use profile = "cpu"',
            code="VA476",
        )
    return "cpu"


def _choose(
    config: Config, machine: Machine, device: str, store: ModelStore, progress: Progress
) -> Models:
    """The models to load; those that are missing are fetched, if that is allowed."""
    wanted = config.models
    first = {*BASIC, wanted.stt, wanted.voice, DEFAULT_LLM if wanted.llm == "auto" else wanted.llm}
    if wanted.voice.startswith("kokoro"):
        first.add("kokoro-voices")
    ensure(store, sorted(first & REGISTRY.keys()), fetch=wanted.fetch, stage=progress)
    if "auto" not in (wanted.stt, wanted.llm, wanted.voice):
        return Models(wanted.llm, wanted.stt, wanted.voice, "as configured", ())
    progress("measuring this machine", None)
    speeds = measure(store, machine, stage=lambda s: progress(f"measuring {s}", None))
    chosen = choose(speeds, need_of(config, store, machine, device))
    ensure(store, [chosen.llm], fetch=wanted.fetch, stage=progress)
    return chosen


def _path(store: ModelStore, name: str) -> Path:
    """A registry model's verified path, or the operator's own path as it is."""
    if name in REGISTRY:
        return store.path(name)
    path = Path(name).expanduser()
    if not path.exists():
        known = ", ".join(sorted(REGISTRY))
        raise UsageError(f"{name!r} is neither a known model ({known}) nor a path", code="VA477")
    return path


def _engine(config: Config, path: Path, clock: MonotonicClock) -> Engine:
    section = config.engine
    return Engine.load(
        EngineConfig(
            model_path=path,
            quant=section.quant,
            threads=section.threads or 1,
            kv_bytes=section.kv_mb << 20,
            max_model_len=section.max_model_len,
            max_batch=section.max_batch,
        ),
        clock,
    )


def _speakers(service: VoiceService, voice: Voice) -> dict[str, Speaker]:
    """The loaded voice, and each style of a model that has several, by name."""
    named: dict[str, Speaker] = {voice.name: NamedVoice(service, voice)}
    if isinstance(voice, Styled):
        named |= {n: NamedVoice(service, voice.styled(n)) for n in voice.style_names}
    return named


def _agent_order(config: Config) -> list[str]:
    """Every agent, the default one first."""
    names = [n for n in agent_names(config.agents_dir) if n != config.default_agent]
    if config.default_agent != DEFAULT and DEFAULT in names:
        names.remove(DEFAULT)
        names.append(DEFAULT)
    return [config.default_agent, *names]


def _explained(models: Models, device: str) -> tuple[Choice, ...]:
    return (
        Choice("recognition", models.stt, device, models.why),
        Choice("language model", models.llm, device, models.why),
        Choice("voice", models.voice, device, models.why),
        *(Choice("prediction", str(p), device, "") for p in models.predictions),
    )
