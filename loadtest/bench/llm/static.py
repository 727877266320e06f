"""32 bursty calls: static batching against first-come and deadline order, same kernels and step."""

from __future__ import annotations

from functools import partial
from typing import Any

from loadtest.bench.llm import bench as b
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.measure import Reply, ms, pooled
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.llm.target import InProcess, play
from loadtest.bench.llm.virtual import Listener, VirtualEngine
from loadtest.bench.llm.workload import LONGEST, SYSTEM, Ask

CALLS = 32
MODEL_LEN = SYSTEM + 24 + LONGEST + 1
"""Tokens that static batching reserves: the longest sequence of this workload, and no more."""
MODES: dict[str, dict[str, Any]] = {
    "static": {"batching": "static"},
    "fcfs": {"scheduling_policy": "fcfs"},
    "deadline": {"scheduling_policy": "deadline"},
}
VIRTUAL_REQUESTS = 1024


def static(bench: Bench) -> dict[str, Any]:
    """Really run, with few replies; and in virtual time, with enough of them for a p99."""
    calls = 8 if bench.options.quick else CALLS
    longest = 40 if bench.options.quick else LONGEST
    rounds = bench.rounds(2)
    seen: dict[str, list[list[Reply]]] = {mode: [] for mode in MODES}
    steps: dict[str, float] = {}
    for i in range(rounds):
        asks = bench.workload(3000 + i).spoken(calls, longest=longest)
        for mode, options in MODES.items():
            options = {**options, "max_model_len": MODEL_LEN, "max_num_seqs": calls}
            with bench.own.open(ALONE_THREADS, **options) as engine:
                replies = b.run(partial(play, InProcess("ours", engine), asks))
                steps[mode] = engine.stats().step_ms_max
            seen[mode].append(replies)
    measured = {mode: pooled(replies) for mode, replies in seen.items()}
    simulated = {mode: _simulated(bench, mode) for mode in MODES}
    return {
        "threads": policy_name(ALONE_THREADS),
        "shape": f"{calls} calls in bursts, {SYSTEM} tokens shared, 20-{longest} out",
        "calls": calls,
        "rounds": rounds,
        "longest_step_ms": steps,
        "measured": measured,
        "virtual": simulated,
        "goals": {"measured": _goals(measured), "virtual": _goals(simulated)},
        "held_in_the_same_memory": held(bench),
    }


def _config(bench: Bench, mode: str, **more: Any) -> Any:
    options = {"max_model_len": MODEL_LEN, "max_num_seqs": CALLS, "max_requests": 4096}
    return bench.own.config(ALONE_THREADS, **(options | MODES[mode] | more))


def _simulated(bench: Bench, mode: str) -> dict[str, Any]:
    """Bursts of 32 calls, each when the one before has ended in static batching's own time."""
    warmup = bench.own.warmup(ALONE_THREADS)
    work = bench.workload(3500)
    rounds: list[list[Reply]] = []
    n = 64 if bench.options.quick else VIRTUAL_REQUESTS
    for _ in range(n // CALLS):
        engine = VirtualEngine(_config(bench, mode), warmup, n_blocks=4096)
        listeners: list[Listener] = []
        for ask in work.spoken(CALLS):
            engine.later(ask.at_s, partial(_ask, engine, ask, listeners))
        engine.run()
        rounds.append([listener.reply for listener in listeners])
    return pooled(rounds)


def _ask(engine: VirtualEngine, ask: Ask, listeners: list[Listener]) -> None:
    listeners.append(engine.ask(ask.prompt, ask.n_out)[1])


def held(bench: Bench) -> dict[str, float]:
    """Most calls that hold memory at once, of 256 that arrive together; only the model knows when
    a reply ends, so the engine is told 300 tokens for each."""
    warmup = bench.own.warmup(ALONE_THREADS)
    out: dict[str, float] = {}
    n_blocks = 38 * -(-MODEL_LEN // 16)
    for mode in MODES:
        config = _config(bench, mode, max_num_seqs=256)
        engine = VirtualEngine(config, warmup, n_blocks)
        for ask in bench.workload(3900).spoken(256):
            engine.ask(ask.prompt, ask.n_out, max_new=LONGEST)
        engine.run()
        out[mode] = engine.peak_running
        out[f"{mode} preemptions"] = engine.scheduler.counters.preemptions
    out["ratio"] = out["deadline"] / out["static"]
    return out


def _goals(modes: dict[str, dict[str, Any]]) -> dict[str, float]:
    """How many times better `deadline` is, and what its gaps have over static's."""
    old, new = modes["static"], modes["deadline"]

    def better(what: str) -> float:
        return float(old[what]["p99"] / new[what]["p99"])

    return {
        "ttft_p99_times": better("ttft_ms"),
        "normalised_p99_times": better("normalised_ms"),
        "gap_p99_over_static_ms": new["gap_ms"]["p99"] - old["gap_ms"]["p99"],
        "tokens_per_s_times": new["tokens_per_s"] / old["tokens_per_s"],
    }


def show(body: dict[str, Any]) -> None:
    print(f"{body['shape']}; {body['rounds']} round(s), {body['threads']}")
    for kind, note in (("measured", ""), ("virtual", " (virtual time, measured step costs)")):
        print(
            f"{kind + note:52}{'tok/s':>8}{'TTFT p50':>10}{'p95':>8}{'p99':>8}"
            f"{'ms/token p50':>14}{'p95':>8}{'p99':>8}{'gap p50':>9}{'p95':>8}{'p99':>8}{'max':>8}"
        )
        for mode, row in body[kind].items():
            t, v, g = row["ttft_ms"], row["normalised_ms"], row["gap_ms"]
            print(
                f"  {mode:50}{row['tokens_per_s']:8.1f}{ms(t, 'p50'):>10}{ms(t, 'p95'):>8}"
                f"{ms(t, 'p99'):>8}{ms(v, 'p50'):>14}{ms(v, 'p95'):>8}{ms(v, 'p99'):>8}"
                f"{ms(g, 'p50'):>9}{ms(g, 'p95'):>8}{ms(g, 'p99'):>8}{ms(g, 'max'):>8}"
            )
        goals = body["goals"][kind]
        print(
            f"  deadline over static: TTFT p99 {goals['ttft_p99_times']:.1f} times better, "
            f"ms/token p99 {goals['normalised_p99_times']:.1f} times, "
            f"gap p99 {goals['gap_p99_over_static_ms']:+.1f} ms, "
            f"tokens/s {goals['tokens_per_s_times']:.2f} times"
        )
    calls = body["held_in_the_same_memory"]
    print(
        f"calls held in the memory of {calls['static']:.0f} static ones: fcfs {calls['fcfs']:.0f}, "
        f"deadline {calls['deadline']:.0f} ({calls['ratio']:.2f} times)"
    )
