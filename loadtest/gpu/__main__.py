"""All GPU checks and timings, one run, at most eight minutes.

Run: python -m loadtest.gpu [--out DIR] [--only PHASE,PHASE] [--dry-run]

Writes DIR/gpu.json again after every phase, and DIR/<arch>.json, the swept launch table, which on a
GPU also replaces kernels/tuning/<arch>.json (commit it). Ends with status 1 if a phase failed, a
kernel is wrong, or an operation ran on its reference instead of a kernel.

--dry-run does everything with tiny shapes on the CPU: it shows that the script works, and no figure
of it means anything.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from kernels.resolve import chosen
from loadtest.gpu import cuda, engine, kernels, mixed, probes, recognition, sweep, voice
from loadtest.gpu.bench import EXIT_FAILED, Bench, Phase, Report, failures, run_phases
from loadtest.gpu.goals import goals

LIMIT_S = 455.0
PHASES = [
    Phase("probe", 12, probes.probe, probes.show),
    Phase("numerics", 55, kernels.numerics, kernels.show_numerics),
    Phase("kernels", 35, kernels.speeds, kernels.show_speeds),
    Phase("sweep", 90, sweep.sweep, sweep.show),
    Phase("kernels tuned", 20, kernels.speeds_tuned, kernels.show_speeds),
    Phase("cuda c++", 30, cuda.contest, cuda.show),
    Phase("graphs", 45, engine.graphs, engine.show_graphs),
    Phase("engine 8B", 55, engine.calls_8b, engine.show_calls),
    Phase("voice", 30, voice.voice, voice.show),
    Phase("engine 0.5B", 30, engine.calls_05b, engine.show_calls),
    Phase("static", 20, engine.static, engine.show_static),
    Phase("recognition", 15, recognition.recognition, recognition.show),
    Phase("mixed", 45, mixed.mixed, mixed.show),
]


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU that PyTorch can use; --dry-run shows the script on the CPU", file=sys.stderr)
        return EXIT_FAILED
    device = torch.device("cpu" if options.dry_run else "cuda")
    bench = Bench(device, options.dry_run, options.out)
    name = "gpu-dry-run.json" if options.dry_run else "gpu.json"
    report = Report(options.out / name, {"dry_run": options.dry_run})
    if options.dry_run:
        torch.set_num_threads(1)
        print("DRY RUN on the CPU with tiny shapes: no figure below means anything")
    else:
        cuda.begin()
    wanted = [p for p in PHASES if not options.only or p.name in ("probe", *options.only)]
    good = run_phases(wanted, bench, report, LIMIT_S)
    bench.tuned.close()
    return 0 if finish(report, device) and good else EXIT_FAILED


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder of the results")
    p.add_argument("--only", type=lambda text: text.split(","), default=[], help="phases by name")
    p.add_argument("--dry-run", action="store_true", help="tiny shapes on the CPU")
    options = p.parse_args(argv)
    if unknown := set(options.only) - {phase.name for phase in PHASES}:
        p.error(f"no phase {', '.join(sorted(unknown))}; there are "
                f"{', '.join(phase.name for phase in PHASES)}")  # fmt: skip
    return options


def finish(report: Report, device: torch.device) -> bool:
    """Say which implementations ran, what is wrong, and which goals were reached."""
    used = {op: name for (op, where), name in sorted(chosen().items()) if where == device.type}
    report.put("implementations", used)
    slow = [op for op, name in used.items() if name == "reference"]
    phases = report.body["phases"]
    wrong = [what for name in ("numerics", "cuda c++")
             for what in phases.get(name, {}).get("wrong", [])]  # fmt: skip
    print("\nimplementations:", ", ".join(f"{op} {name}" for op, name in used.items()) or "none")
    for what, found in (("failed", failures(phases)), ("wrong", wrong)):
        if found:
            print(f"{what}: {', '.join(found)}")
    if device.type != "cuda":
        print("dry run: goals are not looked at")
        return not wrong
    if slow:
        print(f"plain PyTorch instead of a kernel: {', '.join(slow)}")
    reached = goals(phases)
    report.put("goals", [{"what": g.what, "limit": g.limit, "value": g.value, "state": g.state}
                         for g in reached])  # fmt: skip
    for goal in reached:
        print(goal)
    return not wrong and not slow


if __name__ == "__main__":
    sys.exit(main())
