"""One telephone call in the worker: a `Leg` between baresip's call and the host's line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from baresip import BaresipError, CallFailed, StaleHandleError

from gateway.workers.host import Tell
from gateway.workers.link import Message
from voice_agent.errors import UsageError
from voice_agent.types import Frame, Pcm16

from .sound import CallSound

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 5.0  # the core's time to say yes or no to a caller
ESTABLISH_S = 10.0  # from our answer to the caller's acknowledgement
RING_S = 60.0  # an outbound call rings no longer
LAST_SOUND_MS, POLL_MS = 300, 5  # what waits in the stack may leave before we hang up
TRANSFER_S = 30.0
KEYS = frozenset("0123456789*#ABCD")
TRANSFERRED, MEDIA_LOST = "Call transfered", "rtp stream error"  # as the stack spells them

Spawn = Callable[[Coroutine[Any, Any, None]], None]
Dial = Callable[[str], Coroutine[Any, Any, Any]]


class SipLeg:
    """Owns one `baresip.Call` from its first event to its last.

    Messages down: answer, reject, transfer {ask, target}, dtmf {ask, keys}. Up: ringing, connected,
    held {on}, digit {key}, done {ask, error}, gone {why}.
    """

    def __init__(
        self, tell: Tell, spawn: Spawn, *, call: Any = None, dial: Dial | None = None
    ) -> None:
        """call: a caller's; dial: makes the call of a line that the core opens."""
        self._tell = tell
        self._spawn = spawn
        self._dial = dial
        self._call: Any = None
        self._sound: CallSound | None = None
        self._decided = asyncio.Event()
        self._established = False
        self._over = False
        self.before_media: Callable[[], None] = lambda: None
        self._transfer: int | None = None  # the question that its outcome answers
        if call is not None:
            self._adopt(call)
            spawn(self._undecided())

    def _adopt(self, call: Any) -> None:
        self._call = call
        self._sound = CallSound(call.audio)
        call.on(self._on_event)

    # ------------------------------------------------------------ Leg

    async def open(self, offer: Message) -> Message:
        """Dials `offer["to"]` and waits for an answer. Raises UsageError VA505."""
        assert self._dial is not None
        try:
            call = await self._dial(offer["to"])
            self._adopt(call)
            await call.wait_established(RING_S)
            self._up()
        except CallFailed as error:
            raise UsageError(_words(error), code="VA505") from error
        except (BaresipError, ValueError) as error:
            raise UsageError(f"the call could not be placed: {error}", code="VA505") from error
        return {}

    def frame(self) -> Frame:
        assert self._sound is not None
        return self._sound.receive()

    def send(self, pcm: Pcm16) -> None:
        assert self._sound is not None
        self._sound.send(pcm)

    def told(self, message: Message) -> None:
        match message["type"]:
            case "answer":
                self._decided.set()
                self._spawn(self._answer())
            case "reject":
                self._decided.set()
                self._spawn(self._end(self._call.reject))
            case "flush" if self._sound is not None:
                self._sound.cut()
            case "transfer" | "dtmf" as kind:
                self._spawn(self._do(kind, message))

    async def close(self) -> None:
        """What is on its way is heard to its end, then BYE; before that 486 or CANCEL."""
        self._decided.set()
        if self._over or self._call is None:
            return
        if self._established and self._sound is not None:
            for _ in range(LAST_SOUND_MS // POLL_MS):
                if self._sound.sent_all:
                    break
                await asyncio.sleep(POLL_MS / 1000)
        await self._end(self._call.hangup)

    # ------------------------------------------------------------ what the core wants

    async def _answer(self) -> None:
        try:
            await self._call.answer()
            await self._call.wait_established(ESTABLISH_S)
        except BaresipError as error:
            if not isinstance(error, StaleHandleError | CallFailed):
                log.warning("a call could not be answered: %s", error)
            await self._end(self._call.hangup)

    async def _undecided(self) -> None:
        """A core that does not answer must not leave the caller ringing."""
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await self._decided.wait()
        except TimeoutError:
            await self._end(self._call.reject)

    async def _end(self, how: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await how()
        except BaresipError as error:
            log.debug("already gone: %s", error)
        self._gone("hung_up")

    async def _do(self, kind: str, message: Message) -> None:
        """Answers with `done`: error is None, or what the network or the stack said."""
        error: str | None = None
        try:
            if kind == "dtmf":
                await self._call.send_dtmf(message["keys"])
            else:
                self._transfer = message["ask"]
                await self._call.transfer(message["target"], timeout=TRANSFER_S)
        except (BaresipError, ValueError) as refused:
            error = str(refused)
        if kind == "dtmf" or self._transfer is not None:
            self._transfer = None
            self._tell("done", ask=message["ask"], error=error)

    # ------------------------------------------------------------ what the stack reports

    def _on_event(self, event: Any) -> None:
        match event.event.name:
            case "CALL_RINGING":
                self._tell("ringing")
            case "CALL_ESTABLISHED":
                self._up()
            case "CALL_DTMF_START" if event.text in KEYS:
                # not at its end: by SIP INFO the next may start before
                self._tell("digit", key=event.text)
            case "CALL_HOLD":
                self._tell("held", on=True)
            case "CALL_RESUME":
                self._tell("held", on=False)
            case "CALL_CLOSED":
                text = event.text or ""
                if self._transfer is not None:  # told here, so that it is known before `gone`
                    error = None if text == TRANSFERRED else text
                    self._tell("done", ask=self._transfer, error=error)
                    self._transfer = None
                self._gone("lost" if text == MEDIA_LOST else "hung_up")

    def _up(self) -> None:
        if not (self._established or self._over):
            self._established = True
            self.before_media()
            self._tell("connected")

    def _gone(self, why: str) -> None:
        if not self._over:
            self._over = True
            self._decided.set()
            self._tell("gone", why=why)


def _words(error: CallFailed) -> str:
    """For the one who wanted the call."""
    if error.status == 486:
        return "they are busy (486)"
    if error.status in (408, 480, None) and "established" in str(error):
        return "they did not answer"
    return f"the call was not taken: {error.status or ''} {error.reason or error}".strip()
