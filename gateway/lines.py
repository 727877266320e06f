"""One caller's media as a call sees it: a leg in this process, or a line of a media worker.

Messages (`on_message`) are those of gateway/workers/link.py, whichever it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from voice_agent.player import Player
from voice_agent.types import Frame

from .call_port import CallPort
from .media.echo import EchoGuard, EchoMode, EchoReport
from .pacer import Pacer
from .workers.host import Leg, Tell
from .workers.link import Message

log = logging.getLogger(__name__)

OnMessage = Callable[[Message], None]
OnFault = Callable[[], None]


class MediaLine(Protocol):
    async def open(self, offer: Message) -> Message:
        """The answer. Raises UsageError (the offer can't be taken) or InternalError."""
        ...

    def talk(self, call: CallPort, on_frame: Callable[[Frame], None], on_fault: OnFault) -> None:
        """From now on frames flow; before `call.run`. on_fault: the call can't go on."""
        ...

    def tell(self, kind: str, **fields: Any) -> None: ...

    async def close(self) -> None:
        """Idempotent."""
        ...


class NearLine:
    """A leg in this process; its clock is the process's pacer."""

    def __init__(
        self, pacer: Pacer, make_leg: Callable[[Tell], Leg], on_message: OnMessage
    ) -> None:
        self._pacer = pacer
        self._on_message = on_message
        self._leg = make_leg(self._told)
        self._guard: EchoGuard | None = None
        self._flows = True
        self._leave: Callable[[], None] = lambda: None

    def _told(self, kind: str, **fields: Any) -> None:
        if kind in ("lost", "back"):  # no clock runs while nothing arrives
            self._flows = kind == "back"
        self._on_message({"type": kind, **fields})

    async def open(self, offer: Message) -> Message:
        mode = EchoMode(offer.get("echo", "off"))
        answer = await self._leg.open(offer)
        if mode is not EchoMode.OFF:
            self._guard = EchoGuard(mode, self._echo)
            self._echo(self._guard.report)
        return answer

    def _echo(self, report: EchoReport) -> None:
        self._told("echo", verdict=report.verdict.value, note=str(report))

    def talk(self, call: CallPort, on_frame: Callable[[Frame], None], on_fault: OnFault) -> None:
        leg, guard = self._leg, self._guard
        call.play_on(Player())

        def tick() -> None:
            if not self._flows:
                return
            frame = leg.frame()
            on_frame(frame)
            call.hear(guard.heard(frame) if guard is not None else frame)
            pcm = call.tick().pcm
            leg.send(pcm)
            if guard is not None:
                guard.sent(pcm)
                guard.tick()

        self._leave = self._pacer.join(tick, lambda fault: on_fault())

    def tell(self, kind: str, **fields: Any) -> None:
        self._leg.told({"type": kind, **fields})

    async def close(self) -> None:
        self._leave()
        await self._leg.close()
