"""What every transport shares: the stack, the one clock, who may enter, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from voice_agent import logs
from voice_agent.clock import Clock, MonotonicClock
from voice_agent.errors import CapacityError
from voice_agent.events import EndReason, Event, ToolFinished, TurnTraced
from voice_agent.line import TRANSPORT
from voice_agent.own_words import Echo
from voice_agent.reload import Reloaded
from voice_agent.room import Room
from voice_agent.types import Frame, FrameFlag

from .admission import TICKET, Admission, Why, judge
from .auth import Doorkeeper
from .call_port import CallPort, StackPort
from .config import GatewayConfig, check_bind
from .grant import Grant
from .lines import MediaLine, NearLine, OnMessage
from .media import echo
from .metrics import Metrics
from .pacer import Pacer
from .realtime.session import RealtimeSession
from .waiting import WaitingRoom
from .webrtc_leg import RtcLeg
from .workers.pool import Pool

if TYPE_CHECKING:
    from .line_call import LineCall

log = logging.getLogger(__name__)

MOST_S = 60.0
"""Of a predicted answer that is told: a full stage's is endless."""


class Controls(Protocol):
    """What an operator may ask of the whole server, over `/api/ops`."""

    def drain(self, seconds: float | None = None) -> float:
        """Begin to end; seconds: that live calls may take, None: as configured. How many it is."""
        ...

    def reload(self) -> Reloaded:
        """Read the configuration again. Raises UsageError; the old one then stays."""
        ...


@dataclass(slots=True, eq=False)
class LiveCall:
    """One admitted call of one transport, from admission to its last clean-up."""

    transport: str
    id: str = field(default_factory=lambda: f"rtc_{secrets.token_hex(16)}")
    call: CallPort | None = None
    grant: Grant | None = None
    """Who opened it, where that is known."""
    session: RealtimeSession | None = None
    """What others may watch of it, and take part in."""
    kept_s: Callable[[], float | None] = lambda: None
    """Seconds that a call without a line still waits for one; None: it has one."""
    reason: EndReason = EndReason.SERVER_ERROR
    on_hang_up: list[Callable[[], None]] = field(default_factory=list)
    on_end: list[Callable[[], None]] = field(default_factory=list)
    """Called once it is over."""

    def hang_up(self, reason: EndReason) -> None:
        if self.call is not None:
            self.call.hang_up(reason)
        for callback in self.on_hang_up:
            callback()


