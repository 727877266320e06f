"""One call of a web client, over a line that may change: WebRTC, here or in a media worker, or a
socket.

A line that is lost ends no call of the page: it waits up to `hold_s` until the page comes back with
its credential (resume.py), over any line. A reply goes on from the word that was cut, and what the
page was told meanwhile is told again.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.events import CallFault, EndReason
from voice_agent.own_words import Echo

from .call_port import CallPort
from .gateway import Gateway, LiveCall
from .grant import Grant
from .lines import MediaLine, OnMessage
from .resume import Credential, Journal, over
from .rtc_side import RtcSide
from .workers.link import Message
from .workers.worker import DIED

log = logging.getLogger(__name__)

MOST_SILENT_MS = 4000
"""What a page may say that it did not hear before it came back."""
LEFT = {
    "hung_up": EndReason.CALLER_HUNG_UP,
    "bad_input": EndReason.BAD_INPUT,
    "slow": EndReason.TRANSPORT_LOST,
}
"""Why a line is gone for good; for any other reason it is lost."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a line comes to be. offer: for `MediaLine.open`. lead_ms: so far ahead of its playing is
    our sound sent. tail_s: the client plays its last sound so long after the call's end."""

    make: Callable[[OnMessage], MediaLine]
    offer: Message
    lead_ms: int
    tail_s: float


@dataclass(frozen=True, slots=True)
class Return:
    """What a page that comes back says. seen: texts it got; silent_ms: so long it heard nothing."""

    seen: int = 0
    silent_ms: int = 0


class Carrier:
    """One line of a call, from its offer until it is closed."""

    def __init__(self, way: Way, got: Callable[[Carrier, Message], None]) -> None:
        """Raises CapacityError as `make` does."""
        self.way = way
        self.connected = asyncio.Event()
        self.gone = asyncio.Event()
        self.echo: tuple[Echo, str] | None = None
        self.line = way.make(lambda message: got(self, message))


