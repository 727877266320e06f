"""How a running server is asked to end or to read its configuration again, and how it ends.

first SIGTERM or SIGINT, `voice-agent drain`   no new calls; live ones may finish; then the end
second signal                                  calls are hung up at once
SIGHUP, `voice-agent reload`                   the configuration is read again, for new calls
a stage that died or hangs                     calls are hung up, the process exits with 1
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import signal
import sys
from collections.abc import Callable

from voice_agent import logs
from voice_agent.agent_file import AgentShelf
from voice_agent.config import Config
from voice_agent.early import EarlyLimits
from voice_agent.errors import InternalError, UsageError
from voice_agent.events import EndReason
from voice_agent.loading import agent_order
from voice_agent.reload import Reloaded, merge
from voice_agent.stack import Stack
from voice_agent.vitals import Vitals

from .config import GatewayConfig, check_bind
from .gateway import Gateway
from .sip.settings import check as check_sip

log = logging.getLogger(__name__)

LOOK_S = 1.0
HANG_S = 30
"""An event loop that gets nothing done for so long has hung, with every call: the process ends
itself (status 1) and leaves the stacks of all threads in the log."""
ENDING_S = 20
"""The same for the end itself, from the last hang-up on."""
GRACE_S, HURRIED_S = 3.0, 1.0
"""For the last words and clean-up of calls that are hung up."""
Load = Callable[[], Config]
DoorOf = Callable[[Config], GatewayConfig]


class Lifecycle:
    """`gateway.gateway.Controls`, and what the signals call. On the event loop."""

    def __init__(
        self,
        gateway: Gateway,
        stack: Stack,
        vitals: Vitals,
        config: Config,
        *,
        load: Load,
        door_of: DoorOf,
        own_agents: bool = False,
    ) -> None:
        """load: reads the configuration anew. door_of: the gateway's own record of one. own_agents:
        a program brought them; the agents' folder is not looked at."""
        self._gateway = gateway
        self._stack = stack
        self._vitals = vitals
        self._config = config
        self._load = load
        self._door_of = door_of
        self._own_agents = own_agents
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signals = 0
        self._drain_s: float | None = None
        self.fault: InternalError | None = None

    # ------------------------------------------------------------ asked

    def listen(self) -> None:
        """Take the signals. A terminal that closes sends SIGHUP too, and ends its server."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        if not (sys.stdin and sys.stdin.isatty()):
            loop.add_signal_handler(signal.SIGHUP, self._hung_up)

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._hurry.set()
        self.drain()

    def _hung_up(self) -> None:
        with contextlib.suppress(UsageError):  # logged there
            self.reload()

    def drain(self, seconds: float | None = None) -> float:
        """Asked again while calls finish, it changes the time that they have."""
        if seconds is not None or self._drain_s is None:
            self._drain_s = self._config.server.drain_s if seconds is None else seconds
        if not self._asked.is_set():
            self._gateway.admission.draining = True
            live = len(self._gateway.live)
            log.info("draining: no new calls", extra={"live": live, "seconds": self._drain_s})
            self._asked.set()
        return self._drain_s

    def reload(self) -> Reloaded:
        try:
            merged, done = merge(self._config, self._load())
            door = self._door(merged)
            if not self._own_agents:
                moved = merged.agents_dir != self._config.agents_dir
                shelf = AgentShelf(merged.agents_dir) if moved else None
                self._stack.use_agents(agent_order(merged), shelf)
            self._gateway.reconfigure(door)
        except UsageError as error:
            self._gateway.metrics.reloads.labels("refused").inc()
            log.error("the configuration stays as it was: %s", error)
            raise
        self._config = merged
        self._stack.early.limits = EarlyLimits(**merged.early.model_dump())
        logs.setup(merged.log.format, merged.log.level)
        self._gateway.metrics.reloads.labels("taken").inc()
        log.info("configuration read again", extra={"keys": ",".join(done.taken) or "none"})
        if done.waiting:
            log.warning("changed, and used only after a restart: %s", ", ".join(done.waiting))
        return done

    def _door(self, config: Config) -> GatewayConfig:
        door = self._door_of(config)
        check_bind(door)
        if door.sip is not None:
            check_sip(door.sip, door.max_calls)
        return door

    # ------------------------------------------------------------ the end

    async def run(self) -> None:
        """From `ready` until every call is over because somebody asked, or a stage was found dead
        (`fault`)."""
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            try:
                await self._asked.wait()
                await self._finish_calls()
            finally:
                watch.cancel()
        _dead_mans_switch(ENDING_S)

    async def _watch(self) -> None:
        while True:
            _dead_mans_switch(HANG_S)
            why = self._vitals.check()
            if why and self.fault is None:
                self.fault = InternalError(f"{why}; the server ends", code="VA493")
                log.critical("%s", self.fault, extra={"live": len(self._gateway.live)})
                self._hurry.set()
                self.drain(0.0)
            await asyncio.sleep(LOOK_S)

    async def _finish_calls(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._gateway.live and not self._hurry.is_set():
            left_s = began_s + (self._drain_s or 0.0) - loop.time()
            if left_s <= 0:
                break
            async with asyncio.TaskGroup() as group:
                waits = [
                    group.create_task(self._gateway.emptied()),
                    group.create_task(self._hurry.wait()),
                ]
                first = asyncio.FIRST_COMPLETED  # looked at again: the time may have been changed
                await asyncio.wait(waits, timeout=min(left_s, LOOK_S), return_when=first)
                for wait in waits:
                    wait.cancel()
        grace_s = HURRIED_S if self._hurry.is_set() else GRACE_S
        failed = self.fault is not None
        reason = EndReason.SERVER_ERROR if failed else EndReason.SERVER_DRAINING
        await self._gateway.hang_up_all(grace_s, reason)


def guard_process() -> None:
    """A crash in native code leaves the Python stack of every thread in the log."""
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)


def _dead_mans_switch(seconds: int) -> None:
    """Unless this is called again in time, the process ends. Needs neither the event loop nor the
    interpreter's lock."""
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)


def disarm() -> None:
    faulthandler.cancel_dump_traceback_later()
