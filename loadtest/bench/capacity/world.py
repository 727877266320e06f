"""A whole server in virtual time: real calls, turns, queues, engine and admission; modelled work.

What takes time: passes of the recogniser, the end-of-turn model, steps of the engine and pieces of
the voice, on shared processors; and, on the event loop alone, 20 ms of each call. What does not:
the network, and memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from gateway.admission import Admission, Why, judge
from gateway.pacer import Pacer
from loadtest.bench.conversation.scene import REPLIES
from loadtest.bench.llm.measure import tail
from voice_agent.agent import Call
from voice_agent.agent_file import AgentFile
from voice_agent.errors import CapacityError
from voice_agent.events import EndReason, Event
from voice_agent.forecast import Processors
from voice_agent.library.agent import GivenAgents
from voice_agent.load_section import TARGETS
from voice_agent.replay.virtual_loop import run_virtual
from voice_agent.stack import AgentRuntime, Stack

from .caller import Book, Caller
from .clips import Clip, Judge
from .clock import Cores, ServerLoop
from .engine import ModelledEngine, Scripted, WholePrompts
from .path import mean_path, slowest
from .stages import CALLER, KnownRecognizer, KnownSmartTurn, KnownVad, KnownVoice, KnownVoices
from .times import Machine
from .words import Words

OURS, BASELINE = "ours", "static"
MODES: dict[str, dict[str, Any]] = {
    OURS: {},
    BASELINE: {"batching": "static", "scheduling_policy": "fcfs", "prefix_cache": "none"},
}
"""static: batches of whole prompts in order of arrival, no prefix cache, nothing computed ahead;
recogniser and voice in order of arrival. Endpointing, models and early answers are the same."""
RAMP_S = 10.0
INSTRUCTIONS = (
    "You are the friendly telephone assistant of a town's public library. Answer in one or two "
    "short sentences, in plain words that can be spoken aloud, and never make a list. The library "
    "opens at nine and closes at six on weekdays, and is closed on Sundays. Books may be kept for "
    "four weeks and renewed twice by telephone. If you do not know something, say so and offer to "
    "put the caller through to a colleague. Ask for the number of the library card before you "
    "speak about anybody's books, and never tell one caller what another one has borrowed."
)
STATIC_LEN = 2048
"""Tokens that static batching reserves for each row."""


@dataclass(frozen=True, slots=True)
class Load:
    """calls arrive over `ramp_s`; `seconds` are judged after that. texts: what is answered.
    max_calls: lines; 0: as many as come. predicts: whether admission looks at the predicted answer
    too, or at free lines only."""

    calls: int
    seconds: float
    seed: int = 1
    texts: tuple[str, ...] = ()
    max_calls: int = 0
    ramp_s: float = RAMP_S
    predicts: bool = False


def answers() -> tuple[str, ...]:
    """Replies of one and of two sentences."""
    return (*(text.split(". ")[0] + "." for text in REPLIES), *REPLIES)


class Server:
    """One stack of modelled stages and its callers."""

    def __init__(
        self, machine: Machine, mode: str, load: Load, clips: Sequence[Clip], judge: Judge,
        loop: ServerLoop,
    ) -> None:  # fmt: skip
        arrival = mode == BASELINE
        self.machine, self.load, self.loop = machine, load, loop
        self.cores = Cores(loop, machine.cores - _loop_share(machine, load.calls), machine.beside)
        self.device = self.cores if machine.device is None else Cores(loop, machine.device)
        self.words = Words()
        self._texts = [self.words.encode(text) for text in load.texts or answers()]
        options = machine.engine_options | MODES[mode]
        if arrival:
            options["max_model_len"] = STATIC_LEN
        config = EngineConfig(Path("none"), **options)
        self.engine = ModelledEngine(
            config, machine.engine, loop, self.device, self.words,
            n_blocks=machine.n_blocks, max_model_len=machine.max_model_len,
        )  # fmt: skip
        self.recognizer = KnownRecognizer(
            machine.stt, loop, self.device, machine.target_s,
            workers=machine.stt_workers, arrival=arrival,
        )  # fmt: skip
        self.smart_turn = KnownSmartTurn(self.cores, machine.smart_turn_ms)
        self.voices = KnownVoices(
            KnownVoice(machine.voice), loop, self.device, machine.target_s,
            workers=machine.voice_workers, arrival=arrival,
        )  # fmt: skip
        make: Callable[..., Scripted] = WholePrompts if arrival else Scripted
        file = AgentFile(name="bench", instructions=INSTRUCTIONS)
        self.stack = Stack(
            clock=loop,
            vad=KnownVad(),  # type: ignore[arg-type]
            smart_turn=self.smart_turn,  # type: ignore[arg-type]
            recognizer=self.recognizer,
            thinker=make(self.engine, self._answer, self.engine.runner),
            chat=self.words,
            tokenizer=self.words,
            speakers={"bench": self.voices},
            default_voice="bench",
            shelf=GivenAgents({"bench": file}),
            names=["bench"],
            max_context=self.engine.max_model_len,
            target_s=machine.target_s,
            answer_within_s=machine.answer_within_s,
            engine=self.engine,
            voices=self.voices,
            processors=Processors(machine.cores, self._host_work_s)
            if machine.device is None
            else None,
        )
        self.stack.make_call = _named
        self.book = Book(loop.time() + load.ramp_s)
        self.used: dict[str, dict[str, float]] = {}
        """What `totals` grew by while it was judged."""
        self.admission = Admission(
            load.max_calls or load.calls,
            forecast=self._forecast if load.predicts else lambda live: None,
            clock=loop,
        )
        self.pacer = Pacer(loop)
        self._clips, self._judge = clips, judge
        self._core_s = machine.core_ms / 1000

    def _answer(self, call: str, asked: str) -> Sequence[int]:
        """The same words of the same caller get the same answer, early or not."""
        rng = random.Random(f"{self.load.seed} {call.split('/')[0]} {asked}")
        return rng.choice(self._texts)

    def _forecast(self, live: int) -> Why | None:
        """As the gateway asks."""
        limit_s = TARGETS * self.machine.target_s
        return judge(self.stack.outlook(live), self.stack.shed, limit_s)

    async def run(self) -> None:
        stages = [*self.recognizer.start(), *self.voices.start()]
        await self.stack.start()
        clock = asyncio.create_task(self.pacer.run())
        apart_s = self.load.ramp_s / self.load.calls
        calls = [asyncio.create_task(self._call(n, n * apart_s)) for n in range(self.load.calls)]
        await asyncio.sleep(self.book.from_s - self.loop.time())
        before = self.totals()
        await asyncio.sleep(self.load.seconds)
        after = self.totals()
        self.used = {
            kind: {name: now - before[kind][name] for name, now in after[kind].items()}
            for kind in after
        }
        for job in (*calls, clock):
            job.cancel()
        await asyncio.gather(*calls, clock, return_exceptions=True)
        self.engine.close()
        for task in stages:
            task.cancel()
        await asyncio.gather(*stages, return_exceptions=True)
        await self.stack.close()

    def _host_work_s(self) -> float:
        """Processor time since the start, where the models run on the processors."""
        stages_s = self.recognizer.work_s + self.smart_turn.work_s + self.voices.work_s
        return stages_s + self.engine.runner.work_s + self.loop.busy_s

    def totals(self) -> dict[str, dict[str, float]]:
        """Since the start. busy: seconds in which a stage's workers were at work, on average; work:
        what that would have been on processors of their own; engine: tokens."""
        stats, loop_s = self.engine.stats(), self.loop.busy_s
        return {
            "busy": {
                "recognition": self.recognizer.busy_s / self.recognizer.workers,
                "end-of-turn model": self.smart_turn.busy_s,
                "engine": self.engine.busy_s,
                "voice": self.voices.stats().busy_s / self.voices.workers,
                "event loop": loop_s,
            },
            "work": {
                "recognition": self.recognizer.work_s,
                "end-of-turn model": self.smart_turn.work_s,
                "engine": self.engine.runner.work_s,
                "voice": self.voices.work_s,
                "event loop": loop_s,
            },
            "engine": {
                "tokens": stats.tokens_total,
                "prompt_tokens": stats.prompt_tokens_total - stats.cached_tokens_total,
            },
        }

    async def _call(self, n: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        rng = random.Random(f"{self.load.seed} {n}")
        caller = Caller(f"c{n}", self._clips, self._judge, rng, self.loop, self.book)
        CALLER.set(caller)
        try:
            with self.admission.call():
                await self._talk(caller)
        except CapacityError:
            return

    async def _talk(self, caller: Caller) -> None:
        call = self.stack.open_call(None, caller.on_event, 0)
        caller.call = call
        life = asyncio.create_task(call.run())
        await asyncio.sleep(0)

        def tick() -> None:
            caller.tick()
            self.loop.busy(self._core_s)

        leave = self.pacer.join(tick, _raise)
        try:
            await life
        finally:
            leave()
            call.hang_up(EndReason.CALLER_HUNG_UP)
            life.cancel()


def _named(
    stack: Stack, agent: AgentRuntime, on_event: Callable[[Event], None], *, lead_ms: int = 0
) -> Call:
    """Under the caller's own name, so that a run repeats itself."""
    return Call(stack, agent, on_event, lead_ms=lead_ms, call_id=CALLER.get().name)


