"""The real loop, scheduler and cache in virtual time: a step takes what this machine measured.

For figures that need thousands of requests, or more calls than one machine's minutes allow. No
Python and no delivery is counted, and tokens are made up; everything else is the engine's own.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, cast

from engine.config import EngineConfig
from engine.inputs import Row, Sampled
from engine.kvcache import KvCache
from engine.launch import AtOnce
from engine.loop import EngineLoop
from engine.request import Output, Request, TextOut
from engine.sampling import SamplingParams
from engine.scheduler import Scheduler
from engine.static import StaticScheduler
from engine.warmup import WarmupReport
from loadtest.bench.llm.measure import Reply

EOS = 0
_PATIENCE_S = 0.001
"""How far time goes on when nothing could run and nothing is due: static batches wait so."""


class VirtualClock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


def step_ms(warmup: WarmupReport, rows: Sequence[Row]) -> float:
    """What a step over these rows takes, by what warm-up measured."""
    n_decode = sum(1 for row in rows if len(row.token_ids) == 1)
    n_prompt = sum(len(row.token_ids) for row in rows) - n_decode
    if not n_prompt:
        return warmup.predict_decode_ms(n_decode)
    prompt_ms = warmup.predict_prefill_ms(n_prompt)
    if not n_decode:
        return prompt_ms
    return warmup.predict_decode_ms(n_decode) + prompt_ms - warmup.decode_ms[0][1]


class TimedRunner(AtOnce):
    """A `StepRunner` that moves the clock. busy_s: the time its steps have taken."""

    def __init__(
        self, clock: VirtualClock, warmup: WarmupReport, config: EngineConfig, n_blocks: int
    ) -> None:
        self.n_blocks = n_blocks
        self.block_size = config.block_size
        self.max_model_len = config.max_model_len or 8192
        self.busy_s = 0.0
        self.longest_ms = 0.0
        self.ends: dict[int, int] = {}
        """A request's seed -> the position at which its reply ends."""
        self._clock = clock
        self._warmup = warmup

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        ms = step_ms(self._warmup, rows)
        self.longest_ms = max(self.longest_ms, ms)
        self.busy_s += ms / 1000
        self._clock.time_s += ms / 1000
        return [self._token(row) for row in rows]

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies cost next to nothing beside a step."""

    def _token(self, row: Row) -> Sampled | None:
        if row.sample is None:
            return None
        position, seed = row.sample.position, row.sample.seed
        if position >= self.ends.get(seed, 1 << 30):
            return Sampled(EOS)
        return Sampled(1 + (seed * 7919 + position * 104_729) % 40_000)


class _Immediate:
    """Stands where an asyncio loop does."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        callback(*args)


class _Text:
    """Every token is text at once."""

    stopped = False

    def push(self, token: int) -> str:
        return "."

    def finish(self) -> str:
        return ""


class Listener:
    """A request's sink: fills a `Reply`, and tells `on_tokens` and `on_end` of what came."""

    loop = cast(asyncio.AbstractEventLoop, _Immediate())

    def __init__(self, clock: VirtualClock) -> None:
        self.reply = Reply(clock.now())
        self.on_tokens: Callable[[float, int], None] = _nothing
        self.on_end: Callable[[float], None] = _nothing_ends
        self._clock = clock

    def accept(self, output: Output) -> None:
        now, n = self._clock.now(), len(output.token_ids)
        if n:
            self.reply.times.append(now)
            self.reply.n_tokens += n
            if self.reply.first_text_s is None:
                self.reply.first_text_s = now
            self.on_tokens(now, n)
        self.reply.n_cached = output.cached_tokens
        if output.error is not None:
            self.reply.error = str(output.error)
        if output.finish is not None:
            self.on_end(now)


def _nothing(now: float, n: int) -> None: ...


def _nothing_ends(now: float) -> None: ...


class VirtualEngine:
    """One engine and the events to come. `later` and `ask` may be called while it runs."""

    def __init__(
        self,
        config: EngineConfig,
        warmup: WarmupReport,
        n_blocks: int,
        *,
        exact_tails: bool = True,
    ) -> None:
        """exact_tails: whether a partly matching block is copied, or only whole ones count."""
        self.clock = VirtualClock()
        self.runner = TimedRunner(self.clock, warmup, config, n_blocks)
        static = config.batching == "static"
        self.kv = KvCache(
            n_blocks,
            config.block_size,
            max_pinned=int(n_blocks * config.pin_fraction),
            prefix_cache="none" if static else config.prefix_cache,
        )
        if not exact_tails:
            whole = self.kv.open
            self.kv.open = (  # type: ignore[method-assign]
                lambda *a, partial=False, **k: whole(*a, partial=False, **k)
            )
        longest = self.runner.max_model_len
        self.scheduler = (
            StaticScheduler(config, self.kv, warmup.cost, longest)
            if static
            else Scheduler(config, self.kv, warmup.cost)
        )
        self.loop = EngineLoop(
            self.runner,
            self.kv,
            self.scheduler,
            make_text=lambda request: cast(TextOut, _Text()),
            eos_ids=frozenset({EOS}),
            clock=self.clock,
            on_finished=lambda request: None,
        )
        self.peak_running = 0
        self._config = config
        self._ids = itertools.count(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def later(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._ids), event))

    def ask(
        self,
        prompt: Sequence[int],
        n_out: int,
        *,
        max_new: int | None = None,
        pin_key: str | None = None,
        prefill_only: bool = False,
    ) -> tuple[int, Listener]:
        """Submit now. max_new: what the engine is told, where only the model knows `n_out`."""
        listener = Listener(self.clock)
        request_id = next(self._ids)
        self.runner.ends[request_id] = len(prompt) + n_out
        now = self.clock.now()
        self.loop.post_submit(
            Request(
                request_id,
                prompt,
                SamplingParams(max_tokens=max_new or n_out),
                seed=request_id,
                max_new=max_new or n_out,
                arrival_s=now,
                deadline_s=now + self._config.target_s,
                pin_key=pin_key,
                prefill_only=prefill_only,
                sink=listener,
            )
        )
        return request_id, listener

    def set_deadline(self, request_id: int, deadline_s: float) -> None:
        self.loop.post_deadline(request_id, deadline_s)

    def run(self, until_s: float = float("inf")) -> None:
        """Until `until_s`, or until nothing is left to do."""
        while self.clock.now() < until_s:
            now = self.clock.now()
            while self._events and self._events[0][0] <= now:
                heapq.heappop(self._events)[2]()
            ran = self.loop.step(now)
            self.peak_running = max(self.peak_running, self.scheduler.n_running)
            if ran:
                continue
            coming = self._events[0][0] if self._events else None
            if self.scheduler.requests:
                ahead = now + _PATIENCE_S
                self.clock.time_s = ahead if coming is None else max(now, min(ahead, coming))
            elif coming is not None:
                self.clock.time_s = max(now, coming)
            else:
                return
