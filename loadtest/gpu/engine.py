"""The engine on random weights: steps against their floor, calls, static beside continuous."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.client import Engine
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.gpu_runner import GpuRunner
from engine.inputs import Row, SampleRow
from engine.models.config import ModelConfig
from engine.models.gpu_linear import GpuQuant
from engine.request import Request
from engine.sampling import SamplingParams
from engine.warmup import WarmupReport
from loadtest.bench.llm.measure import Reply, ms, summary, tail
from loadtest.bench.llm.target import InProcess, play
from loadtest.bench.llm.workload import LONGEST, SHORTEST, SYSTEM, Workload
from loadtest.gpu.bench import Bench, Json
from loadtest.gpu.models import BLOCK, LLAMA_8B, QWEN_05B, TINY, llama, runner

CALLS = (1, 8, 32, 64, 74, 128)
MOST_SEQS, STEP_TOKENS = 128, 512
STEP_MS = 30.0
FORGET = 1500
"""Tokens of a history after which a call begins anew."""
PAUSE_S = (0.05, 0.5)
"""A caller's silence between the end of a reply and the next turn."""
STEPS = 20
MODELS: tuple[tuple[str, ModelConfig, GpuQuant], ...] = (
    ("8B", LLAMA_8B, "dense"), ("0.5B", QWEN_05B, "dense"), ("8B w4", LLAMA_8B, "w4"),
)  # fmt: skip
CONTEXT = 1024


class Numbers:
    """Text of a model that has no words: every token is some."""

    stopped = False

    def push(self, token: int) -> str:
        return f"{token} "

    def finish(self) -> str:
        return ""


@dataclass(slots=True)
class Loaded:
    """A runner with its warm-up, which is measured once."""

    runner: GpuRunner
    known: WarmupReport | None = None

    @contextmanager
    def engine(self, bench: Bench, **options: Any) -> Iterator[Engine]:
        """Started, with an empty cache. options: of `EngineConfig`."""
        defaults: dict[str, Any] = {
            "device": bench.device.type, "max_num_seqs": bench.pick(MOST_SEQS, 8),
            "max_num_batched_tokens": bench.pick(STEP_TOKENS, 64), "max_step_ms": STEP_MS,
            "idle_step_ms": STEP_MS, "target_s": 0.3, "max_requests": 1024,
        }  # fmt: skip
        engine = Engine(
            EngineConfig(Path("random weights"), **(defaults | options)),
            self.runner,
            tokenizer=None,  # type: ignore[arg-type]
            chat=None,  # type: ignore[arg-type]
            make_text=_numbers,
            eos_ids=frozenset(),
            n_vocab=self.runner.vocab_size,
            clock=MonotonicClock(),
        )
        self.known = engine.warm(self.known)
        engine.start()
        try:
            yield engine
        finally:
            engine.close()


def _numbers(request: Request) -> Numbers:
    return Numbers()


def load(bench: Bench, config: ModelConfig, *, blocks: int) -> Loaded:
    model = llama(bench, config)
    seqs, tokens = bench.pick((MOST_SEQS, STEP_TOKENS), (8, 64))
    return Loaded(runner(bench, model, bench.pick(blocks, 400), seqs=seqs, tokens=tokens))


# one step