def _raise(error: Exception) -> None:
    raise error


def _loop_share(machine: Machine, calls: int) -> float:
    """Of one core, what the event loop needs; it is not there for the stages."""
    return min(1.0, calls * machine.core_ms / 20.0)


def simulate(
    machine: Machine, mode: str, load: Load, clips: Sequence[Clip], judge: Judge
) -> dict[str, Any]:
    """One run. Deterministic for a seed."""
    loop = ServerLoop()
    logging.disable(logging.WARNING)
    try:
        server = Server(machine, mode, load, clips, judge, loop)
        run_virtual(server.run(), loop)
    finally:
        logging.disable(logging.NOTSET)
    return report(server, mode)


def report(server: Server, mode: str) -> dict[str, Any]:
    """What a run came to. Shares are of each stage's own thread or worker, 1.0: never idle."""
    book, load = server.book, server.load
    stats, used = server.engine.stats(), server.used
    return {
        "simulated": True,
        "machine": server.machine.name,
        "mode": mode,
        "calls": load.calls,
        "seconds": load.seconds,
        "predicts": load.predicts,
        "refused": server.admission.refused,
        "refused_for": {why: n for (_, why), n in sorted(server.admission.counts.items()) if why},
        "turns": book.turns,
        "voice_to_voice_ms": tail(book.waits),
        "stages_ms": {name: tail(values) for name, values in sorted(book.stages.items())},
        "path_ms": {"all": mean_path(book.paths), "slowest": mean_path(slowest(book.paths))},
        "holes": book.holes,
        "holed_replies": book.holed_replies,
        "replies": book.replies,
        "glitches_per_min": book.holes / max(1e-9, book.spoken / 3000),
        "stuck": book.stuck,
        "failed": book.failed,
        "cut": book.cut,
        "recoveries": book.recoveries,
        "faults": sorted(set(book.faults)),
        "loop_late_ms_p99": server.stack.forecast.lag.p99_s * 1000,
        "busy": {name: s / load.seconds for name, s in used["busy"].items()},
        "work_s": used["work"],
        "wall_s": load.seconds,
        "passes": server.recognizer.passes,
        "engine_tokens": used["engine"]["tokens"],
        "engine_prompt_tokens": used["engine"]["prompt_tokens"],
        "tokens": book.tokens,
        "words": book.words,
        "early_refused": dict(server.stack.early.refused),
        "preemptions": stats.preemptions_total,
        "hit_rate": stats.hit_rate,
        "step_ms_p50": stats.step_ms_p50,
        "step_ms_max": stats.step_ms_max,
        "kv_blocks_free": stats.kv_blocks_free,
    }
