"""The same callers against the real server in this process, in real time: what the simulation is
judged by."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

from gateway.pacer import Pacer
from loadtest.bench.llm.measure import tail
from voice_agent.config import Config, ModelsConfig
from voice_agent.events import EndReason
from voice_agent.history_section import HistoryConfig
from voice_agent.library.agent import Agent
from voice_agent.library.parts import Parts
from voice_agent.loading import load_stack
from voice_agent.stack import Stack

from .caller import Book, Caller
from .clips import Clip, Judge
from .measured import LLM, STT, VOICE
from .world import INSTRUCTIONS, RAMP_S

NAME = "bench"


def measured_runs(
    calls: Sequence[int], seconds: float, clips: Sequence[Clip], seed: int
) -> list[dict[str, Any]]:
    """One run for each number of calls, the models loaded once."""
    logging.disable(logging.WARNING)
    try:
        return asyncio.run(_runs(calls, seconds, clips, seed))
    finally:
        logging.disable(logging.NOTSET)


async def _runs(
    calls: Sequence[int], seconds: float, clips: Sequence[Clip], seed: int
) -> list[dict[str, Any]]:
    config = Config(
        models=ModelsConfig(stt=STT, llm=LLM, voice=VOICE, fetch=False),
        history=HistoryConfig(enabled=False),
    )
    agents = {NAME: Agent(INSTRUCTIONS, name=NAME)}
    stack = await load_stack(config, parts=Parts(agents=agents))
    await stack.start()
    try:
        return [await _run(stack, n, seconds, clips, seed) for n in calls]
    finally:
        await stack.close()


async def _run(
    stack: Stack, calls: int, seconds: float, clips: Sequence[Clip], seed: int
) -> dict[str, Any]:
    clock = stack.clock
    book = Book(clock.now() + RAMP_S)
    pacer = Pacer(clock)

    async def talk(n: int) -> None:
        await asyncio.sleep(n * RAMP_S / calls)
        rng = random.Random(f"{seed} {n}")
        caller = Caller(f"c{n}", clips, Judge(), rng, clock, book)
        call = stack.open_call(None, caller.on_event, 0)
        caller.call = call
        life = asyncio.create_task(call.run())
        await asyncio.sleep(0)
        leave = pacer.join(caller.tick, lambda error: None)
        try:
            await life
        finally:
            leave()
            call.hang_up(EndReason.CALLER_HUNG_UP)
            await life

    ticking = asyncio.create_task(pacer.run())
    talking = [asyncio.create_task(talk(n)) for n in range(calls)]
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(RAMP_S + seconds)
    cpu_s = (time.process_time() - cpu) / (time.perf_counter() - began) * 60 / calls
    for task in (*talking, ticking):
        task.cancel()
    await asyncio.gather(*talking, ticking, return_exceptions=True)
    return {
        "simulated": False,
        "calls": calls,
        "seconds": seconds,
        "turns": book.turns,
        "voice_to_voice_ms": tail(book.waits),
        "stages_ms": {name: tail(values) for name, values in sorted(book.stages.items())},
        "holes": book.holes,
        "replies": book.replies,
        "stuck": book.stuck,
        "failed": book.failed,
        "recoveries": book.recoveries,
        "faults": sorted(set(book.faults)),
        "loop_late_ms_p99": stack.forecast.lag.p99_s * 1000,
        "cpu_s_per_call_min": cpu_s,
        "texts": book.texts,
    }
