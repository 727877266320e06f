"""One run: start the server, let the callers talk, and put together what they and it saw."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.callers.caller import Caller, CallLog, Habits
from loadtest.callers.clip import Clip, ClipError, load_clips, noise
from loadtest.callers.line import Line
from loadtest.callers.network import SlowLine
from loadtest.callers.realtime import RealtimeLine
from loadtest.callers.sip import SipLine
from loadtest.callers.webrtc import WebRtcLine
from loadtest.crosstalk import CrossTalk, judge, whisper
from loadtest.figures import Raw, report
from loadtest.inproc import InprocLine, own_stack
from loadtest.options import CLIP_NAMES, CLIPS, Options
from loadtest.own_server import Target, agent_name, flags, own_server, running_server
from loadtest.plan import PlannedCall, plan
from loadtest.report import hardware
from loadtest.scenario import Scenario, load_scenario
from loadtest.watch import OWN_PID, Watch, of_this_process, over_http
from voice_agent.config import load_config
from voice_agent.errors import InternalError, UsageError
from voice_agent.models import ModelStore

NOISE_S = 30.0
LEAD_S = 0.3
"""From ready to the first arrival."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What could be checked before anything is started."""

    options: Options
    scenario: Scenario
    calls: Sequence[PlannedCall]
    clips: tuple[Clip, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """Where the calls are made. line: the one of a planned call. held: see `loadtest.held`."""

    line: Callable[[PlannedCall], Line]
    watch: Watch
    records: Callable[[], list[dict[str, Any]] | None]
    held: Path | None = None


def prepare(options: Options) -> Prepared:
    """Raises UsageError VA530 (scenario), VA531 (calls, seconds, words), VA535 (clips), VA534 (a
    tool that is missing), VA430 to VA432 (`--set`)."""
    if options.calls < 1 or options.seconds <= 0:
        raise UsageError("at least one call and some seconds are needed", code="VA531")
    if options.url is not None and options.transport == "inproc":
        raise UsageError(
            "calls in process need no server: leave --url or --transport inproc out", code="VA531"
        )
    if options.url is not None and options.baseline:
        raise UsageError("--baseline is of a server that is started here", code="VA531")
    if options.transport == "sip":
        check_telephone(options)
    scenario = load_scenario(options.scenario)
    calls = plan(
        scenario, options.calls, options.seconds, options.seed,
        arrival=options.arrival, scripted=options.scripted,
    )  # fmt: skip
    if options.url is None:
        load_config(None, flags(options, scenario, calls, Path("agents")))
    names = CLIP_NAMES if options.clips == CLIPS else ()
    try:
        clips = tuple(load_clips(options.clips, names))
    except ClipError as error:
        raise UsageError(str(error), code="VA535") from error
    return Prepared(options, scenario, calls, clips)


def check_telephone(options: Options) -> None:
    if shutil.which("sipp") is None:
        raise UsageError("telephone calls need sipp (Debian: apt install sip-tester)", code="VA534")
    if options.url is None and importlib.util.find_spec("baresip") is None:
        raise UsageError(
            "a telephone server needs baresip: pip install --pre 'voice-agent[sip]'", code="VA534"
        )


async def run(options: Options, say: Say = lambda text: None) -> dict[str, Any]:
    """The report of one run (docs/LOADTEST.md). say: told what happens."""
    ready = prepare(options)
    say("starting the server" if options.url is None else f"asking {options.url}")
    async with field_of(ready) as field:
        say(f"{len(ready.calls)} calls, {options.seconds:.0f} s")
        logs, start_s = await talk(ready, field)
    records = field.records()
    found = None
    if options.scripted:
        say("listening to the answers for other callers' words")
        found = await asyncio.to_thread(listen, ready, logs)
    raw = Raw(
        list(zip(ready.calls, logs, strict=True)), field.watch, start_s, options.seconds, records,
        found, notes(ready, logs),
    )  # fmt: skip
    check_that_somebody_talked(raw)
    return report(options, hardware(), raw)


@asynccontextmanager
async def field_of(ready: Prepared) -> AsyncIterator[Field]:
    """A server of our own, or the one that was named; gone, and its records complete, after."""
    options, scenario, calls = ready.options, ready.scenario, ready.calls
    records: list[dict[str, Any]] = []
    if options.transport == "inproc":
        async with own_stack(options, scenario, calls) as stack:
            watch = Watch(of_this_process(stack.gauges), OWN_PID())
            yield Field(
                lambda call: in_network(InprocLine(stack, call.instructions, records), call),
                watch,
                lambda: records,
            )
        return
    if options.url is not None:
        target = await running_server(options)
        yield Field(
            line_maker(options, target), Watch(over_http(target.http, options.key), target.pid),
            lambda: None,
        )  # fmt: skip
        return
    async with own_server(options, scenario, calls) as target:
        watch = Watch(over_http(target.http, options.key), target.pid)
        assert target.traces is not None
        folder = target.traces
        yield Field(line_maker(options, target), watch, lambda: records, target.held)
        await settle(folder, records)


async def settle(folder: Path, records: list[dict[str, Any]]) -> None:
    """Read the turn records; the writer is a moment behind the last call's end."""
    before = -1
    while before < len(records) or before < 0:
        before = len(records)
        await asyncio.sleep(0.5)
        records[:] = await asyncio.to_thread(read_records, folder)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Of every file; a line that is still being written is left out."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
    return found


def line_maker(options: Options, target: Target) -> Callable[[PlannedCall], Line]:
    def make(call: PlannedCall) -> Line:
        slow = call.group.network.path() if call.group.network is not None else None
        own = options.url is None or call.group.prompt_words > 0
        text = call.instructions if own else None
        if options.transport == "webrtc":
            return WebRtcLine(target.http, options.key, text, slow, call.seed)
        if options.transport == "sip":
            assert target.sip is not None
            user = agent_name(call) if options.url is None else "voice-agent"
            return SipLine(target.sip, user, slow, call.seed)
        url = f"{target.ws}/v1/realtime?model=default"
        return in_network(RealtimeLine(url, options.key, text), call)

    return make


def in_network(line: Line, call: PlannedCall) -> Line:
    network = call.group.network
    return line if network is None else SlowLine(line, network.path(), call.seed)


async def talk(ready: Prepared, field: Field) -> tuple[list[CallLog], float]:
    """All calls, each at its time; and when the first could begin."""
    loop = asyncio.get_running_loop()
    start_s = loop.time() + LEAD_S
    await field.watch.look()
    watching = asyncio.ensure_future(field.watch.run())

    async def one(call: PlannedCall) -> CallLog:
        await asyncio.sleep(max(0.0, start_s + call.start_s - loop.time()))
        return await Caller(field.line(call), habits(ready, call, start_s)).run()

    async def watch_until_the_end() -> None:
        await asyncio.sleep(max(0.0, start_s + ready.options.seconds - loop.time()))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await field.watch.look()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in ready.calls]
        group.create_task(watch_until_the_end())
    return [task.result() for task in tasks], start_s


