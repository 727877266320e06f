"""The telephone worker: one process, one baresip runtime, and one 20 ms clock for all its calls.

A SIP thread that died poisons its process, so the process ends with it and the core starts another.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Coroutine
from typing import Any

from baresip import BaresipError, Config, RegistrationError, Runtime, UserAgent

from gateway.media import echo
from gateway.media.echo import EchoMode
from gateway.workers.host import Host, Tell
from gateway.workers.link import Message

from .leg import SipLeg
from .settings import SipSettings, door_account, from_json, stack_text, trunk_account

log = logging.getLogger(__name__)

MEDIA_IDLE_S = 30  # without a packet from a caller who has not put us on hold
WATCH_S, PING_S, MAX_MISSED = 2.0, 3.0, 2
UNREGISTER_S = 1.0
HEADERS = ("From", "To", "P-Asserted-Identity")


class StackDied(RuntimeError):
    """Nothing in this process can take calls any more."""


async def serve(sock: socket.socket, start: Message) -> None:
    """start: settings {..} (`settings.as_json`), echo. Returns when the core closes the link;
    raises what ends the process otherwise."""
    mode = EchoMode(start["echo"])
    if mode is not EchoMode.OFF:
        echo.load()
    await Phone(from_json(start["settings"]), mode).run(sock)


class Phone:
    """Owns the runtime and its accounts; the host owns the lines."""

    def __init__(self, settings: SipSettings, echo_mode: EchoMode) -> None:
        self._settings = settings
        self._echo = echo_mode
        self._host = Host(self._outgoing)
        self._runtime = Runtime()
        self._died = asyncio.Event()
        self._runtime.on_dead = self._died.set
        self._running = False
        self._door: UserAgent | None = None
        self._trunk: UserAgent | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self, sock: socket.socket) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            watch = group.create_task(self._watch())
            await self._host.run(sock, self._open)
            watch.cancel()
            await self._close()

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None
        self._group.create_task(job)

    async def _open(self) -> None:
        settings = self._settings
        logging.getLogger("baresip").setLevel(logging.WARNING)
        await self._runtime.start(
            Config(
                net_interface=settings.host,
                max_concurrent_calls=None,  # the core admits
                rtp_timeout=MEDIA_IDLE_S,
                expose_headers=HEADERS,
                extra_config_text=stack_text(settings),
            )
        )
        self._running = True
        if settings.direct:
            self._door = await self._account(door_account(settings))
        if settings.trunk is not None:
            self._trunk = await self._account(trunk_account(settings))
            if settings.trunk.expires_s:
                self._spawn(self._register(self._trunk))

    async def _account(self, account: str) -> UserAgent:
        agent = await UserAgent.create(self._runtime, account, transfer_policy="reject")
        agent.on_incoming(self._incoming)
        return agent

    async def _register(self, trunk: UserAgent) -> None:
        """Until the first answer; afterwards the stack registers by itself and says how it went."""
        trunk.on(self._on_trunk)
        try:
            await trunk.register()
        except RegistrationError as error:
            if error.status is None:  # else it came as an event
                self._host.link.tell(0, "registration", error=str(error))

    def _on_trunk(self, event: Any) -> None:
        match event.event.name:
            case "REGISTER_OK":
                self._host.link.tell(0, "registration", error="")
            case "REGISTER_FAIL":
                self._host.link.tell(0, "registration", error=event.text or "no answer")

    async def _close(self) -> None:
        try:
            if self._trunk is not None:
                await self._trunk.unregister(timeout=UNREGISTER_S)
        except BaresipError as error:
            log.info("the trunk did not take our leave: %s", error)
        await self._runtime.close()

    async def _watch(self) -> None:
        """A stack that does not answer is as good as dead. Raises StackDied."""
        missed = 0
        while missed < MAX_MISSED:
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._died.wait()
                    raise StackDied("the SIP thread ended")
            except TimeoutError:
                pass
            if not self._running:
                continue
            try:
                async with asyncio.timeout(PING_S):
                    await self._runtime.set_native_log_level("warning")  # any command would do
                missed = 0
            except (BaresipError, TimeoutError):
                missed += 1
        raise StackDied("the SIP thread does not answer")

    # ------------------------------------------------------------ calls

    def _incoming(self, call: Any) -> None:
        headers = {name.lower(): value for name, value in call.headers.items()}
        leg: SipLeg | None = None

        def make_leg(tell: Tell) -> SipLeg:
            nonlocal leg
            leg = SipLeg(tell, self._spawn, call=call)
            return leg

        line = self._host.adopt(
            make_leg,
            caller=headers.get("from") or call.peer or "",
            called=headers.get("to", ""),
            asserted=headers.get("p-asserted-identity", ""),
            call_id=call.call_id or "",
        )
        assert leg is not None
        leg.before_media = lambda: line.guard_against_echo(self._echo)

    def _outgoing(self, tell: Tell) -> SipLeg:
        return SipLeg(tell, self._spawn, dial=self._dial)

    async def _dial(self, uri: str) -> Any:
        """The call. What the stack reported of it before the binding knew it, it is told now: a
        neighbour answers within a millisecond."""
        agent = self._trunk or self._door
        assert agent is not None
        early: list[Any] = []
        listen = early.append
        self._runtime.subscribe(listen)
        try:
            call = await agent.dial(uri)
        finally:
            self._runtime.unsubscribe(listen)
        for event in early:
            call._on_stack_event(event)
        return call
