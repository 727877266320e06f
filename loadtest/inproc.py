"""Calls inside this process: no socket, no codec; the callers' clock is the pacer.

CPU time then holds the callers too, and a late clock is heard as it would be anywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import soxr

from loadtest.callers.clip import RATE, Pcm
from loadtest.callers.ear import Ear
from loadtest.callers.line import LineError, Refused
from loadtest.options import Options
from loadtest.own_server import flags, write_agents
from loadtest.parts import parts_for
from loadtest.plan import PlannedCall
from loadtest.scenario import Scenario
from voice_agent.config import load_config
from voice_agent.errors import CapacityError, VoiceAgentError
from voice_agent.events import EndReason, Event, SpeechStarted, TurnTraced
from voice_agent.loading import load_stack
from voice_agent.stack import Stack
from voice_agent.trace_record import record_of
from voice_agent.types import IN_FRAME, IN_RATE, Frame


class InprocLine:
    """One call of a loaded stack. records: the turns of all calls, added as they end."""

    def __init__(self, stack: Stack, instructions: str, records: list[dict[str, Any]]) -> None:
        self.lost = ""
        self._stack = stack
        self._instructions = instructions
        self._records = records
        self._resample = soxr.ResampleStream(RATE, IN_RATE, 1, dtype="int16")
        self._pending = np.zeros(0, np.int16)
        self._ear = Ear()
        self._life: asyncio.Task[EndReason] | None = None

    async def open(self, ear: Ear, hold_s: float) -> None:
        self._ear = ear
        try:
            self._call = self._stack.open_call(None, self._on_event)
            self._call.client.update(instructions=self._instructions)
        except CapacityError as error:
            raise Refused(str(error)) from error
        except VoiceAgentError as error:
            raise LineError(str(error)) from error
        self._life = asyncio.ensure_future(self._call.run())

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TurnTraced):
            self._records.append(record_of(event.trace, content=False))
        elif isinstance(event, SpeechStarted):
            self._ear.cut(asyncio.get_running_loop().time())

    async def send(self, frame: Pcm) -> None:
        if self._life is None or self.lost:
            return
        if self._life.done():
            self.lost = "the call is over"
            return
        self._pending = np.concatenate([self._pending, self._resample.resample_chunk(frame)])
        while len(self._pending) >= IN_FRAME:
            self._call.hear(Frame(self._pending[:IN_FRAME]))
            self._pending = self._pending[IN_FRAME:]
        tick = self._call.tick()
        if tick.audible and tick.reply is not None:
            name = f"{tick.reply.call}/{tick.reply.n}"
            if tick.reply.call == self._call.id:
                self._ear.own(name)
            self._ear.play(tick.pcm, asyncio.get_running_loop().time(), name)

    async def close(self) -> None:
        if self._life is not None:
            self._call.hang_up(EndReason.CALLER_HUNG_UP)
            await asyncio.gather(self._life, return_exceptions=True)


@asynccontextmanager
async def own_stack(
    options: Options, scenario: Scenario, calls: Sequence[PlannedCall]
) -> AsyncIterator[Stack]:
    """Loaded and ready in this process."""
    with TemporaryDirectory(prefix="loadtest-") as name:
        folder = Path(name)
        write_agents(options, scenario, calls, folder)
        given = flags(options, scenario, calls, folder)
        del given["trace.folder"]  # the records come as events
        config = load_config(None, given).config
        parts = parts_for(script=options.scripted, baseline=options.baseline)
        stack = await load_stack(config, parts=parts)
        try:
            await stack.start()
            yield stack
        finally:
            await stack.close()