def habits(ready: Prepared, call: PlannedCall, start_s: float) -> Habits:
    g = call.group
    street = noise(np.random.default_rng(call.seed), NOISE_S) if g.speech == "noise" else None
    return Habits(
        clips=ready.clips,
        seed=call.seed,
        until_s=start_s + call.end_s,
        pause_s=g.pause_s,
        patience_s=ready.options.patience_s,
        barge_in=g.barge_in,
        barge_in_after_s=g.barge_in_after_s,
        noise=street,
    )


def listen(ready: Prepared, logs: Sequence[CallLog]) -> CrossTalk:
    model = ModelStore().path("whisper-tiny.en")
    return judge(list(zip(ready.calls, logs, strict=True)), whisper(model))


def notes(ready: Prepared, logs: Sequence[CallLog]) -> list[str]:
    """What a reader of the figures should know."""
    out = []
    late = sum(len(log.late_s) for log in logs)
    frames = sum(log.frames for log in logs)
    if frames and late > 0.05 * frames:
        out.append(
            f"{late / frames:.0%} of the callers' frames were sent over 5 ms late: the load "
            "generator itself is short of CPU"
        )
    if ready.options.transport == "inproc":
        out.append("CPU and memory hold the callers too: one process")
    if ready.options.transport in ("webrtc", "sip"):
        out.append(
            "glitches: packets that came too late, by the client, and holes in the sound, by the "
            "server's own count"
        )
    return out


def check_that_somebody_talked(raw: Raw) -> None:
    """Raises InternalError VA533: figures of no call at all would look perfect."""
    if any(log.up_s is not None for _, log in raw.calls):
        return
    why = next((log.failed or log.refused for _, log in raw.calls), "there was none")
    raise InternalError(f"not one call came up: {why}", code="VA533")
