"""What the load test's server has instead of the house's own: a scripted model, or a naive build.

The naive build ("baseline") is what a plain server does on the same models and the same
endpointing: static batching, every stage first come first served, no prefix cache and hence no
prompt that is computed ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig
from engine.sampling import SamplingParams
from loadtest.words import ScriptedThinker
from voice_agent.brain import Brain
from voice_agent.clock import MonotonicClock
from voice_agent.config import Config
from voice_agent.context import Prompt
from voice_agent.library.parts import Parts
from voice_agent.machine import usable_memory_mb
from voice_agent.models import ModelStore
from voice_agent.scope import CancelScope
from voice_agent.stt import jobs
from voice_agent.think import Ahead, EngineThinking
from voice_agent.tts import service

MAX_MODEL_LEN = 2048
"""Static batching reserves the blocks of the longest sequence for every member of a batch."""


def parts_for(*, script: bool, baseline: bool) -> Parts:
    """Call in the server's own process: a baseline changes how its stages order their work."""
    if baseline:
        first_come_first_served()
    if script:
        return Parts(thinker=ScriptedThinker())
    return StaticParts() if baseline else Parts()


def first_come_first_served() -> None:
    """Recognition and voice of this process serve in order of arrival from now on."""
    setattr(jobs.JobQueue, "_pick", _oldest_job)  # noqa: B010
    setattr(service.VoiceService, "_choose", _oldest_clause)  # noqa: B010


def _oldest_job(queue: Any) -> Any:
    queue._jobs = queue._live()
    return queue._jobs.pop(0) if queue._jobs else None


def _oldest_clause(voices: Any) -> Any:
    """Of those whose consumer has room for a piece."""
    room = (j for j in voices._jobs if not j.busy and j.pending < voices._max_pending)
    return next(room, None)


@dataclass(frozen=True, slots=True)
class StaticParts(Parts):
    """The configured language model behind static batching."""

    def brain(self, config: Config) -> Brain:
        section = config.engine
        engine = Engine.load(
            EngineConfig(
                model_path=ModelStore(sources=config.models.sources).path(config.models.llm),
                quant=section.quant,
                threads=section.threads or 1,
                kv_cache=section.kv_cache,
                kv_bytes=section.kv_bytes(usable_memory_mb()),
                block_size=section.block_size,
                max_model_len=min(section.max_model_len, MAX_MODEL_LEN),
                max_num_seqs=section.max_num_seqs,
                batching="static",
                scheduling_policy="fcfs",
                prefix_cache="none",
            ),
            MonotonicClock(),
        )
        limit = engine.max_model_len
        thinker = WholePromptThinker(engine)
        return Brain(thinker, engine.chat, engine.tokenizer, limit, "tokens", engine)


class WholePromptThinker:
    """`voice_agent.think.Thinker` without sessions: every reply begins with its whole prompt."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> EngineThinking:
        generation = self._engine.submit(prompt.ids, sampling, tenant=tenant)
        scope.on_cancel(generation.abort)
        return EngineThinking(generation)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        return Ahead()

    def forget(self, call: str) -> None:
        """Nothing is kept."""

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        """Nothing could be kept."""

    async def close(self) -> None:
        """The engine's owner closes it."""
