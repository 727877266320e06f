"""From a configuration to a `Stack`: look at the machine, choose models, load and warm them.

Blocking work runs on a worker thread so that the event loop can show progress and answer /healthz.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .agent_file import DEFAULT, AgentShelf, agent_names
from .brain import load_brain
from .choose import REMOTE, choose
from .choose import Choice as Models
from .clock import MonotonicClock
from .config import Config
from .early import EarlyLimits
from .errors import UsageError
from .forecast import Processors
from .history.history import open_history
from .library.adapters import OwnRecognizer, OwnVoice
from .library.agent import GivenAgents
from .library.parts import Parts
from .machine import Machine, inspect
from .measure import load_voice, measure, read_speeds, speeds_path, spoken_sample, utterance
from .models import REGISTRY, ModelStore
from .recording import Recorder
from .reply import Speaker
from .scope import CancelScope
from .selection import ensure, need_of, pick_device, target_ms, voice_device, wanted_first
from .smart_turn import SmartTurn
from .stack import ANSWER_WITHIN_S, GPU_ANSWER_WITHIN_S, Choice, Progress, Stack
from .stage_plan import StagePlan, plan_stages
from .stt.whisper import WhisperRecognizer
from .think import EMBEDDED
from .tools.toolbox import Toolbox
from .tracing import open_tracing
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


async def load_stack(
    config: Config, progress: Progress = lambda stage, share: None, parts: Parts | None = None
) -> Stack:
    """Everything loaded and warm, nothing started. parts: what a program brings of its own.

    Raises UsageError, CapacityError, InternalError.
    """
    return await asyncio.to_thread(_load, config, progress, parts or Parts())


def _load(config: Config, progress: Progress, parts: Parts) -> Stack:
    config = parts.settled(config)
    store = ModelStore(sources=config.models.sources)
    progress("looking at the machine", None)
    machine = inspect()
    device = pick_device(config, machine)
    models = _choose(config, machine, device, store, progress)
    clock = MonotonicClock()
    tracing = open_tracing(config, clock)
    history = open_history(config, clock)
    recorder = Recorder(config.recording) if config.recording.folder is not None else None

    target_s = target_ms(config, device) / 1000.0
    plan = stage_plan(config, models, machine, device)
    recognizer = _recognizer(parts, models, store, clock, device, plan, target_s, progress)
    vad = VadService(clock)
    vad.warm()
    progress("loading smart-turn-v3.2", None)
    smart_turn = SmartTurn(store.path("smart-turn-v3.2"))
    smart_turn.warm()
    voice: Voice
    if parts.voice is not None:
        voice = OwnVoice(parts.voice)
    else:
        progress(f"loading {models.voice}", None)
        voice = load_voice(store, models.voice, threads=plan.voice.threads, device=device)
        voice.warm()
        if not isinstance(recognizer, OwnRecognizer):
            recognizer.learn(utterance(spoken_sample(voice)))
    voices = VoiceService(voice, clock, workers=plan.voice.workers, target_s=target_s)
    path = _path(store, models.llm) if config.llm.needs_engine else None
    if path is not None:
        progress(f"loading {models.llm}", None)
    brain = parts.brain(config) or load_brain(config, path, clock, device)
    closers: list[Callable[[], None]] = [recognizer.close, smart_turn.close]
    if brain.engine is not None:
        progress("warming the engine", None)
        brain.engine.warm()
        closers.append(brain.engine.close)

    stack = Stack(
        clock=clock,
        vad=vad,
        smart_turn=smart_turn,
        recognizer=recognizer,
        thinker=brain.thinker,
        chat=brain.chat,
        tokenizer=brain.tokenizer,
        speakers=_speakers(voices, voice),
        default_voice=voice.name,
        shelf=GivenAgents(parts.files()) if parts.agents else AgentShelf(config.agents_dir),
        names=list(parts.agents) or agent_order(config),
        scripts={name: agent.script for name, agent in parts.agents.items() if agent.script},
        toolbox=Toolbox(config.tools.private_hosts),
        max_context=brain.max_context,
        context_unit=brain.unit,
        target_s=target_s,
        answer_within_s=ANSWER_WITHIN_S if device == "cpu" else GPU_ANSWER_WITHIN_S,
        content=config.privacy.content,
        engine=brain.engine,
        engine_model=Path(models.llm).name,
        models=model_names(config, models),
        announcement=config.recording.announcement if recorder is not None else "",
        tracing=tracing,
        history=history,
        voices=voices,
        voice_cache_s=config.voice.cache_s,
        early=EarlyLimits(**config.early.model_dump()),
        shorten_replies=config.load.shorten_replies,
        processors=Processors(machine.cores) if device == "cpu" else None,
        choices=(*explained(config, models, device), Choice("workers", str(plan), device, "")),
        closers=(*closers, *(k.close for k in (tracing, recorder, history) if k is not None)),
    )
    if recorder is not None:
        stack.make_call = recorder.make_call
    return stack


def _recognizer(
    parts: Parts,
    models: Models,
    store: ModelStore,
    clock: MonotonicClock,
    device: str,
    plan: StagePlan,
    target_s: float,
    progress: Progress,
) -> WhisperRecognizer | OwnRecognizer:
    if parts.recognizer is not None:
        return OwnRecognizer(parts.recognizer, clock)
    progress(f"loading {models.stt}", None)
    recognizer = WhisperRecognizer(
        _path(store, models.stt),
        threads=plan.stt.threads,
        workers=plan.stt.workers,
        clock=clock,
        device=device,
        target_s=target_s,
    )
    recognizer.warm()
    return recognizer


def stage_plan(config: Config, models: Models, machine: Machine, device: str) -> StagePlan:
    """By the speeds that were measured here; before `doctor` or `up` has measured: the least."""
    speeds = read_speeds(speeds_path(machine, device))
    calls = config.server.max_calls
    return plan_stages(speeds, models.stt, models.voice, calls, machine.cores)


def _choose(
    config: Config, machine: Machine, device: str, store: ModelStore, progress: Progress
) -> Models:
    """The models to load; those that are missing are fetched, if that is allowed."""
    wanted, llm, known = config.models, config.models.llm, REGISTRY.keys()
    if not config.llm.needs_engine:
        llm = REMOTE.name
    first = wanted_first(config, device) | ({DEFAULT_LLM if llm == "auto" else llm} & known)
    ensure(store, sorted(first), fetch=wanted.fetch, stage=progress)
    if "auto" not in (wanted.stt, llm, wanted.voice):
        return Models(llm, wanted.stt, wanted.voice, "as configured", ())
    progress("measuring this machine", None)
    speeds = measure(
        store, machine, device=device, stage=lambda s: progress(f"measuring {s}", None)
    )
    chosen = choose(speeds, need_of(config, store, machine, device))
    ensure(store, {chosen.llm} & known, fetch=wanted.fetch, stage=progress)
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


def _speakers(service: VoiceService, voice: Voice) -> dict[str, Speaker]:
    """The loaded voice, and each style of a model that has several, by name."""
    named: dict[str, Speaker] = {voice.name: NamedVoice(service, voice)}
    if isinstance(voice, Styled):
        named |= {n: NamedVoice(service, voice.styled(n)) for n in voice.style_names}
    return named


def agent_order(config: Config) -> list[str]:
    """Every agent, the default one first."""
    names = [n for n in agent_names(config.agents_dir) if n != config.default_agent]
    if config.default_agent != DEFAULT and DEFAULT in names:
        names.remove(DEFAULT)
        names.append(DEFAULT)
    return [config.default_agent, *names]


def model_names(config: Config, models: Models) -> dict[str, str]:
    """Backend -> model, as traces name them."""
    names = {name: remote.model for name, remote in config.llm.remotes.items()}
    if config.llm.needs_engine:
        names[EMBEDDED] = Path(models.llm).name
    return names


def explained(config: Config, models: Models, device: str) -> tuple[Choice, ...]:
    """What `up` prints of the models, and of the language models elsewhere."""
    return (
        Choice("recognition", models.stt, device, models.why),
        *_language_models(config, models, device),
        Choice("voice", models.voice, voice_device(models.voice, device), models.why),
        *(Choice("prediction", str(p), device, "") for p in models.predictions),
    )


def _language_models(config: Config, models: Models, device: str) -> Iterator[Choice]:
    """Who answers, and who takes over."""
    jobs = iter(("language model", "its fallback"))
    for remote in config.llm.remotes.values():
        yield Choice(next(jobs), remote.model, remote.base_url, "")
    if config.llm.needs_engine:
        yield Choice(next(jobs), models.llm, device, models.why)
