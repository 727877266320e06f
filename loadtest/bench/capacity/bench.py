"""How many calls a machine carries: `python -m loadtest.bench capacity --profile gpu --calls 32`.

On paper: what one call asks of each stage, and how many calls fill it. By simulation: the real
call, turn machine, queues, engine and admission in virtual time, with modelled work; beside the
baseline (static batching, order of arrival in every stage, no prefix cache). `--real 1 2 4` plays
the same callers for real on this machine (cpu profile) and prints the simulation's error.

Everything but `--real` is simulated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from loadtest.bench.llm.measure import ms
from loadtest.report import hardware, write_json
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer

from . import paper
from .clips import Clip, Judge, load_clips
from .times import AT_ONCE, Machine, gpu, machine_from
from .world import BASELINE, MODES, OURS, Load, simulate

CLIPS = Path(__file__).parents[3] / "tests" / "data" / "clips"
CORE_MS = 0.075
"""By `bench gil` at 74 calls."""
VOICE_WORKERS = 2
"""What `up` plans on two cores from 15 calls on (voice_agent/stage_plan.py)."""
TURN_S = 12.0
TURNS = 1000
"""A p99 wants so many; each call makes about one in `TURN_S`."""
SHORTEST_S, LONGEST_S = 30.0, 300.0


def main(argv: Sequence[str] | None = None) -> int:
    a = _arguments(argv)
    recognizer, judge = WhisperRecognizer(ModelStore().path("whisper-tiny.en")), Judge.load()
    try:
        clips = load_clips(a.clips, recognizer, judge)
        recognizer.close()
        body = run(a, clips, judge)
    finally:
        judge.close()
    write_json(a.json, body)
    return 0


def run(a: argparse.Namespace, clips: Sequence[Clip], judge: Judge) -> dict[str, Any]:
    machine = _machine(a)
    body: dict[str, Any] = {
        "hardware": hardware(),
        "profile": a.profile,
        "seed": a.seed,
        "machine": asdict(machine),
    }
    show_machine(body)
    write_json(a.json, body)  # the stage times, whatever becomes of the rest
    if a.real:
        body["error"] = compared(machine, a, clips, judge)
        write_json(a.json, body)
    light = simulate(machine, OURS, Load(1, 120.0, a.seed), clips, judge)
    lines = paper.on_paper(machine, paper.demand_of(light))
    body["paper"] = [
        {"stage": x.stage, "share": x.share, "calls": x.calls, "setting": x.setting} for x in lines
    ]
    show_paper(body["paper"])
    body["runs"] = simulated(machine, a, clips, judge)
    if any(row["mode"] == OURS for row in body["runs"]):
        body["verdict"] = verdict(machine, body["runs"])
        show_verdict(body["verdict"])
    return body


def _machine(a: argparse.Namespace) -> Machine:
    if a.times is not None:
        machine = machine_from(json.loads(a.times.read_text("utf-8"))["machine"])
        return replace(machine, voice_workers=a.voice_workers or machine.voice_workers)
    if a.profile == "gpu":
        return replace(gpu(a.core_ms, a.at_once), voice_workers=a.voice_workers or 1)
    from .measured import cpu

    return cpu(a.core_ms, a.voice_workers or VOICE_WORKERS)


def seconds_for(calls: int) -> float:
    """So long that a p99 has its turns, within reason."""
    return min(LONGEST_S, max(SHORTEST_S, TURNS * TURN_S / calls))


def simulated(
    machine: Machine, a: argparse.Namespace, clips: Sequence[Clip], judge: Judge
) -> list[dict[str, Any]]:
    runs = []
    columns()
    for calls in a.calls:
        for mode in a.modes:
            for predicts in (False, True) if mode == OURS else (False,):
                began = time.perf_counter()
                seconds = a.seconds or seconds_for(calls)
                load = Load(calls, seconds, a.seed, max_calls=a.max_calls, predicts=predicts)
                row = simulate(machine, mode, load, clips, judge)
                row["shares"] = paper.shares_of(machine, row)
                row["took_s"] = time.perf_counter() - began
                runs.append(row)
                line(row)
    return runs


def compared(
    machine: Machine, a: argparse.Namespace, clips: Sequence[Clip], judge: Judge
) -> list[dict[str, Any]]:
    """Real runs, and the simulation of the same callers, who get the same answers."""
    from .real import measured_runs

    out = []
    for real in measured_runs(a.real, a.real_seconds, clips, a.seed):
        load = Load(real["calls"], a.real_seconds, a.seed, tuple(real.pop("texts")))
        planned = replace(machine, voice_workers=1)  # as for few calls
        twin = simulate(planned, OURS, load, clips, judge)
        out.append({"real": real, "simulated": twin, "error": paper.errors(real, twin)})
        show_error(out[-1])
    return out


def verdict(machine: Machine, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The stage that fills first; both modes at the highest load that both survive."""
    runs = [r for r in runs if not r["predicts"]]
    stage, calls, share = paper.first_full(machine, [r for r in runs if r["mode"] == OURS])
    by = {(r["mode"], r["calls"]): r for r in runs}
    both = [
        n
        for n in sorted({r["calls"] for r in runs})
        if all((m, n) in by and paper.survives(by[m, n]) for m in MODES)
    ]
    out: dict[str, Any] = {
        "full": stage,
        "full_at_calls": calls,
        "full_share": share,
        "is_full": share >= paper.FULL,
        "setting": paper.SETTINGS.get(stage, ""),
        "both_survive": both[-1] if both else None,
        "times_better": {n: _times_better(by[OURS, n], by[BASELINE, n]) for n in both},
        "carries": {
            mode: max((n for m, n in by if m == mode and paper.holds(machine, by[m, n])), default=0)
            for mode in MODES
        },
    }
    if both:
        ours, theirs = by[OURS, both[-1]], by[BASELINE, both[-1]]
        out |= {f"{p}_times_better": x for p, x in out["times_better"][both[-1]].items()}
        out |= {"holes": ours["holes"], "baseline_holes": theirs["holes"]}
    return out


