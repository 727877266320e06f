"""A call over WebRTC: an offer, an answer, then sound, and texts on the data channel.

The connection itself is a leg (webrtc_leg.py) in a media worker or in this process.
"""

from __future__ import annotations

import asyncio
import logging

from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.events import CallFault, EndReason
from voice_agent.own_words import Echo

from .gateway import Gateway, LiveCall
from .lines import MediaLine
from .rtc_side import RtcSide
from .workers.link import Message
from .workers.worker import DIED

log = logging.getLogger(__name__)

TAIL_S = 1.0  # the page plays its last buffered sound, then closes


class RtcCall:
    """Owns one call, from offer to clean close."""

    def __init__(self, gateway: Gateway, sdp: str, agent: str | None, side: RtcSide) -> None:
        """side: what speaks on the data channel."""
        self._gateway = gateway
        self._sdp = sdp
        self._agent = agent
        self._side = side
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._line: MediaLine | None = None
        self._live: LiveCall | None = None
        self._echo: tuple[Echo, str] | None = None
        self._left = EndReason.TRANSPORT_LOST  # why, once `_gone` is set

    async def run(self) -> None:
        """The whole call. Never raises; what goes wrong before the answer is set on `answer`."""
        try:
            with self._gateway.admit("webrtc") as live:
                self._live = live
                self._side.admitted(live)
                live.on_hang_up.append(self._gone.set)
                await self._connect_and_talk(live)
        except VoiceAgentError as error:
            self._fail(error)
        except Exception:
            log.exception("a WebRTC call failed")
            self._fail(InternalError("The call could not be set up.", code="VA464"))

    def _fail(self, error: VoiceAgentError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        elif not isinstance(error, CapacityError):
            log.warning("call ended by an error", extra={"code": error.code})

    async def _connect_and_talk(self, live: LiveCall) -> None:
        if self._agent is not None and self._agent not in self._gateway.stack.agent_names():
            raise UsageError(f"There is no agent {self._agent[:64]!r} here.", code="VA465")
        mode = self._gateway.config.echo.page
        line = self._line = self._gateway.rtc_line(self._got)
        try:
            offer = {
                "sdp": self._sdp,
                "channel": self._side.channel,
                "echo": mode.value,
                "last_words": self._side.last_words,
            }
            answer = await line.open(offer)
            self.answer.set_result(str(answer["sdp"]))
            try:
                async with asyncio.timeout(self._gateway.config.connect_timeout_s):
                    await _first(self._connected, self._gone)
            except TimeoutError:
                pass
            if not self._connected.is_set():
                live.reason = EndReason.TRANSPORT_LOST
                return
            await self._talk(live, line)
        finally:
            await line.close()

    async def _talk(self, live: LiveCall, line: MediaLine) -> None:
        gateway = self._gateway
        call = live.call = self._side.begin(
            lambda text: line.tell("text", text=text), self._client_leaves
        )
        if self._echo is not None:
            gateway.tell_echo(live, *self._echo)
        line.talk(call, gateway.count_frame, lambda: live.hang_up(EndReason.SERVER_ERROR))
        async with asyncio.TaskGroup() as group:
            talk = group.create_task(call.run())
            gone = group.create_task(self._gone.wait())
            try:
                await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not talk.done():
                    call.hang_up(self._left)
                    live.reason = await talk
                else:
                    live.reason = talk.result()
                    await asyncio.wait({gone}, timeout=TAIL_S)
            finally:
                gone.cancel()

    # ------------------------------------------------------------ from the line

    def _got(self, message: Message) -> None:
        match message:
            case {"type": "connected"}:
                self._connected.set()
            case {"type": "gone", "why": why}:
                if why == "worker" and self._live is not None and self._live.call is not None:
                    self._side.on_event(CallFault("VA487", DIED, fatal=True))
                self._gone.set()
            case {"type": "text", "text": text}:
                self._side.receive(text)
            case {"type": "echo", "verdict": verdict, "note": note}:
                self._echo = Echo(verdict), note
                if self._live is not None and self._live.call is not None:
                    self._gateway.tell_echo(self._live, *self._echo)

    def _client_leaves(self) -> None:
        self._left = EndReason.CALLER_HUNG_UP
        self._gone.set()


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
