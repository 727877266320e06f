"""What answers: the engine in this process, an engine elsewhere, or one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig

from .choose import TARGET_GPU_MS
from .clock import Clock
from .config import Config
from .context import Chat, Decoder
from .end_of_utterance import EndModel
from .engine_section import EngineSection
from .fallback import Backend, FallbackThinker
from .machine import usable_memory_mb
from .plain_text import CHARS_PER_TOKEN, PlainChat, PlainTokenizer
from .remote import RemoteThinker
from .think import EMBEDDED, EngineThinker, Thinker

GPU_STEP_MS = 30.0
"""An engine step at most: a piece of a voice or a recognition that comes then waits no longer."""
HTTP_REQUESTS = 256
"""That may be open at once. A call has two of its own: its prompt is open all the time, and the
reply it cut may still be ending."""
GPU_SHARE = 0.8
"""Of the GPU's memory, when the configuration names no amount."""


@dataclass(frozen=True, slots=True)
class Brain:
    """max_context: prompt and reply together, in `unit`s, which are the tokenizer's ids.

    engine: the loaded one, None if there is none; it is started and closed by the owner.
    """

    thinker: Thinker
    chat: Chat
    tokenizer: Decoder
    max_context: int
    unit: str
    engine: Engine | None


def load_brain(config: Config, model_path: Path | None, clock: Clock, device: str = "cpu") -> Brain:
    """Blocking; the engine is loaded and not warm. model_path: needed by `llm.needs_engine` only.

    device: the engine's, "cpu" or "cuda". Raises the engine's ModelError, UsageError and
    CapacityError.
    """
    llm = config.llm
    engine = None
    if llm.needs_engine:
        assert model_path is not None
        engine = load_engine(config, model_path, clock, device)
    connections = 2 * config.server.max_calls + 4  # a cancelled reply may still be closing its own
    backends = [
        Backend(name, RemoteThinker(name, remote, clock, max_connections=connections))
        for name, remote in llm.remotes.items()
    ]
    thinker: Thinker
    if engine is not None:
        thinker = EngineThinker(engine, EndModel(engine))
        backends.append(Backend(EMBEDDED, thinker))
    if llm.remotes:
        thinker = FallbackThinker(
            backends[0],
            backends[1] if len(backends) > 1 else None,
            clock,
            cooldown_s=llm.cooldown_s,
            probe_s=llm.first_token_s,
        )
        if engine is None:
            limit = llm.context_tokens * CHARS_PER_TOKEN
            return Brain(thinker, PlainChat(), PlainTokenizer(), limit, "characters", None)
    assert engine is not None
    limit = engine.max_model_len
    if llm.remotes:
        limit = min(limit, llm.context_tokens)
    return Brain(thinker, engine.chat, engine.tokenizer, limit, "tokens", engine)


def load_engine(config: Config, model_path: Path, clock: Clock, device: str = "cpu") -> Engine:
    """The engine of this process as `[engine]` describes it, on that device."""
    section = config.engine
    on_gpu = gpu_settings(section) if device == "cuda" else {}
    return Engine.load(
        EngineConfig(
            model_path=model_path,
            quant=section.quant,
            threads=section.threads or 1,
            kv_cache=section.kv_cache,
            kv_bytes=section.kv_bytes(usable_memory_mb()),
            block_size=section.block_size,
            max_model_len=section.max_model_len,
            max_num_seqs=section.max_num_seqs,
            max_requests=HTTP_REQUESTS + 2 * config.server.max_calls,
            max_num_batched_tokens=section.max_num_batched_tokens,
            scheduling_policy=section.scheduling_policy,
            prefix_cache=section.enable_prefix_caching,
            speculation=section.speculation,
            speculation_tokens=section.speculation_tokens,
            speculation_max_seqs=section.speculation_max_seqs,
            draft_model_path=section.draft_model_path,
            **on_gpu,
        ),
        clock,
    )


def gpu_settings(section: EngineSection) -> dict[str, Any]:
    """What an engine on a GPU is told besides: it shares it with recognition and the voice."""
    share = section.gpu_memory_utilization or GPU_SHARE
    return {
        "device": "cuda",
        "gpu_memory_utilization": 0.0 if section.kv_mb else share,
        "max_step_ms": GPU_STEP_MS,
        "idle_step_ms": GPU_STEP_MS,
        "target_s": TARGET_GPU_MS / 1000.0,
    }
