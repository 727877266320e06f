"""A complete call from a file: the caller's WAV at real-time pace through a live call's code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from rich.console import Console
from rich.table import Table

from voice_agent.agent import Call
from voice_agent.audio import read_wav, write_wav
from voice_agent.events import CallFault, EndReason, Event, ReplyDone, TurnTraced
from voice_agent.stack import Stack
from voice_agent.trace import Mark, TurnTrace
from voice_agent.trace_record import record_of
from voice_agent.types import (
    FRAME_MS,
    IN_FRAME,
    IN_RATE,
    OUT_RATE,
    SILENT_IN,
    Frame,
    FrameFlag,
    Pcm16,
)

TAIL_S = 1.5  # silence after the last word of either side before hanging up
MAX_TAIL_S = 60.0


@dataclass(slots=True)
class Talk:
    """What happened: agent audio int16 [n] at 24 kHz, one trace per turn, faults, end reason."""

    caller: Pcm16
    agent: Pcm16
    traces: list[TurnTrace] = field(default_factory=list)
    greeting: str = ""
    faults: list[CallFault] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    reason: EndReason | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "greeting": self.greeting,
            "end": self.reason.value if self.reason else None,
            "faults": [{"code": f.code, "message": f.message} for f in self.faults],
            "turns": [turn_json(t) for t in self.traces],
        }


def turn_json(trace: TurnTrace) -> dict[str, Any]:
    """The turn's record, content included: whoever holds the caller's sound may read it."""
    record = record_of(trace, content=True)
    return {"index": record["turn"], **record, "reply": record["reply_text"]}


async def converse(
    stack: Stack,
    pcm: Pcm16,
    *,
    agent: str | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Talk:
    """Speak `pcm` (int16 [n], 16 kHz) to an agent in real time and record the answer.

    The call ends when the caller's audio is over and the agent has been silent for a while.
    """
    talk = Talk(pcm, np.zeros(0, np.int16))
    out: list[Pcm16] = []

    def listen(event: Event) -> None:
        talk.events.append(event)
        if isinstance(event, TurnTraced):
            talk.traces.append(event.trace)
        elif isinstance(event, CallFault):
            talk.faults.append(event)
        elif isinstance(event, ReplyDone) and event.reply.turn is None and not talk.greeting:
            talk.greeting = event.heard
        if on_event is not None:
            on_event(event)

    call = stack.open_call(agent, listen)
    async with asyncio.TaskGroup() as group:
        life = group.create_task(call.run())
        await _pace(call, pcm, out, life)
        call.hang_up(EndReason.CALLER_HUNG_UP)
        talk.reason = await life
    talk.agent = np.concatenate(out) if out else talk.agent
    return talk


async def _pace(call: Call, pcm: Pcm16, out: list[Pcm16], life: asyncio.Task[EndReason]) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    n_frames = -(-len(pcm) // IN_FRAME)
    padded = np.zeros(n_frames * IN_FRAME, np.int16)
    padded[: len(pcm)] = pcm
    quiet_frames, k = 0, 0
    while not life.done():
        k += 1
        await asyncio.sleep(max(0.0, start_s + k * FRAME_MS / 1000 - loop.time()))
        if k <= n_frames:
            call.hear(Frame(padded[(k - 1) * IN_FRAME : k * IN_FRAME]))
        else:
            call.hear(Frame(SILENT_IN, FrameFlag.SILENCE))
        tick = call.tick()
        out.append(tick.pcm)
        busy = tick.reply is not None or not call.idle
        quiet_frames = 0 if busy or k <= n_frames else quiet_frames + 1
        over = (k - n_frames) * FRAME_MS / 1000
        if quiet_frames * FRAME_MS / 1000 >= TAIL_S or over >= MAX_TAIL_S:
            return


def write_stereo(talk: Talk, path: Path) -> None:
    """24 kHz stereo: the caller left, the agent right, as they sounded at the same time."""
    caller = soxr.resample(talk.caller.astype(np.float32), IN_RATE, OUT_RATE)
    n = max(len(caller), len(talk.agent))
    stereo = np.zeros((n, 2), np.int16)
    stereo[: len(caller), 0] = np.clip(caller, -32768, 32767).astype(np.int16)
    stereo[: len(talk.agent), 1] = talk.agent
    write_wav(path, stereo, OUT_RATE)


def waterfall(trace: TurnTrace, console: Console, width: int = 44) -> None:
    """One turn's hand-overs as a bar chart; 0 ms is the caller's last voiced sample."""
    offsets = trace.offsets_ms()
    shown = [m for m in (Mark.PAUSE, Mark.TRANSCRIPT, Mark.COMMIT, Mark.LLM_SUBMIT,
                         Mark.LLM_FIRST_TEXT, Mark.FIRST_CLAUSE, Mark.TTS_FIRST_AUDIO,
                         Mark.FIRST_SOUND) if m.value in offsets]  # fmt: skip
    if not shown:
        return
    last = max(max(offsets[m.value] for m in shown), 1.0)
    table = Table(show_header=False, box=None, padding=(0, 1))
    for mark in shown:
        ms = offsets[mark.value]
        filled = max(1, round(width * max(ms, 0.0) / last))
        table.add_row(mark.value, f"{ms:7.0f} ms", "▇" * filled)
    console.print(table)


def report(talk: Talk, console: Console) -> None:
    if talk.greeting:
        console.print(f"[bold]agent[/]   {talk.greeting}")
    for trace in talk.traces:
        v2v = trace.voice_to_voice_ms
        head = f"turn {trace.turn.index} revision {trace.turn.revision}: {trace.outcome}"
        console.rule(head + (f", voice to voice {v2v:.0f} ms" if v2v is not None else ""))
        console.print(f"[bold]caller[/]  {trace.transcript or '(no words)'}")
        console.print(f"[bold]agent[/]   {trace.reply_text}")
        if trace.interrupted:
            console.print(f"[bold]heard[/]   {trace.heard or '(nothing)'}")
        waterfall(trace, console)
    for fault in talk.faults:
        console.print(f"[red]{fault.code}[/] {fault.message}")


async def run_talk(
    stack: Stack,
    wav: Path,
    out: Path,
    json_path: Path | None,
    console: Console,
    *,
    agent: str | None = None,
) -> Talk:
    """`voice-agent talk`. Raises UsageError for a file that is not usable speech."""
    pcm = read_wav(wav, IN_RATE).pcm
    talk = await converse(stack, pcm, agent=agent)
    write_stereo(talk, out)
    report(talk, console)
    if json_path is not None:
        text = json.dumps(talk.as_json(), indent=1) + "\n"
        await asyncio.to_thread(json_path.write_text, text, "utf-8")
    return talk
