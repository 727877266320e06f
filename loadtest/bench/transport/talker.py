"""Calls without models: each speaks one recording again and again and counts what it hears.

What remains is the transport: sockets, encryption, codecs, pacing and the turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.histogram import HistogramSnapshot
from voice_agent.events import CallEnded, CallStarted, EndReason, Event, ReplyStarted
from voice_agent.outlook import Outlook
from voice_agent.player import Player, Sounding
from voice_agent.playout import Tick
from voice_agent.shedding import Shed
from voice_agent.types import OUT_FRAME, OUT_RATE, SILENT_OUT, Frame, FrameFlag, Pcm16, ReplyId

AHEAD = OUT_RATE // 2


class TalkingCall:
    """As much of `gateway.call_port.CallPort` as a transport needs of a caller who only listens."""

    def __init__(self, name: str, on_event: Callable[[Event], None], speech: Pcm16) -> None:
        self.auto_response = self.interruptible = True
        self.manual_turns = False
        self.idle_timeout_ms: int | None = None
        self.line: Any = None
        self.heard = dict.fromkeys(FrameFlag, 0)
        self.played = self.underruns = 0
        self._name = name
        self._on_event = on_event
        self._reply = ReplyId(name, 0)
        self._speech = speech
        self._made = 0
        self._begun = False
        self._player: Sounding = Player()
        self._over = asyncio.Event()
        self._reason = EndReason.CALLER_HUNG_UP

    @property
    def client(self) -> TalkingCall:
        """Asks nothing of it that would need another object."""
        return self

    def play_on(self, player: Sounding) -> None:
        self._player = player
        if self._begun:
            self._made = self.played
            player.begin(self._reply.n)
            player.seek(self._reply.n, self.played)

    async def run(self) -> EndReason:
        self._on_event(CallStarted(self._name, "bench"))
        self._on_event(ReplyStarted(self._reply))
        self._player.begin(self._reply.n)
        self._begun = True
        await self._over.wait()
        self._on_event(CallEnded(self._name, self._reason))
        return self._reason

    def hang_up(self, reason: EndReason) -> None:
        self._reason = reason
        self._over.set()

    def hear(self, frame: Frame) -> None:
        self.heard[frame.flag] += 1

    def tick(self) -> Tick:
        if not self._begun:
            return Tick(SILENT_OUT)
        while self._made < self.played + AHEAD:
            at = self._made % len(self._speech)
            pcm = self._speech[at : at + OUT_FRAME]
            self._player.play(self._reply.n, self._made, pcm)
            self._made += len(pcm)
        played = self._player.tick()
        self.played = max(self.played, played.offset + played.samples)
        self.underruns += played.underrun
        return Tick(played.pcm, self._reply, played.samples > 0, played.offset)

    def aside_ticks(self) -> Sequence[Tick]:
        return ()

    def update(self, **settings: Any) -> None:
        """Settings of a session change nothing here."""

    def tell_echo(self, *report: Any) -> None:
        """Nor does an echo."""

    def clear_audio(self) -> None:
        """Nothing is kept."""

    def line_lost(self, unheard_ms: int = 0) -> None:
        """No line is lost here."""

    def line_back(self) -> None:
        """Nor comes back."""

    def playing_behind(self, ms: int) -> None:
        """Nothing depends on it."""


class TalkingStack:
    """Opens TalkingCalls (`gateway.call_port.StackPort`)."""

    ready = True
    engine = None
    engine_model = ""

    def __init__(self, speech: Pcm16) -> None:
        """speech: int16, 24 kHz, a multiple of 480 samples."""
        self._speech = speech
        self.calls: list[TalkingCall] = []

    def agent_names(self) -> Sequence[str]:
        return ("bench",)

    def open_call(
        self, agent_name: str | None, on_event: Callable[[Event], None], lead_ms: int
    ) -> TalkingCall:
        call = TalkingCall(f"call{len(self.calls)}", on_event, self._speech)
        self.calls.append(call)
        return call

    shed = Shed.NOTHING

    def outlook(self, calls: int) -> Outlook:
        """Any number is carried."""
        return Outlook(calls)

    def gauges(self) -> Mapping[str, float]:
        """For the benchmark, over /metrics."""
        return {
            "bench_heard": float(sum(sum(c.heard.values()) for c in self.calls)),
            "bench_received": float(sum(c.heard[FrameFlag.RECEIVED] for c in self.calls)),
            "bench_played": float(sum(c.played for c in self.calls) // OUT_FRAME),
            "bench_underruns": float(sum(c.underruns for c in self.calls)),
        }

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        return {}
