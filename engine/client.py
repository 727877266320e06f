"""The asyncio face of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine.budget import CostModel
from engine.clock import Clock, MonotonicClock
from engine.config import EngineConfig
from engine.errors import CapacityError, UsageError
from engine.gc_watch import GcWatch
from engine.generation import Completion, Delta, Generation, GenerationSink, Usage
from engine.grammar.desk import GrammarDesk
from engine.histogram import HistogramSnapshot
from engine.inbox import Commit, Revise, Truncate
from engine.kvcache import KvCache
from engine.launch import StepRunner
from engine.limits import Limits
from engine.loop import EngineLoop
from engine.prefix import Scope
from engine.request import FinishReason, Output, Request, TextOut
from engine.sampling import SamplingParams
from engine.scheduler import Scheduler
from engine.session import Session
from engine.speculate.speculation import speculation_for
from engine.static import StaticScheduler
from engine.stats import EngineStats, collect, histograms
from engine.thread import EngineThread
from engine.warmup import WarmupReport, free_memory_mb, freeze_garbage, measure
from kernels import compile_watch

if TYPE_CHECKING:
    from engine.grammar.compiler import GrammarCompiler
    from engine.text.chat import ChatFormat
    from engine.text.tokenizer import Tokenizer

__all__ = [
    "Completion", "Delta", "Engine", "EngineStats", "FinishReason", "Generation", "Session",
    "Usage",
]  # fmt: skip

log = logging.getLogger(__name__)

_UNMEASURED = CostModel(base_ms=10.0, per_token_ms=1.0)


class Engine:
    """Loaded weights, one KV cache, one engine thread.

    `load` and `warm` block; `submit`, `prefill` and `unpin` are called on a running event loop
    (any number of loops). `close` blocks until the thread has ended.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: StepRunner,
        *,
        tokenizer: Tokenizer,
        chat: ChatFormat,
        make_text: Callable[[Request], TextOut],
        eos_ids: frozenset[int],
        n_vocab: int,
        clock: Clock,
        grammars: GrammarCompiler | None = None,
        draft: StepRunner | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.chat = chat
        self.warmup: WarmupReport | None = None
        self._runner = runner
        self._clock = clock
        limit = runner.max_model_len
        self.max_model_len = min(limit, config.max_model_len or limit)
        max_pinned = int(runner.n_blocks * config.pin_fraction)
        self._limits = Limits(
            n_vocab, self.max_model_len, runner.n_blocks, runner.block_size, max_pinned,
            has_grammars=grammars is not None,
        )  # fmt: skip
        self._kv = KvCache(
            runner.n_blocks,
            runner.block_size,
            max_pinned=max_pinned,
            prefix_cache=config.prefix_cache if config.batching == "continuous" else "none",
        )
        self._scheduler = (
            Scheduler(config, self._kv, _UNMEASURED, speculation_for(config, draft, clock.now))
            if config.batching == "continuous"
            else StaticScheduler(config, self._kv, _UNMEASURED, self.max_model_len)
        )
        self._loop = EngineLoop(
            runner,
            self._kv,
            self._scheduler,
            make_text=make_text,
            eos_ids=eos_ids,
            clock=clock,
            on_finished=self._on_finished,
        )
        self._thread = EngineThread(self._loop, clock)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._n_open = 0
        self._gc = GcWatch()
        self._headroom_mb = 0
        self._compiles: int | None = None  # made by the end of warm-up
        self._started = False
        self._closed = False
        self._desk: GrammarDesk | None = None
        if grammars is not None:
            self._desk = GrammarDesk(grammars, self._loop.post_submit, self._refuse)

    @classmethod
    def load(cls, config: EngineConfig, clock: Clock | None = None) -> Engine:
        """Read the weights and allocate the KV cache. Raises `ModelError`, `CapacityError`."""
        from engine.assembly import load_parts  # torch loads with the first engine, not before

        parts = load_parts(config)
        return cls(
            config,
            parts.runner,
            tokenizer=parts.tokenizer,
            chat=parts.chat,
            make_text=parts.make_text,
            eos_ids=parts.eos_ids,
            n_vocab=parts.n_vocab,
            clock=clock or MonotonicClock(),
            grammars=parts.grammars,
            draft=parts.draft,
        )

    def warm(self, known: WarmupReport | None = None) -> WarmupReport:
        """Run the shapes once and fit the step-cost model. Call before `start`.

        known: measured before on the same runner; then nothing is run.
        """
        if self._started or self._closed:
            raise UsageError("warm the engine before it starts")
        report = known or self._thread.call(self._measure)
        self._scheduler.pace.use(report.cost)
        self.warmup = report
        freeze_garbage()
        self._gc.start()
        self._headroom_mb = free_memory_mb()
        self._compiles = compile_watch.arm()
        log.info(
            "engine warm: step %.1f ms + %.2f ms per token, %d KV blocks",
            report.cost.base_ms, report.cost.per_token_ms, self._kv.pool.n_total,
        )  # fmt: skip
        return report

    def _measure(self) -> WarmupReport:
        c = self.config
        return measure(
            self._runner,
            self._kv.pool,
            max_num_seqs=c.max_num_seqs,
            max_num_batched_tokens=c.max_num_batched_tokens,
        )

    def start(self) -> None:
        """Start the engine thread, once."""
        if self._closed or self._started:
            raise UsageError("an engine starts once")
        self._started = True
        self._thread.start()

    def close(self) -> None:
        """Abort what is open and end the thread. Idempotent."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        for request in self._desk.stop() if self._desk else ():
            self._end_unstarted(request, FinishReason.ABORTED)
        self._thread.stop()
        self._gc.stop()
        if self._desk is not None:
            self._desk.close()

    def submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str = "default",
        call: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
        background: bool = False,
        pin_key: str | None = None,
    ) -> Generation:
        """Start a generation; returns at once.

        prompt_ids: token ids, at least one. tenant: whose prefix cache is used, never shared.
        call: what this request computes is shown to the same call only, until `forget`; without
        one, to the whole tenant. priority: lower goes first, under the policy of that name.
        deadline_s: when the first sound is due, in seconds of the engine's clock. pin_key: keep the
        whole context cached under this key once it ends (until `unpin`, a time to live, or the pin
        budget). Raises `UsageError` for a prompt that cannot be served as it is, `CapacityError`
        when the queue is full or the KV cache could never hold it.
        """
        return self._submit(
            prompt_ids,
            params,
            tenant=tenant,
            call=call,
            priority=priority,
            deadline_s=deadline_s,
            background=background,
            pin_key=pin_key,
            pin_ttl_s=self.config.pin_ttl_s,
        )

    def session(self, *, tenant: str = "default", call: str | None = None) -> Session:
        """A context that grows while its caller speaks. call: None gives it a name of its own."""
        if self.config.batching == "static":
            raise UsageError("static batching has no sessions: a batch takes whole prompts")
        return Session(self, tenant, call or f"session {next(self._ids)}")

    def forget(self, call: str) -> None:
        """The call is over: end its requests, drop its pins, free what it alone could see."""
        self._loop.post_call_over(call)

    async def prefill(
        self,
        prompt_ids: Sequence[int],
        *,
        tenant: str = "default",
        pin_key: str | None = None,
        ttl_s: float = math.inf,
        background: bool = False,
    ) -> Usage:
        """Compute a prefix into the cache and, with `pin_key`, keep it there.

        A later prefill under the same key replaces the pin. Raises `CapacityError` if the prefix
        is larger than all pins may be.
        """
        if pin_key is not None:
            self._limits.check_pin(len(prompt_ids))
        generation = self._submit(
            prompt_ids,
            SamplingParams(max_tokens=1),
            tenant=tenant,
            deadline_s=None,
            background=background,
            pin_key=pin_key,
            pin_ttl_s=ttl_s,
            prefill_only=True,
        )
        await generation.collect()
        return generation.usage

    def unpin(self, key: str) -> None:
        """Let a pinned prefix go; an unknown key is fine."""
        self._loop.post_unpin(key)

    def pulse(self) -> tuple[bool, bool, int]:
        """(the thread runs, it has work, steps that came back); from any thread."""
        thread = self._thread
        return thread.alive or not self._started or self._closed, thread.busy, thread.rounds

    def stats(self) -> EngineStats:
        """A snapshot; from any thread."""
        late = compile_watch.total() - self._compiles if self._compiles is not None else 0
        return collect(self._loop, self._gc, self._headroom_mb, late)

    def histograms(self) -> dict[str, dict[str, HistogramSnapshot]]:
        """Distributions since start, by metric and class of request; from any thread."""
        return histograms(self._loop)

    def _submit(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        tenant: str,
        deadline_s: float | None,
        background: bool,
        pin_key: str | None,
        pin_ttl_s: float,
        call: str | None = None,
        priority: int = 0,
        prefill_only: bool = False,
        held: bool = False,
    ) -> Generation:
        prompt = tuple(prompt_ids)
        max_new = self._limits.check(prompt, params, generates=not (prefill_only or held))
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError("submit is called on a running event loop") from None
        now = self._clock.now()
        deadline_s = self._deadline(deadline_s, now, background=background)
        self._enter()
        request_id = next(self._ids)
        generation = Generation(
            request_id, len(prompt), loop, self._abort, self._loop.post_deadline
        )
        request = Request(
            request_id,
            prompt,
            params,
            seed=_seed(params),
            max_new=max_new,
            arrival_s=now,
            deadline_s=deadline_s,
            tenant=tenant,
            call=call,
            priority=priority,
            background=background,
            prefill_only=prefill_only,
            held=held,
            pin_key=pin_key,
            pin_ttl_s=pin_ttl_s,
            sink=GenerationSink(generation, self._abort),
        )
        if params.grammar is None or self._desk is None:
            self._loop.post_submit(request)
        else:
            self._desk.take(request)
        return generation

    def _deadline(self, deadline_s: float | None, now: float, *, background: bool) -> float:
        c = self.config
        target_s = c.background_target_s if background else c.target_s
        return now + target_s if deadline_s is None else deadline_s

    # what a session asks for

    def hold(self, prompt_ids: Sequence[int], scope: Scope, pin_key: str) -> Generation:
        """Compute a prompt that may still change; nothing is generated before `commit_held`."""
        return self._submit(
            prompt_ids,
            SamplingParams(max_tokens=1),
            tenant=scope.tenant,
            call=scope.call,
            deadline_s=None,
            background=False,
            pin_key=pin_key,
            pin_ttl_s=self.config.pin_ttl_s,
            held=True,
        )

    def check_prompt(self, prompt: tuple[int, ...]) -> None:
        """Raise `UsageError` unless the model can take it and say a token more."""
        self._limits.check_prompt(prompt)

    def revise_held(self, held: Generation, keep: int, more: Sequence[int]) -> None:
        self._loop.post_edit(Revise(held.id, keep, tuple(more)))

    def commit_held(
        self,
        held: Generation,
        prompt: tuple[int, ...],
        params: SamplingParams,
        deadline_s: float | None,
    ) -> None:
        """`prompt` is what the hold has become; it is answered with these settings."""
        max_new = self._limits.check(prompt, params, generates=True)
        deadline_s = self._deadline(deadline_s, self._clock.now(), background=False)
        self._loop.post_edit(Commit(held.id, params, _seed(params), max_new, deadline_s))

    def truncate(
        self, request_id: int, scope: Scope, tokens: Sequence[int], keep: int, pin_key: str
    ) -> None:
        """End the request, if open, and free what it computed of `tokens` from `keep` on."""
        ttl_s = self.config.pin_ttl_s
        self._loop.post_edit(Truncate(request_id, scope, tuple(tokens), keep, pin_key, ttl_s))

    # grammars, which are compiled before the engine thread sees their request

    def _abort(self, request_id: int) -> None:
        request = self._desk.withdraw(request_id) if self._desk else None
        if request is None:
            self._loop.post_abort(request_id)
        else:
            self._on_finished(request)

    def _refuse(self, request: Request, error: Exception) -> None:
        self._end_unstarted(request, FinishReason.ERROR, error)

    def _end_unstarted(
        self, request: Request, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """Tell a request's reader of its end, which comes before the engine thread knew it."""
        sink, output = request.sink, Output("", (), (), 0, reason, error)
        if sink is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody listens
                sink.loop.call_soon_threadsafe(sink.accept, output)
        self._on_finished(request)

    def _enter(self) -> None:
        with self._lock:
            if self._closed:
                raise UsageError("the engine is closed")
            if self._n_open >= self.config.max_requests:
                raise CapacityError(f"{self._n_open} requests are open, the most allowed")
            self._n_open += 1

    def _on_finished(self, request: Request) -> None:
        with self._lock:
            self._n_open -= 1


def _seed(params: SamplingParams) -> int:
    return secrets.randbits(62) if params.seed is None else params.seed
