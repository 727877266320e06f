"""A media worker's inside: its lines, their players, one clock, one bundle for all of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.media.echo import EchoGuard, EchoMode, EchoReport
from gateway.pacer import Pacer
from voice_agent.clock import Clock, MonotonicClock
from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.player import Player
from voice_agent.types import Frame, Pcm16

from .link import (
    DOWN,
    FINISHED,
    TAKES,
    UNDERRUN,
    Link,
    Message,
    Records,
    UpFrame,
    down_frames,
)

log = logging.getLogger(__name__)

ALIVE_TICKS = 25
FAREWELL_S = 0.2  # for the last words to leave before the connection is closed
Tell = Callable[..., None]
"""tell(kind, **fields): a message up."""


class Leg(Protocol):
    """One caller's connection: what a transport brings into a worker, or into the core.

    It is made with a `Tell`, says `connected` once media flows and `gone` when the other side left.
    """

    async def open(self, offer: Message) -> Message:
        """The answer. Raises VoiceAgentError when the offer can't be taken."""
        ...

    def frame(self) -> Frame:
        """The caller's next 20 ms."""
        ...

    def send(self, pcm: Pcm16) -> None:
        """Our next 20 ms: int16 [480], 24 kHz."""
        ...

    def told(self, message: Message) -> None:
        """A message that is not the player's: `text`, and the transport's own."""
        ...

    async def close(self) -> None:
        """Idempotent; nothing is told afterwards."""
        ...


class HostLine:
    """One line: the leg, the player that speaks into it, and the echo guard between."""

    def __init__(self, number: int, link: Link, make_leg: Callable[[Tell], Leg]) -> None:
        self.number = number
        self._link = link
        self._player = Player()
        self._take = 0
        self._guard: EchoGuard | None = None
        self.connected = False
        self.last_words: Sequence[str] = ()
        """What the client is told if the core dies."""
        self.leg = make_leg(self._tell)

    def _tell(self, kind: str, **fields: Any) -> None:
        self.connected = self.connected or kind in ("connected", "back")
        if kind == "held":  # on hold: no clock runs, ours stays where it is
            self.connected = not fields["on"]
        if kind == "lost":  # nor while nothing arrives
            self.connected = False
        self._link.tell(self.number, kind, **fields)

    def guard_against_echo(self, mode: EchoMode) -> None:
        def tell(report: EchoReport) -> None:
            self._tell("echo", verdict=report.verdict.value, note=str(report))

        if mode is not EchoMode.OFF:
            self._guard = EchoGuard(mode, tell)
            tell(self._guard.report)

    def told(self, message: Message) -> None:
        player = self._player
        match message:
            case {"type": "begin", "reply": reply}:
                self._take = (self._take + 1) % TAKES
                player.begin(reply)
            case {"type": "end", "reply": reply, "total": total}:
                player.end(reply, total)
            case {"type": "hold"}:
                player.hold()
            case {"type": "resume"}:
                player.resume()
            case {"type": "seek", "reply": reply, "at": at}:
                self._take = (self._take + 1) % TAKES
                player.seek(reply, at)
            case {"type": "duck", "gain": gain}:
                player.duck(gain)
            case {"type": "flush", "reply": reply}:
                player.flush(reply)
                self.leg.told(message)  # which may have sent ahead of the ear
            case _:
                self.leg.told(message)

    def play(self, reply: int, offset: int, pcm: Pcm16) -> None:
        self._player.play(reply, offset, pcm)

    def farewell(self) -> bool:
        """Whether there was anything to say."""
        for text in self.last_words:
            self.leg.told({"type": "text", "text": text})
        return bool(self.last_words)

    def tick(self) -> UpFrame:
        frame = self.leg.frame()
        if self._guard is not None:
            frame = self._guard.heard(frame)
        played = self._player.tick()
        self.leg.send(played.pcm)
        if self._guard is not None:
            self._guard.sent(played.pcm)
            self._guard.tick()
        state = FINISHED * played.finished | UNDERRUN * played.underrun
        return UpFrame(
            self.number, frame.pcm, frame.flag, played.reply, played.offset, played.samples, state,
            self._take,
        )  # fmt: skip