class Gateway:
    """Owned by the application; lives from its start to its shutdown."""

    def __init__(self, stack: StackPort, config: GatewayConfig, clock: Clock | None = None) -> None:
        self.stack = stack
        self.room: Room | None = None
        """What this process may still take; None: nobody looks."""
        self.controls: Controls | None = None
        self.config = config
        self.clock = clock or MonotonicClock()
        self.doorkeeper = Doorkeeper(config)
        self.admission = Admission(
            config.max_calls, config.max_calls_per_key, forecast=self._forecast, clock=self.clock
        )
        self.waiting = WaitingRoom(self.admission, self.clock, config.max_waiting)
        self.pacer = Pacer(self.clock)
        self.live: set[LiveCall] = set()
        self.resumable: set[LineCall] = set()
        """Calls that outlive their line."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.gauge_sources: list[Callable[[], dict[str, float]]] = []
        self.metrics = Metrics(self.gauges, self.stack.histograms)
        self._frames = {f: self.metrics.media_frames.labels(f.value) for f in FrameFlag}
        self.rtc_workers: Pool | None = None
        if config.media_workers:
            network = {"ports": config.rtc.ports, "public_address": config.rtc.public_address}
            settings = {"log": logs.chosen(), **network}
            self.rtc_workers = Pool("webrtc", config.media_workers, settings)
            self.gauge_sources.append(self.rtc_workers.gauges)
        if config.echo.used:
            echo.load()

    def gauges(self) -> dict[str, float]:
        """Every number of this moment, by metric name without prefix."""
        return {
            **{name: value for read in self.gauge_sources for name, value in read().items()},
            **self.stack.gauges(),
            **(self.room.gauges() if self.room is not None else {}),
            "ready": float(self.ready),
            "draining": float(self.admission.draining),
            "calls_limit": self.admission.max_calls,
            "calls_refused_total": self.admission.refused,
            **self.admission.gauges(),
            **self.waiting.gauges(),
            "answer_predicted_ms": 1000.0 * min(MOST_S, self._answer_s()),
            "pacer_late_ms": self.pacer.late_ms,
            "pacer_skipped_ticks_total": self.pacer.skipped,
        }

    @property
    def ready(self) -> bool:
        """Whether a new call would be taken, were there a line free."""
        return self.stack.ready and not self.admission.draining

    def reconfigure(self, config: GatewayConfig) -> None:
        """For requests and calls that come from now on. What was read at start (addresses, ports,
        the page, time limits, workers) stays. Raises UsageError; nothing has changed then.
        """
        check_bind(config)
        if config.echo.used:
            echo.load()
        self.config = config
        self.doorkeeper.reconfigure(config)
        self.admission.max_calls = config.max_calls
        self.admission.max_each = config.max_calls_per_key

    def _forecast(self, live: int) -> Why | None:
        """Why one call more can't be carried."""
        if self.room is not None and (lack := self.room.lacks()) is not None:
            return Why(lack.value)
        return judge(self.stack.outlook(live), self.stack.shed, self.config.admit_s)

    def _answer_s(self) -> float:
        """Predicted from a caller's last word to our first, as things are."""
        return self.stack.outlook(self.admission.active).answer_s()

    @contextmanager
    def admit(self, transport: str) -> Iterator[LiveCall]:
        """Raises CapacityError when full, draining, not ready, or short of files or memory. Counts
        the call's end."""
        if not self.stack.ready:
            raise CapacityError("The server is still loading. Try again in a moment.", code="VA462")
        kept = self.waiting.claim(TICKET.get())
        with self.admission.call(transport, kept=kept):
            live = LiveCall(transport)
            TRANSPORT.set(transport)
            gauge = self.metrics.calls_live.labels(transport)
            self.live.add(live)
            self._idle.clear()
            gauge.inc()
            try:
                yield live
            finally:
                self.live.discard(live)
                for told in list(live.on_end):
                    told()
                if not self.live:
                    self._idle.set()
                gauge.dec()
                self.metrics.calls_ended.labels(transport, live.reason.value).inc()

    def observe(self, event: Event) -> None:
        """Every event of every call passes here once."""
        if isinstance(event, TurnTraced):
            self.metrics.turn(event.trace)
        elif isinstance(event, ToolFinished):
            self.metrics.tool_runs.labels(event.outcome).inc()

    def count_frame(self, frame: Frame) -> None:
        self._frames[frame.flag].inc()

    def echo_guard(self, mode: echo.EchoMode, live: LiveCall) -> echo.EchoGuard | None:
        """The call's defence against our own voice; None: the caller's side has one."""
        if mode is echo.EchoMode.OFF:
            return None

        def tell(report: echo.EchoReport) -> None:
            self.tell_echo(live, report.verdict, str(report))

        guard = echo.EchoGuard(mode, tell)
        tell(guard.report)
        return guard

    def tell_echo(self, live: LiveCall, verdict: Echo, note: str) -> None:
        self.metrics.echo.labels(live.transport, verdict.value).inc()
        if live.call is not None:
            live.call.tell_echo(verdict, note)

    def rate_limits(self, grant: Grant) -> list[dict[str, Any]]:
        """As a session is told of them: what is limited here is the number of calls at once."""
        limit = self.admission.max_calls
        left = max(0, limit - self.admission.active)
        return [{"name": "requests", "limit": limit, "remaining": left, "reset_seconds": 0.0}]

    def rtc_line(self, on_message: OnMessage) -> MediaLine:
        """Media of one WebRTC call. Raises CapacityError VA488 while no worker is up."""
        if self.rtc_workers is not None:
            return self.rtc_workers.line(on_message)
        return NearLine(
            self.pacer, lambda tell: RtcLeg(tell, self.clock, self.config.rtc), on_message
        )

    async def drain(self, timeout_s: float) -> None:
        """Refuse new calls, let live ones finish within `timeout_s`, then hang up the rest."""
        self.admission.draining = True
        await self._empty(timeout_s)
        await self.hang_up_all()

    async def hang_up_all(
        self, grace_s: float = 3.0, reason: EndReason = EndReason.SERVER_DRAINING
    ) -> None:
        for live in list(self.live):
            live.hang_up(reason)
        if not await self._empty(grace_s):
            log.warning("calls did not end in time", extra={"calls": len(self.live)})

    async def emptied(self) -> None:
        """Returns when no call is live."""
        await self._idle.wait()

    async def _empty(self, timeout_s: float) -> bool:
        """True once no call is live."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.emptied()
        return not self.live
