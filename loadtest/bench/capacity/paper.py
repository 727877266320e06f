"""Capacity on paper: what a call asks of each stage, and how many calls fill it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voice_agent.load_section import TARGETS

from .times import Machine

FULL = 0.85
"""Share of a stage's time from which on its queue is counted as full."""
MOST_HOLES = 3.0
"""Frames without sound in a minute of speech: 0.1 %."""
PROCESSORS, DEVICE = "processors", "GPU"
SETTINGS: Mapping[str, str] = {
    "recognition": "a smaller [models] stt, or fewer partial passes",
    "end-of-turn model": "a second end-of-turn thread",
    "engine": "[engine] max_num_seqs, a smaller [models] llm, or [engine] quant",
    "voice": "a lighter [models] voice; on a CPU more workers, by [server] max_calls",
    "event loop": "[rtc] workers, then a second server process",
    PROCESSORS: "more processors, or models on a GPU",
    DEVICE: "a second GPU, or recognition and voice on one of their own",
}
LINEAR = ("recognition", "end-of-turn model", "voice", "event loop")
ON_DEVICE = ("recognition", "engine", "voice")


@dataclass(frozen=True, slots=True)
class Demand:
    """One call, per second of its life: seconds of work by stage, tokens generated, prompt tokens
    computed."""

    work: Mapping[str, float]
    tokens: float
    prompt_tokens: float


@dataclass(frozen=True, slots=True)
class Line:
    """share: of the stage's time that one call takes. calls: that fill it to `FULL`."""

    stage: str
    share: float
    calls: float
    setting: str


def demand_of(run: Mapping[str, Any]) -> Demand:
    """Counted in a run that nothing slowed down."""
    seconds = run["calls"] * run["wall_s"]
    return Demand(
        {name: run["work_s"][name] / seconds for name in LINEAR},
        run["engine_tokens"] / seconds,
        run["engine_prompt_tokens"] / seconds,
    )


def engine_share(machine: Machine, demand: Demand, rows: int) -> float:
    """Of the engine's time that one of many calls takes, `rows` of which decode at once."""
    warmup = machine.engine
    token_s = warmup.predict_decode_ms(rows) / rows / 1000
    # A prompt's tokens ride along with steps that read the weights anyway.
    n = 64
    prompt_s = max(0.0, warmup.predict_prefill_ms(n) - warmup.decode_ms[0][1]) / n / 1000
    return demand.tokens * token_s + demand.prompt_tokens * prompt_s


def on_paper(machine: Machine, demand: Demand) -> list[Line]:
    """Stages by the number of calls they carry, the first to fill first."""
    most = int(machine.engine_options.get("max_num_seqs", 16))
    rows = min(range(1, most + 1), key=lambda n: machine.engine.predict_decode_ms(n) / n)
    shares = dict(demand.work) | {"engine": engine_share(machine, demand, rows)}
    shares["recognition"] /= machine.stt_workers
    shares["voice"] /= machine.voice_workers
    lines = [_line(name, share) for name, share in shares.items()]
    on_gpu = machine.device is not None
    host = [n for n in shares if not (on_gpu and n in ON_DEVICE)]
    lines.append(_line(PROCESSORS, sum(shares[n] for n in host) / machine.cores))
    if machine.device is not None:
        lines.append(_line(DEVICE, sum(shares[n] for n in ON_DEVICE) / machine.device))
    return sorted(lines, key=lambda line: line.calls)


def _line(stage: str, share: float) -> Line:
    return Line(stage, share, FULL / share if share > 0 else float("inf"), SETTINGS[stage])


def shares_of(machine: Machine, run: Mapping[str, Any]) -> dict[str, float]:
    """How busy each stage's thread was in a run, and what all of them run on."""
    out, work = dict(run["busy"]), run["work_s"]
    on_gpu = machine.device is not None
    host = [n for n in work if not (on_gpu and n in ON_DEVICE)]
    out[PROCESSORS] = sum(work[n] for n in host) / run["wall_s"] / machine.cores
    if machine.device is not None:
        out[DEVICE] = sum(work[n] for n in ON_DEVICE) / run["wall_s"] / machine.device
    return out


def first_full(machine: Machine, runs: Sequence[Mapping[str, Any]]) -> tuple[str, int, float]:
    """(stage, calls, share) that is full at the smallest load; the busiest if none is.

    What all stages run on is named where that is full: a thread on it then only waits.
    """
    best = ("", 0, 0.0)
    for run in sorted(runs, key=lambda r: r["calls"]):
        shares = shares_of(machine, run)
        ground = [n for n in (DEVICE, PROCESSORS) if shares.get(n, 0.0) >= FULL]
        name = ground[0] if ground else max(shares, key=lambda n: shares[n])
        if shares[name] >= FULL:
            return name, run["calls"], shares[name]
        if shares[name] > best[2]:
            best = (name, run["calls"], shares[name])
    return best


def survives(run: Mapping[str, Any]) -> bool:
    """Every turn was answered by the model, and no call was turned away."""
    return not (run["stuck"] or run["failed"] or run["refused"] or run["recoveries"])


def holds(machine: Machine, run: Mapping[str, Any]) -> bool:
    """Survived, 19 of 20 answers within what admission allows, and next to no holes."""
    p95 = run["voice_to_voice_ms"]["p95"]
    in_time = p95 is not None and p95 <= TARGETS * machine.target_s * 1000
    return survives(run) and in_time and run["glitches_per_min"] <= MOST_HOLES


def errors(real: Mapping[str, Any], simulated: Mapping[str, Any]) -> dict[str, float | None]:
    """Simulated over real, less 1, of what both know."""
    out: dict[str, float | None] = {}
    for name in ("p50", "p95"):
        out[f"voice_to_voice_{name}"] = _error(
            real["voice_to_voice_ms"][name], simulated["voice_to_voice_ms"][name]
        )
    for stage, seen in real["stages_ms"].items():
        if stage in simulated["stages_ms"]:
            out[f"{stage}_p50"] = _error(seen["p50"], simulated["stages_ms"][stage]["p50"])
    return out


def _error(real: float | None, simulated: float | None) -> float | None:
    if real is None or simulated is None or not real:
        return None
    return simulated / real - 1.0