class Host:
    """Owns a worker's lines from `open` (or `adopt`) to `close`."""

    def __init__(self, make_leg: Callable[[Tell], Leg], clock: Clock | None = None) -> None:
        """make_leg: for lines that the core opens."""
        self._make_leg = make_leg
        self._lines: dict[int, HostLine] = {}
        self._next_own = 1
        self._ticks = 0
        self._pacer = Pacer(clock or MonotonicClock())
        self._gone = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.link = Link(DOWN, self.take, self._gone.set)

    async def run(self, sock: socket.socket, beside: Callable[[], Any] | None = None) -> None:
        """Serve until the core closes the socket, or dies: then the calls are ended properly, with
        last words and BYE. beside: awaited once it has begun, for a
        transport that needs more than lines; what it raises ends the worker."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            self._group = group
            await loop.create_unix_connection(lambda: self.link, sock=sock)
            pacer = group.create_task(self._pacer.run())
            leave = self._pacer.join(self.tick, lambda fault: self._gone.set())
            if beside is not None:
                await beside()
            self.link.tell(0, "ready")
            await self._gone.wait()
            leave()
            pacer.cancel()
            await self._end_lines()
            self.link.close()

    async def _end_lines(self) -> None:
        lines = list(self._lines.values())
        if lines:
            log.warning("the core is gone: its calls are ended", extra={"lines": len(lines)})
        said = [line.farewell() for line in lines]
        if any(said):
            await asyncio.sleep(FAREWELL_S)
        async with asyncio.TaskGroup() as group:
            for line in lines:
                group.create_task(self._close(line))

    def adopt(self, make_leg: Callable[[Tell], Leg], **fields: Any) -> HostLine:
        """A line that began here: the core is told `incoming` with `fields`."""
        number, self._next_own = self._next_own, self._next_own + 2
        line = self._lines[number] = HostLine(number, self.link, make_leg)
        self.link.tell(number, "incoming", **fields)
        return line

    def tick(self) -> None:
        """20 ms of every line."""
        for line in list(self._lines.values()):
            if not line.connected:
                continue
            try:
                self.link.put(line.tick())
            except Exception:
                log.exception("a line's media tick failed")
                line.connected = False
                self.link.tell(line.number, "gone", why="fault")
        self._ticks += 1
        if self._ticks % ALIVE_TICKS == 0:
            self.link.tell(0, "alive", late_ms=round(self._pacer.late_ms, 1))

    # ------------------------------------------------------------ from the core

    def take(self, records: Records, messages: list[Message]) -> None:
        for message in messages:
            self._told(message)
        for frame in down_frames(records):
            line = self._lines.get(frame.line)
            if line is not None:
                line.play(frame.reply, frame.offset, frame.pcm)

    def _told(self, message: Message) -> None:
        number = message.get("line", 0)
        line = self._lines.get(number)
        kind = message.get("type")
        assert self._group is not None
        if kind == "open":
            line = self._lines[number] = HostLine(number, self.link, self._make_leg)
            line.last_words = message.get("last_words", ())
            self._group.create_task(self._open(line, message))
        elif line is not None and kind == "close":
            line.connected = False
            self._group.create_task(self._close(line))
        elif line is not None:
            line.told(message)

    async def _open(self, line: HostLine, offer: Message) -> None:
        try:
            answer = await line.leg.open(offer)
            line.guard_against_echo(EchoMode(offer.get("echo", "off")))
            self.link.tell(line.number, "opened", **answer)
        except VoiceAgentError as error:
            kinds = {UsageError: "usage", CapacityError: "capacity"}
            self.link.tell(
                line.number, "refused", code=error.code, text=str(error.args[0]),
                why=kinds.get(type(error), "internal"),
            )  # fmt: skip
        except Exception:
            log.exception("a line could not be opened")
            text = "The call could not be set up."
            self.link.tell(line.number, "refused", code="VA464", text=text, why="internal")

    async def _close(self, line: HostLine) -> None:
        try:
            await line.leg.close()
        except Exception:
            log.exception("a line did not close cleanly")
        self._lines.pop(line.number, None)
        self.link.tell(line.number, "closed")