def graphs(bench: Bench) -> Json:
    """Decode steps of both models with and without graphs, and their floors."""
    rows = []
    for name, config, quant in MODELS:
        model = llama(bench, config, quant)
        sizes = bench.pick((1, 8, 32, 64), (1, 3))
        blocks = sizes[-1] * (CONTEXT // BLOCK + 4)
        for recorded in (True, False):
            made = runner(
                bench, model, blocks, seqs=sizes[-1], tokens=max(64, sizes[-1]), graphs=recorded
            )
            for n in sizes:
                if bench.left_s() < 2:
                    break
                row = {"model": name, "graphs": recorded, "batch": n}
                rows.append(row | step_times(made, n, bench))
            del made
            bench.spare()
    return {"context": bench.pick(CONTEXT, 40), "rows": rows}


def step_times(made: GpuRunner, n: int, bench: Bench) -> Json:
    """step_ms: launched and read, alternating. floor_ms: weights and cache at copy bandwidth."""
    context = bench.pick(CONTEXT, 40)
    width = -(-(context + 1) // BLOCK)
    fits = made.n_blocks // width
    rows = [
        Row((7,), context, tuple(range(i * width, (i + 1) * width)),
            SampleRow(SamplingParams(), context + 1, 0), slot=i)
        for i in range(min(n, fits))
    ]  # fmt: skip
    made.run(rows)
    spent = []
    for _ in range(bench.pick(STEPS, 3)):
        start = time.perf_counter()
        made.run(rows)
        spent.append(1000 * (time.perf_counter() - start))
    read = made.model.weight_bytes + len(rows) * context * made.kv_bytes_per_block / BLOCK
    floor_ms = read / bench.ceilings["copy_gb_s"] / 1e6
    step_ms = statistics.median(spent)
    return {"step_ms": step_ms, "floor_ms": floor_ms, "times_floor": step_ms / floor_ms}


# calls


def calls_8b(bench: Bench) -> Json:
    return calls(bench, LLAMA_8B, blocks=14_000)


def calls_05b(bench: Bench) -> Json:
    return calls(bench, QWEN_05B, blocks=14_000)


def calls(bench: Bench, config: ModelConfig, *, blocks: int) -> Json:
    """Conversations at rising numbers of calls."""
    loaded = load(bench, config, blocks=blocks)
    rows = []
    with loaded.engine(bench) as engine:
        levels = bench.pick(CALLS, (1, 2))
        for number, n in enumerate(levels):
            seconds = min(10.0, (bench.left_s() - 3.0) / (len(levels) - number))
            if seconds < 1.5:
                break
            seconds = bench.pick(seconds, 0.5)
            rows.append({"calls": n, **asyncio.run(talk(engine, n, seconds, bench, number))})
    return {"kv_blocks": loaded.runner.n_blocks, "step_limit_ms": STEP_MS, "rows": rows}


async def talk(engine: Engine, n: int, seconds: float, bench: Bench, seed: int) -> Json:
    """n callers who answer the replies they get until the time is over, then hear the last one."""
    work = Workload(text(bench.pick(QWEN_05B, TINY).vocab_size // 2), bench.seed + seed)
    system, starts = work.piece(SYSTEM), work.bursts(n)
    await engine.prefill(system, pin_key="system")
    until_s = time.perf_counter() + seconds
    longest = bench.pick(LONGEST, SHORTEST + 10)
    callers = [
        Caller(engine, work, system, f"{seed}.{i}", random.Random(1000 * seed + i), longest)
        for i in range(n)
    ]
    await asyncio.gather(
        *(c.converse(at_s, until_s) for c, at_s in zip(callers, starts, strict=True))
    )
    engine.unpin("system")
    first = [reply for c in callers for reply in c.replies[:1]]
    later = [reply for c in callers for reply in c.replies[1:]]
    stats = engine.stats()
    return {
        **summary(first + later),
        "n_failed": sum(bool(reply.error) for reply in first + later),
        "cached_ttft_ms": tail([1000 * r.ttft_s for r in later if r.ttft_s is not None]),
        "step_ms_p50": stats.step_ms_p50,
        "step_ms_max": stats.step_ms_max,
        "preemptions": stats.preemptions_total,
    }


def text(n_vocab: int) -> list[int]:
    """Tokens to cut prompts from, all of them below n_vocab."""
    rng = random.Random(5)
    return [rng.randrange(1, n_vocab) for _ in range(20_000)]


@dataclass(slots=True)
class Caller:
    """One conversation: the history grows by a short turn and the reply to it."""

    engine: Engine
    work: Workload
    system: tuple[int, ...]
    name: str
    rng: random.Random
    longest: int
    replies: list[Reply] = field(default_factory=list)

    async def converse(self, at_s: float, until_s: float) -> None:
        await asyncio.sleep(at_s)
        history = self.system
        while time.perf_counter() < until_s or not self.replies:
            prompt = history + self.work.turn()
            reply, said = await self.turn(prompt)
            self.replies.append(reply)
            if reply.error:
                return
            history = (*prompt, *said) if len(prompt) < FORGET else self.system
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
        self.engine.forget(self.name)

    async def turn(self, prompt: tuple[int, ...]) -> tuple[Reply, list[int]]:
        reply, said = Reply(time.perf_counter()), list[int]()
        params = SamplingParams(
            max_tokens=self.rng.randint(SHORTEST, self.longest), ignore_eos=True
        )
        try:
            generation = self.engine.submit(prompt, params, call=self.name)
        except EngineError as error:
            reply.error = str(error)
            return reply, said
        async for delta in generation:
            if delta.token_ids:
                reply.times.append(time.perf_counter())
                said += delta.token_ids
            if reply.first_text_s is None and delta.text:
                reply.first_text_s = reply.times[-1]
        reply.n_tokens, reply.n_cached = len(said), generation.usage.cached_tokens
        if generation.error is not None:
            reply.error = str(generation.error)
        return reply, said


# batching


def static(bench: Bench) -> Json:
    """32 calls in bursts, 20 to 300 tokens each: a batch that nobody joins, and ours."""
    loaded = load(bench, LLAMA_8B, blocks=4000)
    n, longest = bench.pick((32, LONGEST), (3, 24))
    options = {"max_model_len": SYSTEM + 24 + longest + 1, "max_num_seqs": bench.pick(32, 4)}
    found: Json = {"calls": n}
    for mode in ("static", "continuous"):
        asks = Workload(text(loaded.runner.vocab_size), bench.seed).spoken(n, longest=longest)
        with loaded.engine(bench, batching=mode, **options) as engine:
            found[mode] = summary(asyncio.run(play(InProcess(mode, engine), asks)))
    return found


# tables


def show_graphs(result: Json) -> None:
    print(f"decode steps at {result['context']} positions, launched and read one after the other")
    for r in result["rows"]:
        print(
            f"  {r['model']:6} batch {r['batch']:3} {'graphs' if r['graphs'] else 'eager ':7}"
            f"{r['step_ms']:8.2f} ms, floor {r['floor_ms']:6.2f}, {r['times_floor']:5.2f} times"
        )


def show_calls(result: Json) -> None:
    print(
        f"{'calls':>6}{'turns':>7}{'failed':>7}{'tok/s':>8}{'TTFT p50':>10}{'p99':>8}"
        f"{'later p50':>11}{'gap p50':>9}{'p99':>8}{'ms/token p99':>14}"
    )
    for r in result["rows"]:
        t, g, v = r["ttft_ms"], r["gap_ms"], r["normalised_ms"]
        print(
            f"{r['calls']:>6}{r['requests']:>7}{r['n_failed']:>7}{r['tokens_per_s']:8.0f}"
            f"{ms(t, 'p50'):>10}{ms(t, 'p99'):>8}{ms(r['cached_ttft_ms'], 'p50'):>11}"
            f"{ms(g, 'p50'):>9}{ms(g, 'p99'):>8}{ms(v, 'p99'):>14}"
        )


def show_static(result: Json) -> None:
    for mode in ("static", "continuous"):
        r = result[mode]
        print(
            f"  {mode:11} TTFT p50 {ms(r['ttft_ms'], 'p50')} p99 {ms(r['ttft_ms'], 'p99')} ms, "
            f"a token p99 {ms(r['normalised_ms'], 'p99')} ms, {r['tokens_per_s']:.0f} tokens/s"
        )
