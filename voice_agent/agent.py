"""One call, wired: the ear's edges drive the turn machine, its effects drive hearing and mouth.

Everything here runs on the event loop. The transport gives frames to `hear()`, pulls one 20 ms
frame with `tick()` from whatever owns the clock, and receives `Event`s in order. Jobs live in one
TaskGroup; a job that fails tells the caller and leaves the call alive.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

from . import logs
from . import turn as tm
from .context import Conversation
from .endpointing import TurnTaking
from .errors import InternalError, UsageError, VoiceAgentError
from .events import (
    CallEnded,
    CallFault,
    CallStarted,
    EndReason,
    Event,
    ReplyStatus,
)
from .playout import Tick
from .scope import CancelScope
from .turns import Turns
from .types import Frame, ReplyId

if TYPE_CHECKING:
    from .stack import AgentRuntime, Stack

log = logging.getLogger(__name__)

WATCH_S = 0.1
RECOVERY_SPEECH_MS = 600
MIN_MANUAL_MS = 100


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
        self._started_s = self._active_s = self._clock.now()

    # ------------------------------------------------------------ transport side

    def hear(self, frame: Frame) -> None:
        """20 ms of the caller. Never blocks."""
        self._turns.ear.hear(frame)

    def tick(self) -> Tick:
        """The next 20 ms for the caller, silence included. Called once per 20 ms of playback."""
        return self._turns.mouth.tick()

    @property
    def idle(self) -> bool:
        """Nobody speaks, nothing is being thought, transcribed or said."""
        silent = self._turns.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED)
        return silent and self._turns.mouth.reply is None

    async def run(self) -> EndReason:
        """The whole life of the call. Cancelling it means that the transport was lost."""
        self._ended = asyncio.get_running_loop().create_future()
        if self._end_reason is not None:
            self._ended.set_result(self._end_reason)
        self._started_s = self._active_s = self._clock.now()
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
            self._turns.mouth.withdraw()
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
            self._turns.expect()
            reason = await ended
            self._group = None  # nothing new starts
            self._turns.mouth.withdraw()
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
        self._turns.mouth.withdraw()
        self._turns.apply(tm.ReplyBegins(tm.Floor.DRAINING))
        self._turns.mouth.say(self._agent.goodbye)

    # ------------------------------------------------------------ client control

    @property
    def auto_response(self) -> bool:
        """Whether a committed turn is answered unasked."""
        return self._turns.auto_response

    @auto_response.setter
    def auto_response(self, on: bool) -> None:
        self._turns.auto_response = on

    @property
    def interruptible(self) -> bool:
        """Whether the caller's voice may stop ours."""
        return self._turns.interruptible

    @interruptible.setter
    def interruptible(self, on: bool) -> None:
        self._turns.interruptible = on

    @property
    def manual_turns(self) -> bool:
        return self._turns.manual

    @manual_turns.setter
    def manual_turns(self, on: bool) -> None:
        self.use_manual_turns(on)

    def update(
        self,
        *,
        instructions: str | None = None,
        voice: str | None = None,
        speed: float | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        turn_taking: TurnTaking | None = None,
    ) -> None:
        """Change the call for replies that start from now on. After UsageError nothing changed."""
        if instructions is not None:
            self._stack.check_instructions(instructions)
        self._turns.mouth.configure(
            voice=voice,
            speed=speed,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
        )
        if instructions is not None:
            self._turns.conversation.set_instructions(instructions)
            self._turns.expect()
        if turn_taking is not None:
            self._turns.ear.endpointer.configure(turn_taking)

    def mute(self, on: bool) -> None:
        """While muted the caller's sound is replaced by silence."""
        self._turns.ear.muted = on
        self._turns.apply(tm.Mute(on))

    def add_message(self, role: str, text: str) -> None:
        """A typed message: "user", "system" or "assistant". Raises UsageError for other roles."""
        if role == "user":
            self._turns.conversation.add_user(text)
        elif role == "system":
            self._turns.conversation.add_system(text)
        elif role == "assistant":
            ids = self._stack.tokenizer.encode(text)
            self._turns.conversation.add_assistant(ids, text, len(text))
        else:
            raise UsageError(f"unknown role {role!r}: use user, system or assistant", code="VA111")
        self._active_s = self._clock.now()
        self._turns.expect()

    def respond(self, instructions: str | None = None) -> bool:
        """Answer the history as it stands. False if a reply already has the floor."""
        if self._turns.mouth.reply is not None:
            return False
        if self._turns.manual and self._turns.state.caller is tm.Caller.PAUSED:
            self._turns.asked_to_respond = instructions or ""
            return True
        self._turns.mouth.cancel_early()
        self._turns.apply(tm.ReplyBegins())
        self._turns.answer(None, instructions)
        return True

    def cancel_reply(self) -> bool:
        """The client withdraws the reply being made or spoken; heard words stay in the history."""
        self._turns.mouth.cancel_early()
        if self._turns.mouth.reply is None:
            return False
        self._turns.mouth.over(ReplyStatus.CANCELLED)
        return True

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The client played only audio_ms of `reply`; the smaller of its and our position wins.

        Returns the ms that count. Raises UsageError past what was sent, or for an older reply.
        """
        return self._turns.mouth.truncate(reply, audio_ms)

    def use_manual_turns(self, on: bool) -> None:
        """On: no turn detection; everything heard until `commit_audio` is one turn."""
        if on == self._turns.manual:
            return
        self._turns.manual = on
        self.clear_audio()

    def commit_audio(self) -> bool:
        """What was heard since the last commit is a turn. False if there was (almost) nothing."""
        now_ms = self._turns.ear.now_ms
        if self._turns.manual:
            ms = self._turns.hearing.manual_ms
            if ms < MIN_MANUAL_MS or self._turns.state.caller is not tm.Caller.SILENT:
                return False
            self._turns.apply(tm.Onset(max(0, now_ms - ms)))
        elif self._turns.state.caller is tm.Caller.SILENT:
            return False
        self._turns.ear.endpointer.reset()
        self._turns.apply(tm.Pause(now_ms))
        self._turns.apply(tm.Ended(now_ms))
        return True

    def clear_audio(self) -> None:
        """Forget what the caller said and was not committed."""
        self._turns.ear.endpointer.reset()
        if self._turns.state.caller in (tm.Caller.SPEAKING, tm.Caller.PAUSED):
            self._turns.apply(tm.Mute(True))
            self._turns.apply(tm.Mute(False))
        self._turns.after_utterance()

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
        self._active_s = self._clock.now()

    def reply_ended(self) -> None:
        """A reply has left to its last sample or was cut; after the last words, hang up."""
        if self._end_reason is not None:
            self.hang_up(self._end_reason)

    def emit(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:  # a transport's fault must not stop the conversation's state
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
        limits = self._agent.file.limits
        while True:
            await asyncio.sleep(WATCH_S)
            now = self._clock.now()
            self._turns.mouth.watch(now)
            self._turns.hearing.watch(now)
            if (
                self._turns.state.caller is tm.Caller.SPEAKING
                or self._turns.mouth.reply is not None
            ):
                self._active_s = now
            if now - self._started_s > limits.max_call_s:
                self.say_goodbye(EndReason.MAX_DURATION)
            elif now - self._active_s > limits.idle_s:
                self.say_goodbye(EndReason.IDLE_TIMEOUT)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
