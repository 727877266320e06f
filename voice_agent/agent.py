"""One call, wired: the ear's edges drive the turn machine, its effects drive hearing and mouth.

Everything here runs on the event loop. The transport gives frames to `hear()`, pulls one 20 ms
frame with `tick()` from whatever owns the clock, and receives `Event`s in order. Jobs live in one
TaskGroup; a job that fails tells the caller and leaves the call alive.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

from . import logs
from . import turn as tm
from .aside import Asides
from .client_requests import ClientRequests
from .context import Conversation
from .errors import InternalError, UsageError, VoiceAgentError
from .events import (
    CallEnded,
    CallFault,
    CallStarted,
    EndReason,
    Event,
)
from .glance import Glance
from .line import Line
from .own_words import Echo
from .player import Sounding
from .playout import Tick
from .scope import CancelScope
from .silence import Due, Silence, SilenceLimits
from .turns import Turns
from .types import Frame

if TYPE_CHECKING:
    from .library.call import Call as Handle
    from .stack import AgentRuntime, Stack

log = logging.getLogger(__name__)

WATCH_S = 0.1
SAY_POLL_S = 0.02
LAST_WORDS_S = 5.0  # a transport that takes none of them for so long is gone
ALL_MS = 1 << 30


class Call:
    """Owns one caller's conversation from greeting to goodbye."""

    def __init__(
        self,
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
        call_id: str | None = None,
    ) -> None:
        self.id = call_id or secrets.token_hex(6)
        self._stack = stack
        self._agent = agent
        self._clock = stack.clock
        self._on_event = on_event
        self._turns = Turns(self, stack, agent, lead_ms)
        self._group: asyncio.TaskGroup | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[EndReason] | None = None
        self._end_reason: EndReason | None = None
        self.listeners: list[Callable[[Event], None]] = []
        """Told of every event besides the transport."""
        self.script: Callable[[Handle], Awaitable[None]] | None = None
        """Runs beside the call; cancelled when it ends."""
        self._handle: Handle | None = None
        self.line: Line | None = None
        """What the transport can do besides carrying sound; set by one that can."""
        self._asides = Asides(self._turns, stack, agent)
        limits = agent.file.limits
        self._limits = SilenceLimits(
            limits.idle_s, limits.silence_s, limits.max_call_s, len(agent.idle_prompts)
        )
        self._started_s = self._clock.now()
        self._silence = Silence(self._limits, self._started_s)
        self.client = ClientRequests(self._turns, stack, self._asides, self._silence, self.words)

    # ------------------------------------------------------------ transport side

    def hear(self, frame: Frame) -> None:
        """20 ms of the caller. Never blocks."""
        self._turns.ear.hear(frame)

    def tell_echo(self, echo: Echo, note: str) -> None:
        """The transport found out whether the line sends our own voice back."""
        self._turns.echo, self._turns.echo_note = echo, note

    def play_on(self, player: Sounding) -> None:
        """Our sound leaves through another player from now on, a reply from its cut word."""
        self._turns.mouth.play_on(player)

    def line_lost(self, unheard_ms: int = 0) -> None:
        """The caller can't be reached for now: the call waits, nothing is said into the void and no
        silence is taken for theirs. unheard_ms: of what left, the last so much did not arrive."""
        if not self._turns.line_lost:
            self._turns.lose_line(unheard_ms)

    def line_back(self) -> None:
        """The call goes on, and a reply with it, from the start of the word that was cut. A player
        elsewhere is set before (`play_on`)."""
        if self._turns.line_lost:
            self._silence.answered(self._clock.now())
            self._turns.regain_line()

    def press(self, key: str) -> None:
        """The caller pressed a key (DTMF): "0" to "9", "*", "#", "A" to "D". It ends what we are
        saying; the keys become a turn after "#" or two seconds without one.

        Raises UsageError VA116.
        """
        self.words()
        self._turns.watch.press(key)

    def playing_behind(self, ms: int) -> None:
        """The client measured how much later than sent our sound is heard: its buffer and its
        loudspeaker. Until it says so, what the transport was opened with counts."""
        self._turns.mouth.playing_behind(ms)

    def tick(self) -> Tick:
        """The next 20 ms for the caller, silence included. Called once per 20 ms of playback."""
        tick = self._turns.mouth.tick()
        self._stack.underrun_frames += tick.underrun
        return tick

    def glance(self) -> Glance:
        state = self._turns.state
        return Glance(
            self._agent.file.name,
            state.caller.value,
            state.floor.value,
            self._clock.now() - self._started_s,
            self._turns.n_done,
            self._turns.voice_to_voice_ms,
        )

    @property
    def idle(self) -> bool:
        """Nobody speaks, nothing is being thought, transcribed or said."""
        silent = self._turns.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED)
        return silent and self._turns.mouth.reply is None and not self._turns.tools.busy

    async def run(self) -> EndReason:
        """The whole life of the call. Cancelling it means that the transport was lost."""
        self._ended = asyncio.get_running_loop().create_future()
        if self._end_reason is not None:
            self._ended.set_result(self._end_reason)
        self._started_s = self._clock.now()
        self._silence.begin(self._started_s)
        reason = EndReason.TRANSPORT_LOST
        self.emit(CallStarted(self.id, self._agent.file.name))
        try:
            reason = await self._live(self._ended)
        except* Exception as errors:
            reason = EndReason.SERVER_ERROR
            log.exception("call failed", exc_info=errors, extra={"call": self.id})
            fault = InternalError("this call failed; please call again", code="VA301")
            self.fault(fault, fatal=True)
        finally:
            self._group = None
            self._asides.end()
            self._turns.end()
            self._turns.hearing.clear()
            self._stack.thinker.forget(self.id)
            logs.call_ended(
                self.id,
                reason,
                duration_s=self._clock.now() - self._started_s,
                turns=self._turns.n_done,
                agent=self._agent.file.name,
            )
            self.emit(CallEnded(self.id, reason))
        return reason

    async def _live(self, ended: asyncio.Future[EndReason]) -> EndReason:
        async with asyncio.TaskGroup() as group:
            self._group = group
            jobs = [group.create_task(self._turns.ear.run()), group.create_task(self._watch())]
            if self._agent.greeting is not None:
                self._turns.apply(tm.ReplyBegins())
                self._turns.mouth.say(self._agent.greeting)
                guard_ms = self._turns.barge_in.greeting_guard_ms
                # That a call is recorded is heard to its end.
                self._turns.watch.guard(ALL_MS if self._stack.announcement else guard_ms)
            self._turns.expect()
            if self.script is not None:
                self.spawn(_as_job(self.script(self.handle)))
            reason = await ended
            self._group = None  # nothing new starts
            self._turns.end()
            for job in (*jobs, *self._jobs):
                job.cancel()
        return reason

    def hang_up(self, reason: EndReason) -> None:
        """End now, without a goodbye. Idempotent; the first reason stays."""
        if self._end_reason is None:
            self._end_reason = reason
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self._end_reason)

    def say_goodbye(self, reason: EndReason) -> None:
        """Speak the agent's goodbye, play it to its last sample, then end."""
        if self._end_reason is not None:
            return
        self._end_reason = reason
        if self._agent.goodbye is None:
            self.hang_up(reason)
            return
        self._turns.end()
        self._turns.mouth.say(self._agent.goodbye)

    def end_politely(self, reason: EndReason) -> None:
        """What is being said is played to its last sample, else the goodbye; then the call ends."""
        if self._end_reason is None and self._turns.mouth.sounding:
            self._end_reason = reason
            self._turns.apply(tm.ReplyBegins(tm.Floor.DRAINING))
        else:
            self.say_goodbye(reason)

    @property
    def handle(self) -> Handle:
        """The call as scripts and tools of an operator's own have it."""
        if self._handle is None:
            from .library.call import Call as Handle

            self._handle = Handle(self)
        return self._handle

    async def say(self, text: str) -> None:
        """Words of the operator's, as soon as nobody speaks; returns when they are over."""
        speech = self._stack.fixed(text)
        while True:
            await self._turns.mouth.silent()
            if self._turns.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED):
                break
            await asyncio.sleep(SAY_POLL_S)
        self._turns.mouth.cancel_early()
        self._turns.apply(tm.ReplyBegins())
        self._turns.mouth.say(speech)
        await self._turns.mouth.silent()

    async def transfer(self, target: str) -> None:
        """What is being said is played to its end, then the line hands the caller on.

        Raises UsageError VA115 where the transport has no such line, and what the line raises.
        """
        line = self._able_line()
        await self._turns.mouth.silent()
        await line.transfer(target)
        self.hang_up(EndReason.TRANSFERRED)

    async def send_dtmf(self, keys: str) -> None:
        """Raises like `transfer`."""
        await self._able_line().send_dtmf(keys)

    def _able_line(self) -> Line:
        if self.line is None:
            raise UsageError("this kind of call cannot do that", code="VA115")
        return self.line

    # ------------------------------------------------------------ plumbing

    @property
    def live(self) -> bool:
        """Jobs may start: from `run` until the end is decided."""
        return self._group is not None

    @property
    def conversation(self) -> Conversation:
        """The history so far."""
        return self._turns.conversation

    def touch(self) -> None:
        """Something happened: the call is not idle."""
        self._silence.active(self._clock.now())

    def words(self) -> None:
        """The caller said something, or pressed or typed it: they are there."""
        self._silence.words(self._clock.now())

    def reply_ended(self) -> None:
        """A reply has left to its last sample or was cut; after the last words, hang up."""
        if self._end_reason is not None:
            self.hang_up(self._end_reason)

    def emit(self, event: Event) -> None:
        for told in (self._on_event, *self.listeners):
            try:
                told(event)
            except Exception:  # a listener's fault must not stop the conversation's state
                log.exception("event handler failed", extra={"call": self.id})

    def fault(self, error: Exception, *, fatal: bool = False) -> None:
        """Tell the caller. Errors without a code of ours get the one of their kind."""
        code = "VA330" if isinstance(error, EngineError) else "VA300"
        if isinstance(error, VoiceAgentError):
            code = error.code
        self.emit(CallFault(code, str(error), fatal))

    def spawn(self, job: Coroutine[Any, Any, None], scope: CancelScope | None = None) -> None:
        """A task of this call; its failure is told to the caller and ends nothing else.

        Cancelling `scope` cancels it.
        """
        if self._group is None:
            job.close()
            return
        task = self._group.create_task(self._guarded(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        task.add_done_callback(lambda _: job.close())  # one that was cancelled before it began
        if scope is not None:
            scope.on_cancel(lambda: _cancel(task))

    async def _guarded(self, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except Exception as error:
            log.exception("a job of the call failed", extra={"call": self.id})
            self.fault(error)

    async def _watch(self) -> None:
        """Time-outs that no audio event would trigger."""
        while True:
            await asyncio.sleep(WATCH_S)
            now = self._clock.now()
            self._turns.mouth.watch(now)
            self._turns.hearing.watch(now)
            self._turns.watch.look()
            if self._end_reason is not None:
                if now - self._turns.mouth.ticked_s > LAST_WORDS_S:
                    self.hang_up(self._end_reason)
            elif self._turns.line_lost:
                self._silence.answered(now)
            else:
                self._look_at_silence(now)

    def _look_at_silence(self, now: float) -> None:
        turns, reply = self._turns, self._turns.mouth.reply
        if reply is not None and not reply.fixed:
            self._silence.answered(now)
        elif not self.idle:
            self._silence.active(now)
        prompts = self._agent.idle_prompts
        match self._silence.due(now):
            case Due.CLIENT:
                turns.silent_for(self.client.idle_timeout_ms or 0)
            case Due.PROMPT:
                turns.prompt(prompts[self._silence.step - 1])
            case Due.GOODBYE:
                self.say_goodbye(EndReason.IDLE_TIMEOUT)
            case Due.TIME_IS_UP:
                self.say_goodbye(EndReason.MAX_DURATION)


async def _as_job(work: Awaitable[None]) -> None:
    await work


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
