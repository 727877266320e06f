"""The core's side of one media worker: its process, its link, its lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from gateway.call_port import CallPort
from voice_agent.errors import CapacityError, InternalError, UsageError
from voice_agent.types import Frame

from .far_player import FarPlayer
from .link import UP, Link, Message, Records, UpFrame, up_frames

log = logging.getLogger(__name__)

CLOSE_S = 3.0  # after its link is closed a worker has so long to end by itself
REFUSED = {"usage": UsageError, "capacity": CapacityError, "internal": InternalError}
DIED = "the media worker of this call ended"


class FarLine:
    """A line of a worker, as a call sees it (`gateway.lines.MediaLine`)."""

    def __init__(self, worker: Worker, number: int, on_message: Callable[[Message], None]) -> None:
        self.number = number
        self.on_message = on_message
        self.player = FarPlayer(number, worker.link)
        self._worker = worker
        self._answer: asyncio.Future[Message] | None = None
        self._call: CallPort | None = None
        self._on_frame: Callable[[Frame], None] = lambda frame: None
        self._on_fault: Callable[[], None] = lambda: None
        self._closed = asyncio.Event()

    async def open(self, offer: Message) -> Message:
        self._answer = asyncio.get_running_loop().create_future()
        self._worker.link.tell(self.number, "open", **offer)
        return await self._answer

    def talk(
        self, call: CallPort, on_frame: Callable[[Frame], None], on_fault: Callable[[], None]
    ) -> None:
        call.play_on(self.player)
        self._call, self._on_frame, self._on_fault = call, on_frame, on_fault

    def tell(self, kind: str, **fields: Any) -> None:
        self._worker.link.tell(self.number, kind, **fields)

    async def close(self) -> None:
        self._call = None
        if not self._closed.is_set():
            self.tell("close")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._closed.wait()
        self._worker.lines.pop(self.number, None)

    # ------------------------------------------------------------ from the worker

    def took(self, frame: UpFrame) -> None:
        """20 ms of the caller, and what was played meanwhile."""
        call = self._call
        if call is None:
            return
        try:
            self.player.reported(frame)
            heard = Frame(frame.pcm.copy(), frame.flag)  # the bundle's memory is not kept alive
            self._on_frame(heard)
            call.hear(heard)
            call.tick()
        except Exception:
            self._call = None
            log.exception("a call's media tick failed")
            self._on_fault()

    def got(self, message: Message) -> None:
        answer = self._answer
        match message:
            case {"type": "opened"} if answer is not None and not answer.done():
                answer.set_result(message)
            case {"type": "refused", "code": code, "text": text} if (
                answer is not None and not answer.done()
            ):
                answer.set_exception(REFUSED[message["why"]](text, code=code))
            case {"type": "closed"}:
                self._closed.set()
            case _:
                self.on_message(message)

    def lost(self) -> None:
        """The worker is gone, and the caller's connection with it."""
        self._closed.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(InternalError(DIED + "; please call again", code="VA487"))
        self.on_message({"type": "gone", "why": "worker"})


class Worker:
    """One process, from start to end; a `Pool` makes the next one."""

    def __init__(
        self,
        name: str,
        settings: Message,
        on_incoming: Callable[[FarLine, Message], None],
        on_notice: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """on_incoming: a line that began in the worker; it sets the line's `on_message`. on_notice:
        what the worker says of itself beyond the common messages."""
        self.name = name
        self._settings = settings
        self._on_incoming = on_incoming
        self._on_notice = on_notice
        self._process: subprocess.Popen[bytes] | None = None
        self.lines: dict[int, FarLine] = {}
        self._next = 2
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.late_ms = 0.0
        self._seen = 0
        self.link = Link(UP, self._take, self._lost)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Returns once the process runs; `ready` is set when it takes lines."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "gateway.workers", str(theirs.fileno())]
        with theirs:
            self._process = await asyncio.to_thread(
                subprocess.Popen, command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.link, sock=ours)
        self.link.tell(0, "start", **self._settings)

    def line(self, on_message: Callable[[Message], None]) -> FarLine:
        number, self._next = self._next, self._next + 2
        line = self.lines[number] = FarLine(self, number, on_message)
        return line

    def seen(self) -> bool:
        """Whether anything came since the last call of this."""
        before, self._seen = self._seen, self.link.bundles
        return self._seen != before

    async def end(self) -> int | None:
        """Close the link and wait for the process; its exit status."""
        self.link.close()
        self._lost()
        process = self._process
        if process is None:
            return None
        try:
            return await asyncio.to_thread(process.wait, CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    def _take(self, records: Records, messages: list[Message]) -> None:
        for message in messages:
            self._told(message)
        for frame in up_frames(records):
            line = self.lines.get(frame.line)
            if line is not None:
                line.took(frame)

    def _told(self, message: Message) -> None:
        number = message.get("line", 0)
        match message:
            case {"line": 0, "type": "ready"}:
                self.ready.set()
            case {"line": 0, "type": "alive", "late_ms": late_ms}:
                self.late_ms = late_ms
            case {"line": 0}:
                self._on_notice(message)
            case {"type": "incoming"}:
                line = self.lines[number] = FarLine(self, number, lambda message: None)
                self._on_incoming(line, message)
            case _ if number in self.lines:
                self.lines[number].got(message)

    def _lost(self) -> None:
        self.gone.set()
        lines, self.lines = self.lines, {}
        for line in lines.values():
            line.lost()
