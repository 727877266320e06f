"""The real engine, its client, sessions, scheduler and cache, with steps that take modelled time.

`EngineLoop.step(now)` runs on the event loop where the engine's thread would call it. A step's
results are made at once and delivered when its time has passed; what is posted meanwhile waits for
the next step, as it does for real.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from engine.client import Engine
from engine.config import EngineConfig
from engine.inputs import Row, Sampled
from engine.launch import AtOnce
from engine.loop import EngineLoop
from engine.request import TextOut
from engine.sampling import SamplingParams
from engine.text.chat import ChatFormat
from engine.text.tokenizer import Tokenizer
from engine.warmup import WarmupReport
from loadtest.bench.llm.virtual import step_ms
from voice_agent.context import Prompt
from voice_agent.end_of_utterance import CALIBRATION, EndModel
from voice_agent.scope import CancelScope
from voice_agent.think import Ahead, EngineThinker, EngineThinking

from .clock import Cores, ServerLoop
from .words import CLOSE_TURN, EOS, N_VOCAB, Words

WHOLE = 1.3
"""Log-odds of the language model that what the caller has said is whole: the median of 20 real
turns with SmolLM2-135M. The same for every pause here."""
BLOCKED_S = 0.005
"""Pause after a step that could plan nothing, as `EngineThread` has it."""


class EngineClock:
    """The loop's time, ahead of it by what the step under way has been predicted to take."""

    def __init__(self, loop: ServerLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def now(self) -> float:
        return self._loop.time() + self.ahead_s


class ModelledRunner(AtOnce):
    """A `StepRunner` that says what it is given to say. work_s: its steps' time, each alone."""

    def __init__(
        self, warmup: WarmupReport, config: EngineConfig, n_blocks: int, max_model_len: int
    ) -> None:
        self.n_blocks = n_blocks
        self.block_size = config.block_size
        self.max_model_len = max_model_len
        self.work_s = 0.0
        self.on_step: Callable[[float], None] = lambda seconds: None
        self._warmup = warmup
        self._took_s = 0.0
        self._scripts: dict[int, Sequence[int]] = {}  # by seed
        self._begin: dict[int, int] = {}

    def say(self, seed: int, tokens: Sequence[int]) -> None:
        """What the request with this seed generates."""
        self._scripts[seed] = tokens

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        seconds = step_ms(self._warmup, rows) / 1000
        self._took_s += seconds
        self.work_s += seconds
        self.on_step(seconds)
        return [self._token(row) for row in rows]

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Costs next to nothing beside a step."""

    def take(self) -> float:
        """Seconds of the steps run since the last call of this."""
        took_s, self._took_s = self._took_s, 0.0
        return took_s

    def _token(self, row: Row) -> Sampled | None:
        if row.sample is None:
            return None
        if row.sample.params.logprobs is not None:  # asked where the utterance ends
            return Sampled(CLOSE_TURN, _WHOLE_LOGPROB, ((CLOSE_TURN, _WHOLE_LOGPROB),))
        seed, position = row.sample.seed, row.sample.position
        at = position - self._begin.setdefault(seed, position)
        script = self._scripts.get(seed, ())
        return Sampled(script[at] if at < len(script) else EOS)


_WHOLE_LOGPROB = -math.log1p(math.exp((CALIBRATION.offset - WHOLE) / CALIBRATION.slope))


class _Bell:
    """Stands where the engine loop's condition does; there is one thread."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def notify(self) -> None:
        self.rung.set()


class ModelledEngine(Engine):
    """`start` and `close` belong to the event loop; all else is the engine's own."""

    def __init__(
        self,
        config: EngineConfig,
        warmup: WarmupReport,
        loop: ServerLoop,
        device: Cores,
        words: Words,
        *,
        n_blocks: int,
        max_model_len: int,
    ) -> None:
        self.runner = ModelledRunner(warmup, config, n_blocks, max_model_len)
        self._time = EngineClock(loop)
        super().__init__(
            config,
            self.runner,
            tokenizer=cast(Tokenizer, words),
            chat=cast(ChatFormat, words),
            make_text=lambda request: cast(TextOut, words.text_of(request)),
            eos_ids=frozenset({EOS}),
            n_vocab=N_VOCAB,
            clock=self._time,
        )
        self._scheduler.pace.use(warmup.cost)
        self.warmup = warmup
        self._vloop = loop
        self._device = device
        self._bell = _Bell()
        cast(Any, self._loop)._wake = self._bell
        self._running: asyncio.Task[None] | None = None
        self.busy_s = 0.0
        self.runner.on_step = self._predict

    def _predict(self, seconds: float) -> None:
        """So that the engine learns how fast its steps go here."""
        self._time.ahead_s += seconds * self._device.slowness

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._drive(self._loop))

    def close(self) -> None:
        self._closed = True
        if self._running is not None:
            self._running.cancel()

    async def _drive(self, loop: EngineLoop) -> None:
        while True:
            self._bell.rung.clear()
            if not (loop.has_work or cast(Any, loop)._inbox):
                await self._bell.rung.wait()
            with self._vloop.holding() as made:
                ran = loop.step(self._vloop.time())
            self._time.ahead_s = 0.0
            took_s = self.runner.take()
            if took_s:
                self.busy_s += await self._device.work(took_s)
            for callback, arguments in made:
                callback(*arguments)
            if not took_s:
                stuck = not ran and loop.has_work
                await asyncio.sleep(BLOCKED_S if stuck else 0.0)


class Scripted(EngineThinker):
    """The engine as calls have it; what it says is given by `answer`.

    answer: (call, words of the caller) -> tokens of the reply.
    """

    def __init__(
        self,
        engine: Engine,
        answer: Callable[[str, str], Sequence[int]],
        runner: ModelledRunner,
    ) -> None:
        self._end = EndModel(engine)
        super().__init__(engine, self._end)
        self._runner = runner
        self._answer = answer
        self._seeds = itertools.count(1)

    def _scripted(self, prompt: Prompt, sampling: SamplingParams, call: str) -> SamplingParams:
        seed = next(self._seeds)
        self._runner.say(seed, self._answer(call, prompt.messages[-1][1]))
        return replace(sampling, seed=seed)

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
        return super().think(
            prompt,
            self._scripted(prompt, sampling, call),
            call=call,
            tenant=tenant,
            deadline_s=deadline_s,
            scope=scope,
        )


class WholePrompts(Scripted):
    """For static batching: whole prompts once they are known, nothing ahead, nothing kept."""

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
        params = self._scripted(prompt, sampling, call)
        generation = self._engine.submit(prompt.ids, params, tenant=tenant, deadline_s=deadline_s)
        scope.on_cancel(generation.abort)
        return EngineThinking(generation)

    async def end_of_utterance(
        self, prompt: Prompt, *, call: str, tenant: str, deadline_s: float
    ) -> float | None:
        return await self._end.log_odds(prompt.ids, tenant=tenant, deadline_s=deadline_s)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        return Ahead()

    def forget(self, call: str) -> None: ...

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None: ...