class LineCall:
    """Owns one call, from its first offer to its clean end."""

    def __init__(
        self,
        gateway: Gateway,
        side: RtcSide,
        agent: str | None,
        *,
        transport: str = "webrtc",
        grant: Grant | None = None,
    ) -> None:
        """side: what speaks in texts with the client. transport: of the first line, as counted."""
        self._gateway = gateway
        self.side = side
        self._agent = agent
        self._transport = transport
        self._grant = grant
        self._hold_s = gateway.config.hold_s if side.resumes else 0.0
        self.credential = Credential()
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.reason: EndReason | None = None
        """Why it ended; None while it lives."""
        self.error: VoiceAgentError | None = None
        self._journal = Journal()
        self._over = asyncio.Event()
        self._left = EndReason.TRANSPORT_LOST  # why, once `_over` is set
        self._live: LiveCall | None = None
        self._call: CallPort | None = None
        self._carrier: Carrier | None = None
        self._pending: Carrier | None = None
        self._group: asyncio.TaskGroup | None = None  # while another line may take over
        self._lost_s: float | None = None
        self._missed = 0  # texts told when the line was lost
        self._timer: asyncio.TimerHandle | None = None

    @property
    def kept_s(self) -> float | None:
        """Without a line: so long it is still waited for. None while it has one."""
        if self._lost_s is None:
            return None
        return max(0.0, self._lost_s + self._hold_s - self._gateway.clock.now())

    async def run(self, way: Way) -> None:
        """The whole call. Never raises; what goes wrong before the answer is set on `answer`."""
        try:
            with self._gateway.admit(self._transport) as live:
                self._live = live
                live.grant = self._grant
                live.kept_s = lambda: self.kept_s
                self.side.admitted(live)
                live.on_hang_up.append(self._over.set)
                try:
                    await self._connect_and_talk(live, way)
                finally:
                    self.reason = live.reason
        except VoiceAgentError as error:
            self._fail(error)
        except Exception:
            log.exception("a call failed")
            self._fail(InternalError("The call could not be set up.", code="VA464"))

    def _fail(self, error: VoiceAgentError) -> None:
        self.error = error
        if not self.answer.done():
            self.answer.set_exception(error)
        elif not isinstance(error, CapacityError):
            log.warning("call ended by an error", extra={"code": error.code})

    async def _connect_and_talk(self, live: LiveCall, way: Way) -> None:
        if self._agent is not None and self._agent not in self._gateway.stack.agent_names():
            raise UsageError(f"There is no agent {self._agent[:64]!r} here.", code="VA465")
        carrier = Carrier(way, self._got)
        try:
            answer = await carrier.line.open({**way.offer, "resumes": self._hold_s > 0})
            self.answer.set_result(self._with_credential(answer))
            if await self._connects(carrier):
                await self._talk(live, carrier)
            else:
                live.reason = EndReason.TRANSPORT_LOST
        finally:
            await (self._carrier or carrier).line.close()

    def _with_credential(self, answer: Message) -> Message:
        if not self._hold_s:
            return answer
        return {**answer, "resume": self.credential.renew(), "hold_s": self._hold_s}

    async def _connects(self, carrier: Carrier) -> bool:
        """Whether it does in time."""
        try:
            async with asyncio.timeout(self._gateway.config.connect_timeout_s):
                await _first(carrier.connected, carrier.gone, self._over)
        except TimeoutError:
            pass
        return carrier.connected.is_set()

    async def _talk(self, live: LiveCall, carrier: Carrier) -> None:
        self._carrier = carrier  # the first texts go out while the call is opened
        call = self._call = live.call = self.side.begin(self._tell, self._client_leaves)
        async with asyncio.TaskGroup() as group:
            if self._hold_s:
                self._group = group
                self._gateway.resumable.add(self)
            talk = group.create_task(call.run())
            await asyncio.sleep(0)  # it has begun before anything is heard
            self._carry(call, carrier)
            ending = group.create_task(self._over.wait())
            try:
                await asyncio.wait({talk, ending}, return_when=asyncio.FIRST_COMPLETED)
                self._no_more_lines()
                if not talk.done():
                    call.hang_up(self._left)
                    live.reason = await talk
                else:
                    live.reason = talk.result()
                    await self._play_out()
            finally:
                self._no_more_lines()
                self._over.set()

    async def _play_out(self) -> None:
        carrier = self._carrier
        if carrier is None or not carrier.way.tail_s or self._lost_s is not None:
            return
        try:
            async with asyncio.timeout(carrier.way.tail_s):
                await _first(carrier.gone, self._over)
        except TimeoutError:
            pass

    def _no_more_lines(self) -> None:
        """The call ends: its credential is worth nothing."""
        self._group = None
        self._gateway.resumable.discard(self)
        self.credential.end()
        if self._timer is not None:
            self._timer.cancel()
        if self._pending is not None:
            self._pending.gone.set()

    # ------------------------------------------------------------ lines that come and go

    async def resume(self, way: Way, back: Return) -> Message:
        """A line for the page that comes back; the answer has its next credential. The call moves
        when the line carries media, and the old one is closed. Raises as `MediaLine.open`, and
        UsageError VA498 when the call is over."""
        group = self._group
        if group is None:
            raise over()
        carrier = Carrier(way, self._got)
        if self._pending is not None:
            self._pending.gone.set()  # the page has given it up
        self._pending = carrier
        waits = False
        try:
            answer = await carrier.line.open({**way.offer, "resumes": True})
            if self._group is None:
                raise over()
            answer = self._with_credential(answer)
            group.create_task(self._wait_for(carrier, back))
            waits = True
        finally:
            if not waits:
                await carrier.line.close()
        return answer

    async def _wait_for(self, carrier: Carrier, back: Return) -> None:
        """Until the line takes over, or is given up."""
        try:
            await self._connects(carrier)
            wanted = carrier.connected.is_set() and self._pending is carrier
            if wanted and self._group is not None and self._call is not None:
                self._pending = None
                self._take_over(self._group, self._call, carrier, back)
        except Exception:
            log.exception("a call could not be resumed")
        finally:
            if self._carrier is not carrier:
                await _closed(carrier)

    def _take_over(
        self, group: asyncio.TaskGroup, call: CallPort, carrier: Carrier, back: Return
    ) -> None:
        old = self._carrier
        if old is not None:
            self._lose(old, back.silent_ms)  # it may live still
            group.create_task(_closed(old))
        self.credential.settle()
        call.playing_behind(carrier.way.lead_ms)
        self._carry(call, carrier)
        self._count("resumed")
        self._go_on(call, carrier, self._journal.after(back.seen))

    def _carry(self, call: CallPort, carrier: Carrier) -> None:
        self._carrier = carrier
        live = self._live
        assert live is not None
        if carrier.echo is not None:
            self._gateway.tell_echo(live, *carrier.echo)
        carrier.line.talk(
            call, self._gateway.count_frame, lambda: live.hang_up(EndReason.SERVER_ERROR)
        )

    def _lose(self, carrier: Carrier, unheard_ms: int) -> None:
        if carrier is not self._carrier or self._lost_s is not None or self._call is None:
            return
        self._lost_s, self._missed = self._gateway.clock.now(), self._journal.told
        self._count("lost")
        log.info("a call lost its line and waits", extra={"hold_s": self._hold_s})
        self._timer = asyncio.get_running_loop().call_later(self._hold_s, self._expire)
        self._call.line_lost(unheard_ms)

    def _expire(self) -> None:
        self._count("expired")
        self._over.set()

    def _go_on(self, call: CallPort, carrier: Carrier, missed: Iterable[str]) -> None:
        assert self._lost_s is not None
        gap_ms = round((self._gateway.clock.now() - self._lost_s) * 1000)
        self._lost_s = None
        if self._timer is not None:
            self._timer.cancel()
        for text in (*missed, json.dumps({"type": "line", "gap_ms": gap_ms})):
            carrier.line.tell("text", text=text)
        call.line_back()

    def _count(self, what: str) -> None:
        self._gateway.metrics.line_losses.labels(what).inc()

    # ------------------------------------------------------------ from and to the client

    def _got(self, carrier: Carrier, message: Message) -> None:
        match message:
            case {"type": "connected"}:
                carrier.connected.set()
            case {"type": "gone", "why": why}:
                carrier.gone.set()
                if carrier is self._carrier:
                    self._line_gone(carrier, why)
            case {"type": "lost", "ms": ms}:
                self._lose(carrier, ms)
            case {"type": "back"} if carrier is self._carrier and self._lost_s is not None:
                assert self._call is not None
                self._count("back")
                self._go_on(self._call, carrier, self._journal.after(self._missed))
            case {"type": "text", "text": text} if self._carrier in (None, carrier):
                self.side.receive(text)
            case {"type": "fault", "code": code, "text": text} if carrier is self._carrier:
                self.side.on_event(CallFault(code, text))
            case {"type": "echo", "verdict": verdict, "note": note}:
                carrier.echo = Echo(verdict), note
                live = self._live
                if carrier is self._carrier and live is not None and live.call is not None:
                    self._gateway.tell_echo(live, *carrier.echo)

    def _line_gone(self, carrier: Carrier, why: str) -> None:
        if why not in LEFT and self._group is not None:
            self._lose(carrier, 0)
            return
        self._left = LEFT.get(why, EndReason.TRANSPORT_LOST)
        if why == "worker":
            self.side.on_event(CallFault("VA487", DIED, fatal=True))
        self._over.set()

    def _tell(self, text: str) -> None:
        if self._hold_s:
            self._journal.add(text)
        if self._carrier is not None and self._lost_s is None:
            self._carrier.line.tell("text", text=text)

    def _client_leaves(self) -> None:
        self._left = EndReason.CALLER_HUNG_UP
        self._over.set()

    def leave(self) -> None:
        """The client hangs up past its line."""
        self._client_leaves()


async def _closed(carrier: Carrier) -> None:
    """Whatever happens to a line that is given up, the call goes on."""
    try:
        await carrier.line.close()
    except Exception:
        log.exception("a line did not close cleanly")


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits: list[asyncio.Task[Any]] = [group.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
