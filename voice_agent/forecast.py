"""What the stages of this process are doing, as an `Outlook`: read once a second and when asked."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from .choose import CLAUSE_TOKENS, WAIT_MS
from .loop_lag import LoopLag
from .outlook import EVERY_S, Average, Outlook, Share, StageLoad, memory_for

if TYPE_CHECKING:
    from engine.stats import EngineStats

    from .stack import Stack

FINAL_S = 3.0
"""Seconds of audio of a usual final."""


class Forecast:
    """Owns the shares of each stage's time, and the watch over the event loop."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.lag = LoopLag(stack.clock)
        self._shares: defaultdict[str, Share] = defaultdict(Share)
        self._callers = Average()

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self._callers.note(self._stack.clock.now(), self._stack.vad.n_open)
            self.outlook(0)
            await asyncio.sleep(EVERY_S)

    def outlook(self, calls: int) -> Outlook:
        """As it is now, with so many live calls."""
        stack, stages = self._stack, [self._ears(), self._recogniser()]
        memory = None
        if stack.engine is not None:
            stats = stack.engine.stats()
            stages.append(self._engine(stats))
            held, total = stats.kv_blocks_held, stats.kv_blocks_total
            memory = memory_for(calls, self._callers.mean, held, total)
        if stack.voices is not None:
            stages.append(self._voice())
        return Outlook(
            calls,
            tuple(stages),
            usual=self._callers.mean,
            lag_s=self.lag.mean_s,
            silence_s=WAIT_MS / 1000.0,
            memory=memory,
        )

    def gauges(self) -> dict[str, float]:
        """Of each stage: the share of its time taken, the predicted wait and service."""
        outlook = self.outlook(0)
        out = {"loop_lag_p99_ms": self.lag.p99_s * 1000.0}
        for stage in outlook.stages:
            out[f"stage_{stage.name}_busy"] = stage.busy
            out[f"stage_{stage.name}_wait_ms"] = stage.wait_s * 1000.0
            out[f"stage_{stage.name}_service_ms"] = stage.service_s * 1000.0
        return out

    def _busy(self, stage: str, work_s: float) -> float:
        return self._shares[stage].note(self._stack.clock.now(), work_s)

    def _ears(self) -> StageLoad:
        vad = self._stack.vad
        service_s = vad.busy_s / vad.calls if vad.calls else 0.0
        return StageLoad("vad", 0.0, service_s, self._busy("vad", vad.busy_s))

    def _recogniser(self) -> StageLoad:
        """One of a program's own says nothing of its work."""
        recognizer = self._stack.recognizer
        work_s = getattr(recognizer, "busy_s", 0.0) / getattr(recognizer, "workers", 1)
        service = getattr(recognizer, "service", None)
        service_s = service.seconds(FINAL_S) if service is not None else 0.0
        wait_s = getattr(recognizer, "wait_s", 0.0)
        return StageLoad("stt", wait_s, service_s, self._busy("stt", work_s))

    def _engine(self, stats: EngineStats) -> StageLoad:
        """Its time counts as taken by what its tokens cost in full steps: alone, a reply is made
        far faster than it is heard, and the rest of that time is for others."""
        step_s = stats.step_ms_p50 / 1000.0
        fresh = stats.prompt_tokens_total - stats.cached_tokens_total
        work_s = stats.tokens_total * stats.token_ms + fresh * stats.prompt_token_ms
        busy = self._busy("engine", work_s / 1000.0)
        return StageLoad("engine", stats.waiting * step_s, (1 + CLAUSE_TOKENS) * step_s, busy)

    def _voice(self) -> StageLoad:
        assert self._stack.voices is not None
        stats = self._stack.voices.stats()
        busy = self._busy("voice", stats.busy_s / stats.workers)
        return StageLoad("voice", stats.wait_s, stats.first_piece_s, busy)
