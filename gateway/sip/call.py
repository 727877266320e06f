"""A telephone call in the core: who may call, the conversation, and what its line can do."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

from gateway.call_port import CallPort
from gateway.gateway import Gateway, LiveCall
from gateway.workers.link import Message
from gateway.workers.worker import FarLine
from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.events import EndReason
from voice_agent.own_words import Echo
from voice_agent.types import Frame

from .settings import SipSettings, address

log = logging.getLogger(__name__)

LEAD_MS = 40
"""What waits in the SIP stack when a frame counts as played: at most so much is not yet heard."""
CONNECT_S = 15.0
ASK_S = 45.0  # longer than the worker lets a transfer take
GONE = {
    "hung_up": EndReason.CALLER_HUNG_UP,
    "lost": EndReason.TRANSPORT_LOST,
    "worker": EndReason.TRANSPORT_LOST,
    "fault": EndReason.SERVER_ERROR,
}


class SipLine:
    """`voice_agent.line.Line` over a worker's line."""

    def __init__(self, line: FarLine, settings: SipSettings) -> None:
        self._line = line
        self._settings = settings
        self._asks: dict[int, asyncio.Future[None]] = {}
        self._numbers = itertools.count(1)
        self._transfers: set[int] = set()
        self.transferred = False

    async def transfer(self, target: str) -> None:
        uri = callable_uri(target, self._settings)
        await self._ask("transfer", "the transfer was refused", target=uri)

    async def send_dtmf(self, keys: str) -> None:
        await self._ask("dtmf", "the keys were not sent", keys=keys)

    async def _ask(self, kind: str, failed: str, **fields: Any) -> None:
        """Raises UsageError VA506."""
        ask = next(self._numbers)
        future = self._asks[ask] = asyncio.get_running_loop().create_future()
        if kind == "transfer":
            self._transfers.add(ask)
        self._line.tell(kind, ask=ask, **fields)
        try:
            async with asyncio.timeout(ASK_S):
                await future
        except TimeoutError:
            raise UsageError(f"{failed}: no answer", code="VA506") from None
        except _Refused as error:
            raise UsageError(f"{failed}: {error}", code="VA506") from error
        finally:
            self._asks.pop(ask, None)

    def done(self, message: Message) -> None:
        """The worker's answer to a question."""
        ask = message["ask"]
        future = self._asks.get(ask)
        if future is None or future.done():
            return
        if message["error"] is None:
            self.transferred = self.transferred or ask in self._transfers
            future.set_result(None)
        else:
            future.set_exception(_Refused(message["error"]))

    def gone(self) -> None:
        """No more answers will come."""
        for future in self._asks.values():
            if not future.done():
                future.set_exception(_Refused("the call is over"))


class _Refused(Exception):
    pass


class SipCall:
    """Owns one line from its first message to its last clean-up."""

    def __init__(self, gateway: Gateway, settings: SipSettings, line: FarLine) -> None:
        self._gateway = gateway
        self._settings = settings
        self._line = line
        self._able = SipLine(line, settings)
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._why = EndReason.TRANSPORT_LOST
        self._live: LiveCall | None = None
        line.on_message = self._on_message

    async def answer(self, message: Message) -> None:
        """A caller's whole call. Never raises."""
        caller, called = message["caller"], message["called"]
        try:
            if not self._settings.allows(caller):
                log.warning("a caller who is not allowed", extra={"caller": address(caller)})
                self._gateway.metrics.sip_refused.labels("not_allowed").inc()
                self._line.tell("reject")
                return
            with self._gateway.admit("sip") as live:
                self._live = live
                await self._talk(live, self._agent_of(called), self._pick_up)
        except CapacityError:
            self._gateway.metrics.sip_refused.labels("busy").inc()
            self._line.tell("reject")
        except Exception:
            log.exception("a telephone call failed")
        finally:
            await self._line.close()

    async def call(self, to: str, agent: str | None, ready: asyncio.Future[None]) -> None:
        """Our whole call to someone. ready: done once they answered, or with the reason why not."""
        try:
            with self._gateway.admit("sip") as live:
                self._live = live

                async def dial() -> None:
                    mode = self._gateway.config.echo.telephone
                    await self._line.open({"to": to, "echo": mode.value})
                    if not ready.done():
                        ready.set_result(None)

                await self._talk(live, agent, dial)
        except VoiceAgentError as error:
            if not ready.done():
                ready.set_exception(error)
        except Exception:
            log.exception("a telephone call failed")
        finally:
            if not ready.done():
                ready.set_exception(UsageError("the call ended before it began", code="VA505"))
            await self._line.close()

    def _agent_of(self, called: str) -> str | None:
        """The agent that is called by its name, else the configured one."""
        user = address(called).partition("@")[0]
        names = {name.lower(): name for name in self._gateway.stack.agent_names()}
        return names.get(user, self._settings.agent)

    async def _pick_up(self) -> None:
        self._line.tell("answer")

    async def _talk(self, live: LiveCall, agent: str | None, connect: Any) -> None:
        live.reason = EndReason.CALLER_HUNG_UP
        live.on_hang_up.append(self._gone.set)
        call = live.call = self._gateway.stack.open_call(agent, self._gateway.observe, LEAD_MS)
        call.line = self._able
        self._line.talk(call, self._on_frame, self._on_fault)
        await connect()
        try:
            async with asyncio.timeout(CONNECT_S):
                await _first(self._connected, self._gone)
        except TimeoutError:
            live.reason = EndReason.TRANSPORT_LOST
            return
        if self._gone.is_set():
            live.reason = self._why
            return
        await self._converse(live, call)

    async def _converse(self, live: LiveCall, call: CallPort) -> None:
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(call.run())
            gone = group.create_task(self._gone.wait())
            await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not talk.done():
                call.hang_up(self._why)
            live.reason = await talk
            gone.cancel()

    def _on_frame(self, frame: Frame) -> None:
        self._gateway.count_frame(frame)

    def _on_fault(self) -> None:
        self._why = EndReason.SERVER_ERROR
        self._gone.set()

    # ------------------------------------------------------------ from the worker

    def _on_message(self, message: Message) -> None:
        match message["type"]:
            case "connected":
                self._connected.set()
            case "digit":
                if self._live is not None and self._live.call is not None:
                    self._live.call.press(message["key"])
            case "echo" if self._live is not None:
                verdict = Echo(message["verdict"])
                self._gateway.tell_echo(self._live, verdict, message["note"])
            case "done":
                self._able.done(message)
            case "gone":
                self._able.gone()
                why = GONE.get(message["why"], EndReason.TRANSPORT_LOST)
                self._why = EndReason.TRANSFERRED if self._able.transferred else why
                self._gone.set()


def callable_uri(target: str, settings: SipSettings) -> str:
    """target: a SIP or tel address, or a number of the trunk. Raises UsageError VA504."""
    text = target.strip()
    if any(c.isspace() or ord(c) < 0x20 for c in text) or not text or len(text) > 256:
        raise UsageError(f"{target[:64]!r} is not an address to call", code="VA504")
    if text.lower().startswith(("sip:", "sips:")):
        if not address(text):
            raise UsageError(f"{target[:64]!r} lacks a host", code="VA504")
        return text
    number = text.lower().removeprefix("tel:")
    if settings.trunk is None or not number.lstrip("+").replace("-", "").isdigit():
        raise UsageError(
            f"{target[:64]!r}: write sip:user@host (a number alone needs a trunk)", code="VA504"
        )
    return f"sip:{number.replace('-', '')}@{settings.trunk.registrar}"


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
