"""The engine in virtual time takes exactly the steps' time, and treats static batching as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.budget import CostModel
from engine.config import EngineConfig
from engine.warmup import WarmupReport
from loadtest.bench.llm.virtual import Listener, VirtualEngine

pytestmark = pytest.mark.unit

WARMUP = WarmupReport(
    CostModel(10.0, 1.0),
    decode_ms=((1, 11.0), (32, 42.0)),
    prefill_ms=((16, 26.0), (256, 266.0)),
    seconds=0.0,
)


def engine(n_blocks: int = 500, *, exact_tails: bool = True, **options: Any) -> VirtualEngine:
    defaults = {"max_model_len": 256, "max_num_seqs": 32}
    config = EngineConfig(Path("none"), **(defaults | options))
    return VirtualEngine(config, WARMUP, n_blocks, exact_tails=exact_tails)


def prompt(salt: int, n: int = 32) -> list[int]:
    return [1 + (salt * 1009 + i * 31) % 30_000 for i in range(n)]


def test_time_is_the_sum_of_the_steps() -> None:
    sim = engine()
    _, listener = sim.ask(prompt(1), 5)
    sim.run()
    reply = listener.reply
    assert reply.n_tokens == 5
    assert reply.ttft_s == pytest.approx(0.042), "32 prompt tokens: 10 + 32 ms"
    assert reply.gaps_s == pytest.approx([0.011] * 4)
    assert sim.clock.now() == pytest.approx(sim.runner.busy_s)


def test_idle_time_passes_until_the_next_event() -> None:
    sim, heard = engine(), []
    sim.later(3.0, lambda: heard.append(sim.ask(prompt(1), 2)[1]))
    sim.run()
    assert heard[0].reply.sent_s == 3.0
    assert heard[0].reply.n_tokens == 2
    assert sim.runner.busy_s < 0.1


def test_a_reply_ends_where_only_the_model_knows() -> None:
    sim = engine()
    _, listener = sim.ask(prompt(1), 7, max_new=100)
    sim.run()
    assert listener.reply.n_tokens == 7


def test_nobody_joins_a_static_batch_and_everybody_a_continuous_one() -> None:
    waits = {}
    for batching in ("static", "continuous"):
        sim, late = engine(batching=batching), []
        sim.ask(prompt(1), 100)
        sim.later(0.3, lambda sim=sim, late=late: late.append(sim.ask(prompt(2), 2)[1]))
        sim.run()
        waits[batching] = late[0].reply.ttft_s
    assert waits["static"] > 10 * waits["continuous"]


def test_static_batching_holds_fewer_calls_in_the_same_memory() -> None:
    held = {}
    for batching in ("static", "continuous"):
        sim = engine(n_blocks=64, batching=batching)
        for salt in range(32):
            sim.ask(prompt(salt), 20, max_new=40)
        sim.run()
        held[batching] = sim.peak_running
    assert held["static"] == 64 // 16
    assert held["continuous"] > held["static"]


def test_exact_tails_can_be_switched_off() -> None:
    cached = {}
    for exact in (True, False):
        sim = engine(exact_tails=exact)
        sim.ask(prompt(1, 40), 1)
        sim.run()
        _, again = sim.ask(prompt(1, 40) + prompt(2, 10), 1)
        sim.run()
        cached[exact] = again.reply.n_cached
    assert cached == {True: 40, False: 32}


def test_deadlines_reach_the_scheduler() -> None:
    sim = engine()
    request_id, listener = sim.ask(prompt(1), 10)
    seen: list[float] = []

    def on_tokens(now: float, n: int) -> None:
        sim.set_deadline(request_id, now + 5.0)
        seen.append(sim.scheduler.requests[request_id].deadline_s - now)

    assert isinstance(listener, Listener)
    listener.on_tokens = on_tokens
    sim.run()
    assert seen[-1] == pytest.approx(5.0 - 0.011), "set after the token before this one"
