"""`voice-agent doctor`: findings and measured speeds as a table."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from voice_agent.choose import Speeds, choose
from voice_agent.cli.console import EXIT_INTERNAL, progress
from voice_agent.config import Config
from voice_agent.doctor import Finding, Verdict, examine, worst
from voice_agent.errors import VoiceAgentError
from voice_agent.machine import Machine, inspect
from voice_agent.measure import measure
from voice_agent.models import ModelStore
from voice_agent.selection import need_of, pick_device
from voice_agent.stage_plan import plan_stages

_STYLE = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def run_doctor(config: Config, *, again: bool, quick: bool) -> None:
    """Print everything; leave with status 1 on a failure."""
    machine = inspect()
    store = ModelStore(sources=config.models.sources)
    findings = list(examine(config, machine, store))
    speeds: Speeds | None = None
    if not quick:
        try:
            with progress() as stage:
                speeds = measure(
                    store,
                    machine,
                    device=pick_device(config, machine),
                    stage=lambda what: stage(f"measuring {what}", None),
                    again=again,
                )
        except VoiceAgentError as e:
            findings.append(Finding("speeds", Verdict.FAIL, str(e)))
    console = Console()
    table = Table(show_header=False, box=None)
    for f in findings:
        table.add_row(f"[{_STYLE[f.verdict]}]{f.verdict}[/]", f.what, f.detail)
    console.print(table)
    if speeds is not None:
        _print_speeds(console, config, speeds, store, machine)
    if worst(findings) is Verdict.FAIL:
        raise typer.Exit(EXIT_INTERNAL)


def _print_speeds(
    console: Console, config: Config, speeds: Speeds, store: ModelStore, machine: Machine
) -> None:
    table = Table(title=f"measured speeds ({speeds.device})", title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    table.add_row("weights read, one row", f"{speeds.decode_gb_s:.1f} GB/s")
    table.add_row("products, 128 rows", f"{speeds.prefill_gflops:.0f} GFLOP/s")
    for name, ms in speeds.stt_ms.items():
        table.add_row(f"{name}, final of 3 s", f"{ms:.0f} ms")
    for name, voice in speeds.voice.items():
        table.add_row(
            f"{name}, first sound", f"{voice.first_ms:.0f} ms, real-time factor {voice.rtf:.2f}"
        )
    console.print(table)
    if not speeds.stt_ms or not speeds.voice:
        console.print("fetch the models to see what this machine can carry")
        return
    need = need_of(config, store, machine, speeds.device)
    try:
        choice = choose(speeds, need)
    except VoiceAgentError as e:
        console.print(str(e))
        return
    console.print(f"`auto` would load {choice.llm}, {choice.stt}, {choice.voice}: {choice.why}")
    plan = plan_stages(speeds, choice.stt, choice.voice, config.server.max_calls, machine.cores)
    console.print(f"workers for {config.server.max_calls} calls: {plan}", highlight=False)
    for prediction in choice.predictions:
        console.print(f"  {prediction}", highlight=False)
