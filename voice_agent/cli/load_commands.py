"""`voice-agent loadtest`: its commands and their options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

loadtest_app = typer.Typer(
    help="Simulated callers against a server: one run, a sweep, two runs compared.",
    no_args_is_help=True,
)


class Transport(StrEnum):
    INPROC = "inproc"
    WS = "ws"
    WEBRTC = "webrtc"
    SIP = "sip"


class Arrival(StrEnum):
    STEADY = "steady"
    BURST = "burst"
    RAMP = "ramp"


class Answers(StrEnum):
    SCRIPT = "script"
    MODEL = "model"


Seconds = Annotated[float, typer.Option(min=1, help="No turn begins later.")]
How = Annotated[Transport, typer.Option("--transport", help="How the calls come.")]
What = Annotated[str, typer.Option("--scenario", help="A name (docs/LOADTEST.md) or a YAML file.")]
When = Annotated[
    Arrival | None, typer.Option("--arrival", help="Of the calls; default: the scenario's.")
]
Who = Annotated[
    Answers, typer.Option("--answers", help="script: code words, checked for cross-talk.")
]
Seed = Annotated[int, typer.Option(help="Same seed: same callers, words and pauses.")]
Patience = Annotated[
    float, typer.Option("--patience", min=1, help="Seconds until a turn counts as stuck.")
]
Clips = Annotated[Path | None, typer.Option(help="Folder of mono 16-bit WAV recordings.")]
Url = Annotated[
    str | None, typer.Option(help="A running server; default: one is started for the run.")
]
SipAddress = Annotated[
    str | None, typer.Option(help="HOST:PORT of a running server's telephone side.")
]
Key = Annotated[str, typer.Option(envvar="VOICE_AGENT_KEY", help="The running server's key.")]
Baseline = Annotated[
    bool, typer.Option("--baseline", help="Static batching, first come first served, no cache.")
]
Llm = Annotated[str, typer.Option(help="Language model of the server that is started.")]
Stt = Annotated[str, typer.Option(help="Its recogniser.")]
Voice = Annotated[str, typer.Option(help="Its voice.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value of its configuration.")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every figure and sample.")]


def _options(
    *,
    seconds: Seconds = 60.0,
    transport: How = Transport.WS,
    scenario: What = "chatty",
    arrival: When = None,
    answers: Who = Answers.SCRIPT,
    seed: Seed = 1,
    patience_s: Patience = 15.0,
    clips: Clips = None,
    url: Url = None,
    sip_address: SipAddress = None,
    key: Key = "",
    baseline: Baseline = False,
    llm: Llm = "smollm2-135m",
    stt: Stt = "whisper-tiny.en",
    voice: Voice = "piper-joe",
    settings: Settings = None,
) -> Any:
    """`loadtest.options.Options`, of every command that lets callers talk."""
    from loadtest.options import CLIPS, Options
    from voice_agent.cli.loadtest import parse_settings

    return Options(
        seconds=seconds, transport=transport.value, scenario=scenario,
        arrival=None if arrival is None else arrival.value, answers=answers.value, seed=seed,
        patience_s=patience_s, clips=clips or CLIPS, url=url, sip_address=sip_address, key=key,
        baseline=baseline, llm=llm, stt=stt, voice=voice, settings=parse_settings(settings or []),
    )  # fmt: skip


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that also takes the options of `_options`; `command` gets what they make, first."""
    shared = inspect.signature(_options, eval_str=True).parameters
    _, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def whole(**given: Any) -> None:
        command(_options(**{name: given.pop(name) for name in shared}), **given)

    setattr(whole, "__signature__", inspect.Signature([*own, *shared.values()]))  # noqa: B010
    return whole


@loadtest_app.command("run")
@_with_options
def load_run(
    options: Any,
    *,
    calls: Annotated[int, typer.Option(min=1, help="Calls at once.")] = 2,
    json_file: JsonFile = None,
    png: Annotated[Path | None, typer.Option("--png", help="Draw it.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="One page with table and picture.")
    ] = None,
) -> None:
    """Let callers talk for a while and report what they heard and what it cost."""
    from voice_agent.cli.loadtest import run_load

    run_load(replace(options, calls=calls), json_file, png, html)


@loadtest_app.command("sweep")
@_with_options
def load_sweep(
    options: Any,
    *,
    p95_ms: Annotated[float, typer.Option(min=1, help="Voice to voice, 95th percentile.")] = 1000.0,
    glitches_per_min: Annotated[float, typer.Option(min=0, help="Holes a call minute.")] = 0.5,
    most: Annotated[int, typer.Option(help="Calls to try at most.")] = 16,
    json_file: JsonFile = None,
) -> None:
    """Find the largest number of calls that keeps to an objective."""
    from loadtest.sweep import Objective
    from voice_agent.cli.loadtest import run_sweep

    run_sweep(replace(options, calls=1), Objective(p95_ms, glitches_per_min), most, json_file)


@loadtest_app.command("compare")
def load_compare(
    a: Annotated[Path, typer.Argument(help="JSON of a run: what was.")],
    b: Annotated[Path, typer.Argument(help="JSON of another: what is.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit status 1 when anything is worse.")
    ] = False,
    at_least: Annotated[
        float, typer.Option(min=0, help="Changes below this share are not told.")
    ] = 0.05,
    json_file: JsonFile = None,
) -> None:
    """Show what moved beyond noise from one run to another."""
    from voice_agent.cli.loadtest import run_compare

    found = run_compare(a, b, at_least, json_file)
    if strict and found.worse:
        raise typer.Exit(1)