def _times_better(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float | None]:
    mine, other = ours["voice_to_voice_ms"], theirs["voice_to_voice_ms"]
    return {p: other[p] / mine[p] if mine[p] else None for p in ("p50", "p95", "p99")}


# ---------------------------------------------------------------- tables


def show_machine(body: dict[str, Any]) -> None:
    print(f"{body['hardware']}; profile {body['profile']}. Assumptions:")
    for what, value, where in body["machine"]["notes"]:
        print(f"  {what}: {value} ({where})")


def show_paper(lines: Sequence[dict[str, Any]]) -> None:
    print(f"\nOn paper: calls that fill a stage to {paper.FULL:.0%}")
    for row in lines:
        print(
            f"  {row['stage']:20}{100 * row['share']:8.3f} % a call{row['calls']:8.0f} calls   "
            f"{row['setting']}"
        )


def columns() -> None:
    print(
        f"\n{'SIMULATED':18}{'calls':>6}{'turns':>7}{'v2v p50':>9}{'p95':>8}{'p99':>8}{'max':>8}"
        f"{'holes':>7}{'stuck':>7}{'failed':>8}{'loop p99':>10}   busiest"
    )


def line(row: dict[str, Any]) -> None:
    v, name = row["voice_to_voice_ms"], row["mode"]
    if row["predicts"]:
        name += f", {row['calls'] - row['refused']} let in"
    busiest = sorted(row["shares"].items(), key=lambda kv: -kv[1])[:3]
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in busiest)
    print(
        f"{name:18}{row['calls']:6}{row['turns']:7}{ms(v, 'p50'):>9}{ms(v, 'p95'):>8}"
        f"{ms(v, 'p99'):>8}{ms(v, 'max'):>8}{row['holes']:7}{row['stuck']:7}{row['failed']:8}"
        f"{row['loop_late_ms_p99']:10.1f}   {shares}",
        flush=True,
    )
    if row["path_ms"]["slowest"]:
        parts = ", ".join(f"{part} {ms:.0f}" for part, ms in row["path_ms"]["slowest"].items())
        print(f"{'':18}slowest twentieth, ms: {parts}", flush=True)


def show_error(row: dict[str, Any]) -> None:
    real, twin = row["real"], row["simulated"]
    r, s = real["voice_to_voice_ms"], twin["voice_to_voice_ms"]
    print(
        f"{real['calls']} call(s): v2v p50/p95 real {ms(r, 'p50')}/{ms(r, 'p95')} (n {r['n']}), "
        f"simulated {ms(s, 'p50')}/{ms(s, 'p95')} (n {s['n']}), "
        f"holes {real['holes']}/{twin['holes']}, "
        f"real CPU {real['cpu_s_per_call_min']:.1f} s a call minute"
    )
    told = {k: v for k, v in row["error"].items() if v is not None}
    print("   error: " + ", ".join(f"{k} {100 * v:+.0f} %" for k, v in told.items()), flush=True)


def show_verdict(v: dict[str, Any]) -> None:
    state = "is full" if v["is_full"] else "is the busiest, not full"
    print(
        f"\nSIMULATED: {v['full']} {state} at {v['full_at_calls']} calls "
        f"({100 * v['full_share']:.0f} %). It is moved by: {v['setting']}"
    )
    told = ", ".join(f"{mode} {calls}" for mode, calls in v["carries"].items())
    print(f"the most calls here that keep to the objective: {told}")
    for calls, better in v["times_better"].items():
        shown = ", ".join(f"{p} {x:.2f}" for p, x in better.items() if x is not None)
        print(f"{calls} calls: times better than static: {shown}")
    if v["both_survive"] is None:
        print("no load here was survived by both modes")
        return
    times = "/".join(f"{v[f'{p}_times_better']:.2f}" for p in ("p50", "p95", "p99"))
    print(
        f"at {v['both_survive']} calls, the highest load here that both survive: voice to voice "
        f"p50/p95/p99 {times} times better than static; holes {v['holes']} against "
        f"{v['baseline_holes']}"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench capacity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--profile", choices=("cpu", "gpu"), default="cpu")
    p.add_argument("--calls", type=int, nargs="*", default=[32, 74, 200])
    p.add_argument("--modes", nargs="+", choices=tuple(MODES), default=list(MODES))
    p.add_argument("--seconds", type=float, default=0.0, help="0: enough for a p99")
    p.add_argument("--max-calls", type=int, default=0, help="0: all are let in")
    p.add_argument("--real", type=int, nargs="*", default=[], help="calls, played for real")
    p.add_argument("--real-seconds", type=float, default=60.0)
    p.add_argument("--times", type=Path, help="JSON of an earlier run: its stage times")
    p.add_argument("--core-ms", type=float, default=CORE_MS, help="event loop, 20 ms of a call")
    p.add_argument("--at-once", type=float, default=AT_ONCE, help="stages at full speed on the GPU")
    p.add_argument("--voice-workers", type=int, default=0, help="0: as up plans them")
    p.add_argument("--clips", type=Path, default=CLIPS)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path)
    return p.parse_args(argv)
