"""What the stages of this process are doing, as an `Outlook`: read once a second and when asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .choose import (
    CLAUSE_TOKENS,
    CYCLE_S,
    MAX_LOAD,
    PROMPT_TOKENS,
    REPLY_S,
    REPLY_TOKENS,
    WAIT_MS,
)
from .loop_lag import LoopLag
from .outlook import EVERY_S, Average, Each, Outlook, Share, StageLoad, memory_for

if TYPE_CHECKING:
    from engine.stats import EngineStats

    from .stack import Stack

FINAL_S = 3.0
"""Seconds of audio of a usual final."""
BEGINS_S = CYCLE_S / 2
"""So long after they come callers load the stages as usual: they speak first, then we do."""
PASSES = 2.0
"""Of a turn where the recogniser is busy: partial transcripts are rarer then (shedding.stretch)."""
BESIDE = 1.15
"""Processor time of a call over that of recognition, engine and voice: the end-of-turn model, the
ears and the event loop (`python -m loadtest.bench capacity` lists them)."""


@dataclass(frozen=True, slots=True)
class Processors:
    """What the stages that run on them share. n: how many. work_s: processor time taken since the
    start."""

    n: float
    work_s: Callable[[], float] = time.process_time


class Forecast:
    """Owns the shares of each stage's time, and the watch over the event loop."""

    def __init__(self, stack: Stack, processors: Processors | None = None) -> None:
        """processors: where recognition, engine and voice run; None: elsewhere, or unknown."""
        self._stack = stack
        self._processors = processors
        self.lag = LoopLag(stack.clock)
        self._shares: defaultdict[str, Share] = defaultdict(Share)
        self._each: defaultdict[str, Each] = defaultdict(Each)
        self._work_s: dict[str, float] = {}  # of each stage, since the start
        self._learnt_s: dict[str, float] = {}  # of that, what `look` has seen
        self._expected: dict[str, float] = {}
        self._callers = Average()
        self._looked_s = stack.clock.now()
        self.busy = 0.0
        """Share of its time that recognition, or the processors under it, took lately: the larger
        one."""

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Learn what callers take. To be called about once a second."""
        now = self._stack.clock.now()
        self._callers.note(now, self._stack.vad.n_open)
        stages = self.outlook(0).stages
        self.busy = max(stage.busy for stage in stages if stage.name in ("stt", "processors"))
        call_s = self._callers.before(BEGINS_S) * (now - self._looked_s)
        self._looked_s = now
        for stage, work_s in self._work_s.items():
            if self._stack.vad.n_open or call_s:  # what is prepared without a caller is nobody's
                self._each[stage].note(work_s - self._learnt_s.get(stage, work_s), call_s)
        self._learnt_s = dict(self._work_s)

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
        if self._processors is not None:
            stages.append(self._shared(self._processors))
        return Outlook(
            calls,
            tuple(stages),
            lag_s=self.lag.mean_s,
            silence_s=WAIT_MS / 1000.0,
            memory=memory,
        )

    def gauges(self) -> dict[str, float]:
        """Of each stage: the share of its time taken, what a caller takes of it, the predicted wait
        and service."""
        outlook = self.outlook(0)
        out = {"loop_lag_p99_ms": self.lag.p99_s * 1000.0}
        for stage in outlook.stages:
            out[f"stage_{stage.name}_busy"] = stage.busy
            out[f"stage_{stage.name}_each"] = stage.each
            out[f"stage_{stage.name}_wait_ms"] = stage.wait_s * 1000.0
            out[f"stage_{stage.name}_service_ms"] = stage.service_s * 1000.0
        return out

    def _stage(
        self, name: str, wait_s: float, service_s: float, work_s: float, expected: float | None
    ) -> StageLoad:
        """work_s: done since the start, by all workers, divided by their number. expected: the
        share that a caller is thought to take, by the service times: as they were with nobody
        here, because what is under load takes longer and not more."""
        self._work_s[name] = work_s
        if expected is not None and (name not in self._expected or not self._stack.vad.n_open):
            self._expected[name] = expected
        busy = self._shares[name].note(self._stack.clock.now(), work_s)
        return StageLoad(
            name, wait_s, service_s, busy, self._each[name].share(self._expected.get(name))
        )

    def _ears(self) -> StageLoad:
        vad = self._stack.vad
        service_s = vad.busy_s / vad.calls if vad.calls else 0.0
        return self._stage("vad", 0.0, service_s, vad.busy_s, None)

    def _recogniser(self) -> StageLoad:
        """One of a program's own says nothing of its work."""
        recognizer = self._stack.recognizer
        work_s = getattr(recognizer, "busy_s", 0.0) / getattr(recognizer, "workers", 1)
        service = getattr(recognizer, "service", None)
        service_s = service.seconds(FINAL_S) if service is not None else 0.0
        wait_s = getattr(recognizer, "wait_s", 0.0)
        return self._stage("stt", wait_s, service_s, work_s, self._stt_each())

    def _stt_each(self) -> float | None:
        service = getattr(self._stack.recognizer, "service", None)
        if service is None or not service.seconds(FINAL_S):
            return None
        workers = getattr(self._stack.recognizer, "workers", 1)
        return float(PASSES * service.seconds(FINAL_S) / CYCLE_S / workers)

    def _engine(self, stats: EngineStats) -> StageLoad:
        """Its time counts as taken by what its tokens cost in full steps: alone, a reply is made
        far faster than it is heard, and the rest of that time is for others."""
        step_s = stats.step_ms_p50 / 1000.0
        fresh = stats.prompt_tokens_total - stats.cached_tokens_total
        work_s = (stats.tokens_total * stats.token_ms + fresh * stats.prompt_token_ms) / 1000.0
        service_s = (1 + CLAUSE_TOKENS) * step_s
        return self._stage(
            "engine", stats.waiting * step_s, service_s, work_s, self._engine_each(stats)
        )

    @staticmethod
    def _engine_each(stats: EngineStats) -> float:
        turn_ms = REPLY_TOKENS * stats.token_ms + PROMPT_TOKENS * stats.prompt_token_ms
        return turn_ms / 1000.0 / CYCLE_S

    def _voice(self) -> StageLoad:
        assert self._stack.voices is not None
        stats = self._stack.voices.stats()
        work_s = stats.busy_s / stats.workers
        return self._stage("voice", stats.wait_s, stats.first_piece_s, work_s, self._voice_each())

    def _voice_each(self) -> float | None:
        assert self._stack.voices is not None
        stats = self._stack.voices.stats()
        if not stats.audio_s:
            return None
        return stats.busy_s / stats.audio_s * REPLY_S / CYCLE_S / stats.workers

    def _shared(self, processors: Processors) -> StageLoad:
        """All that compute here wait for each other on them; no work waits for them by itself."""
        work_s = processors.work_s() / processors.n
        known = [self._stt_each(), None, None]
        workers = [getattr(self._stack.recognizer, "workers", 1), 1, 1]
        if self._stack.engine is not None:
            known[1] = self._engine_each(self._stack.engine.stats())
        if self._stack.voices is not None:
            known[2], workers[2] = self._voice_each(), self._stack.voices.workers
        found = [each * n for each, n in zip(known, workers, strict=True) if each is not None]
        expected = BESIDE * sum(found) / processors.n if found else None
        stage = self._stage("processors", 0.0, 0.0, work_s, expected)
        return replace(stage, most=MAX_LOAD)
