"""The telephone side of a server: the worker that holds the lines, and the calls on them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket

from gateway.gateway import Gateway
from gateway.workers.link import Message
from gateway.workers.pool import Pool
from gateway.workers.worker import FarLine
from voice_agent import logs
from voice_agent.errors import InternalError, UsageError

from .call import SipCall, callable_uri
from .settings import SipSettings, address, as_json

log = logging.getLogger(__name__)

READY_S = 30.0


class Telephone:
    """Lives as long as the application. One worker: baresip is one per process, and one process
    carries more calls than this server's models do."""

    def __init__(self, gateway: Gateway, settings: SipSettings) -> None:
        self._gateway = gateway
        self._settings = settings
        self._calls: asyncio.TaskGroup | None = None
        self._registered: bool | None = None
        self._pool = Pool(
            "sip",
            1,
            {
                "log": logs.chosen(),
                "settings": as_json(settings),
                "echo": gateway.config.echo.telephone.value,
            },
            self._incoming,
            self._on_notice,
        )
        gateway.gauge_sources.append(self.gauges)

    async def run(self) -> None:
        """Until cancelled; call `hang_up_all` of the gateway before."""
        async with asyncio.TaskGroup() as group:
            self._calls = group
            await self._pool.run()

    async def ready(self) -> None:
        """Returns once callers would be answered. Raises InternalError VA502."""
        try:
            async with asyncio.timeout(READY_S):
                await self._pool.ready()
        except TimeoutError:
            raise InternalError(
                "the telephone worker did not start; its reason is in the log above", code="VA502"
            ) from None

    async def call(self, to: str, agent: str | None = None) -> None:
        """Call someone; returns once they answered, and the conversation goes on by itself.

        to: `sip:user@host`, or a number where there is a trunk. Raises UsageError VA504 (address),
        VA505 (not answered), VA465 (agent), and CapacityError.
        """
        if agent is not None and agent not in self._gateway.stack.agent_names():
            raise UsageError(f"There is no agent {agent[:64]!r} here.", code="VA465")
        uri = callable_uri(to, self._settings)
        line = self._pool.line(lambda message: None)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = SipCall(self._gateway, self._settings, line)
        assert self._calls is not None
        self._calls.create_task(call.call(uri, agent or self._settings.agent, ready))
        await ready

    def _incoming(self, line: FarLine, message: Message) -> None:
        log.info(
            "a telephone call",
            extra={"caller": address(message["caller"]), "sip_call_id": message["call_id"]},
        )
        call = SipCall(self._gateway, self._settings, line)
        assert self._calls is not None
        self._calls.create_task(call.answer(message))

    def _on_notice(self, message: Message) -> None:
        if message["type"] != "registration":
            return
        trunk = self._settings.trunk
        fields = {
            "registrar": trunk.registrar if trunk else "",
            "user": trunk.user if trunk else "",
        }
        if error := message["error"]:
            self._registered = False
            log.error("the trunk refuses us: %s", error, extra=fields)
        elif not self._registered:
            self._registered = True
            log.info("registered at the trunk", extra=fields)

    @property
    def lines(self) -> int:
        """Of the worker: callers, called, and those being cleaned up."""
        return sum(len(worker.lines) for worker in self._pool.workers)

    @property
    def pids(self) -> list[int]:
        """Of the worker, while there is one."""
        return [worker.pid for worker in self._pool.workers if worker.pid is not None]

    def gauges(self) -> dict[str, float]:
        gauges = self._pool.gauges()
        if self._registered is not None:
            gauges["sip_registered"] = float(self._registered)
        return gauges


def check_port(settings: SipSettings) -> None:
    """Raises UsageError VA503 if the SIP port can't be listened on: before any model is loaded."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    kinds = {"udp": socket.SOCK_DGRAM, "tcp": socket.SOCK_STREAM, "tls": socket.SOCK_STREAM}
    for transport in settings.transports:
        port = settings.port + (transport == "tls")
        with contextlib.closing(socket.socket(family, kinds[transport])) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, transport != "udp")
            try:
                probe.bind((settings.host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    why = "is in use; stop that program, or choose another port: --sip-port N"
                else:
                    why = f"cannot be listened on: {error.strerror or error}"
                raise UsageError(
                    f"SIP port {port} ({transport}) on {settings.host} {why}", code="VA503"
                ) from error
