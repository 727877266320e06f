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
from .ear import Ear
from .endpointing import Edge, EdgeKind, Endpointer, TurnTaking
from .errors import InternalError, UsageError, VoiceAgentError
from .events import (
    CallEnded,
    CallFault,
    CallStarted,
    EndReason,
    Event,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
    TurnTraced,
)
from .hearing import Hearing
from .mouth import Mouth
from .playout import Tick
from .scope import CancelScope
from .trace import Mark, TurnTrace
from .types import IN_RATE, Frame, ReplyId, TurnId
from .vad import VadWindow

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
        self.state = tm.TurnState(
            TurnId(self.id, -1), continuation_ms=agent.turn_taking.continuation_ms
        )
        self.conversation = Conversation(
            stack.chat, stack.tokenizer, agent.file.instructions, stack.max_prompt_tokens
        )
        self._ear = Ear(
            stack.vad, Endpointer(agent.turn_taking), self._clock, self._on_edge, self._on_window
        )
        self._hearing = Hearing(self, stack, self._ear)
        self._mouth = Mouth(self, stack, agent, lead_ms)
        self._traces: dict[int, TurnTrace] = {}
        self._reopened = ""  # words of a re-opened message, to be joined by what follows
        self._asked_to_respond: str | None = None  # client's request that waits for a manual commit
        self._group: asyncio.TaskGroup | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[EndReason] | None = None
        self._end_reason: EndReason | None = None
        self._started_s = self._active_s = self._clock.now()
        self.turns_done = 0
        self.auto_response = True
        self.interruptible = True
        self.manual_turns = False

    # ------------------------------------------------------------ transport side

    def hear(self, frame: Frame) -> None:
        """20 ms of the caller. Never blocks."""
        self._ear.hear(frame)

    def tick(self) -> Tick:
        """The next 20 ms for the caller, silence included. Called once per 20 ms of playback."""
        return self._mouth.tick()

    @property
    def idle(self) -> bool:
        """Nobody speaks, nothing is being thought, transcribed or said."""
        silent = self.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED)
        return silent and self._mouth.reply is None

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
            self._mouth.withdraw()
            self._hearing.clear()
            self._stack.thinker.forget(self.id)
            logs.call_ended(
                self.id,
                reason,
                duration_s=self._clock.now() - self._started_s,
                turns=self.turns_done,
                agent=self._agent.file.name,
            )
            self.emit(CallEnded(self.id, reason))
        return reason

    async def _live(self, ended: asyncio.Future[EndReason]) -> EndReason:
        async with asyncio.TaskGroup() as group:
            self._group = group
            jobs = [group.create_task(self._ear.run()), group.create_task(self._watch())]
            if self._agent.greeting is not None:
                self.apply(tm.ReplyBegins())
                self._mouth.say(self._agent.greeting)
            reason = await ended
            self._mouth.withdraw()
            self._group = None  # nothing new starts
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
        self._mouth.withdraw()
        self.apply(tm.ReplyBegins(tm.Floor.DRAINING))
        self._mouth.say(self._agent.goodbye)

    # ------------------------------------------------------------ client control

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
        self._mouth.configure(
            voice=voice,
            speed=speed,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
        )
        if instructions is not None:
            self.conversation.set_instructions(instructions)
        if turn_taking is not None:
            self._ear.endpointer.configure(turn_taking)

    def mute(self, on: bool) -> None:
        """While muted the caller's sound is replaced by silence."""
        self._ear.muted = on
        self.apply(tm.Mute(on))

    def add_message(self, role: str, text: str) -> None:
        """A typed message: "user", "system" or "assistant". Raises UsageError for other roles."""
        if role == "user":
            self.conversation.add_user(text)
        elif role == "system":
            self.conversation.add_system(text)
        elif role == "assistant":
            ids = self._stack.tokenizer.encode(text)
            self.conversation.add_assistant(ids, text, len(text))
        else:
            raise UsageError(f"unknown role {role!r}: use user, system or assistant", code="VA111")
        self._active_s = self._clock.now()

    def respond(self, instructions: str | None = None) -> bool:
        """Answer the history as it stands. False if a reply already has the floor."""
        if self._mouth.reply is not None:
            return False
        if self.manual_turns and self.state.caller is tm.Caller.PAUSED:
            self._asked_to_respond = instructions or ""
            return True
        self._mouth.cancel_early()
        self.apply(tm.ReplyBegins())
        self._answer(None, instructions)
        return True

    def cancel_reply(self) -> bool:
        """The client withdraws the reply being made or spoken; heard words stay in the history."""
        self._mouth.cancel_early()
        if self._mouth.reply is None:
            return False
        self._mouth.over(ReplyStatus.CANCELLED)
        return True

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The client played only audio_ms of `reply`; the smaller of its and our position wins.

        Returns the ms that count. Raises UsageError past what was sent, or for an older reply.
        """
        return self._mouth.truncate(reply, audio_ms)

    def use_manual_turns(self, on: bool) -> None:
        """On: no turn detection; everything heard until `commit_audio` is one turn."""
        if on == self.manual_turns:
            return
        self.manual_turns = on
        self.clear_audio()

    def commit_audio(self) -> bool:
        """What was heard since the last commit is a turn. False if there was (almost) nothing."""
        now_ms = self._ear.now_ms
        if self.manual_turns:
            ms = self._hearing.manual_ms
            if ms < MIN_MANUAL_MS or self.state.caller is not tm.Caller.SILENT:
                return False
            self.apply(tm.Onset(max(0, now_ms - ms)))
        elif self.state.caller is tm.Caller.SILENT:
            return False
        self._ear.endpointer.reset()
        self.apply(tm.Pause(now_ms))
        self.apply(tm.Ended(now_ms))
        return True

    def clear_audio(self) -> None:
        """Forget what the caller said and was not committed."""
        self._ear.endpointer.reset()
        if self.state.caller in (tm.Caller.SPEAKING, tm.Caller.PAUSED):
            self.apply(tm.Mute(True))
            self.apply(tm.Mute(False))
        self._after_utterance()

    # ------------------------------------------------------------ the machine

    def trace_of(self, turn: TurnId) -> TurnTrace:
        return self._traces.setdefault(turn.index, TurnTrace(turn))

    def _on_edge(self, edge: Edge) -> None:
        if self.manual_turns:
            return
        ms = edge.sample * 1000 // IN_RATE
        match edge.kind:
            case EdgeKind.ONSET:
                if self._mouth.reply is None or self.interruptible:
                    self.apply(tm.Onset(ms))
            case EdgeKind.PAUSE:
                self.apply(tm.Pause(ms))
            case EdgeKind.RESUMED:
                self.apply(tm.Resumed())
            case EdgeKind.ENDED:
                self.apply(tm.Ended(ms))

    def _on_window(self, window: VadWindow) -> None:
        self._hearing.on_window(window)

    def apply(self, event: tm.Event) -> None:
        self.state, effects = tm.step(self.state, event)
        for effect in effects:
            self._do(effect)

    def _do(self, effect: tm.Effect) -> None:
        match effect:
            case tm.Listen():
                self._listen(effect)
            case tm.Revise(_, new):
                self._mouth.cancel_early()
                self._hearing.revise(new)
                self.trace_of(new).turn = new
            case tm.Transcribe(turn):
                self._hearing.transcribe_pause(turn)
            case tm.ThinkEarly(turn, text):
                self._think_early(turn, text)
            case tm.Commit():
                self._commit(effect)
            case tm.NoInput():
                self._no_input(effect)
            case tm.Hold():
                self._mouth.hold()
            case tm.Resume():
                self._mouth.resume()
            case tm.Interrupt(turn, onset_ms):
                self._interrupt(turn, onset_ms)
            case tm.Reopen():
                self._reopen(effect)
            case tm.Dismiss(turn):
                self._mouth.cancel_early()
                self._traces.pop(turn.index, None)
                self._after_utterance()

    def _listen(self, effect: tm.Listen) -> None:
        self._active_s = self._clock.now()
        onset = effect.onset_ms * IN_RATE // 1000
        trace = self.trace_of(effect.turn)
        trace.mark(Mark.SPEECH_START, self._ear.clock_at(onset))
        self._hearing.start(effect.turn, onset)
        if not effect.candidate:
            self.emit(SpeechStarted(effect.turn, effect.onset_ms))

    def _think_early(self, turn: TurnId, text: str) -> None:
        if not self.auto_response or self.manual_turns or self._mouth.reply is not None:
            return
        joined = self._joined(text)
        self._mouth.think_early(self.trace_of(turn), joined, self.conversation.prompt(joined))

    def _commit(self, effect: tm.Commit) -> None:
        turn, text = effect.turn, self._joined(effect.text)
        trace = self._close_utterance(turn, effect.end_ms, text)
        self.conversation.add_user(text)
        asked, self._asked_to_respond = self._asked_to_respond, None
        if asked is None and (self.manual_turns or not self.auto_response):
            self._mouth.cancel_early()
            self.trace_done(trace, "not_answered")
            self.apply(tm.ReplyOver())
        elif not self._mouth.release_early(trace, text):
            self._answer(trace, asked)

    def _close_utterance(self, turn: TurnId, end_ms: int, text: str) -> TurnTrace:
        """The caller's part of the turn is over: one transcript, one deadline."""
        trace = self.trace_of(turn)
        trace.turn, trace.transcript = turn, text
        self._reopened = ""
        end_s = self._ear.clock_at(end_ms * IN_RATE // 1000)
        trace.mark(Mark.SPEECH_END, end_s, force=True)
        trace.mark(Mark.COMMIT, self._clock.now(), force=True)
        trace.deadline_s = end_s + self._stack.target_s
        self._after_utterance()
        self.emit(SpeechStopped(turn, end_ms))
        self.emit(TurnCommitted(turn, text))
        return trace

    def _after_utterance(self) -> None:
        self._hearing.clear()
        if self.manual_turns:
            self._hearing.buffer_manually()

    def _no_input(self, effect: tm.NoInput) -> None:
        self._mouth.cancel_early()
        kept = self._reopened
        trace = self._close_utterance(effect.turn, self.state.last_voiced_ms, kept)
        if kept:  # a re-opened message whose continuation had no words stands as it was
            self.conversation.add_user(kept)
            self.apply(tm.ReplyBegins())
            self._answer(trace, None)
        elif (
            effect.speech_ms >= RECOVERY_SPEECH_MS
            and self.auto_response
            and not self.manual_turns
            and self._mouth.may_recover()
        ):
            self.apply(tm.ReplyBegins())
            self._mouth.recover(trace)
        else:
            self.trace_done(trace, "no_input")

    def _interrupt(self, turn: TurnId, onset_ms: int) -> None:
        reply = self._mouth.reply
        if reply is not None and reply.trace is not None:
            onset_s = self._ear.clock_at(onset_ms * IN_RATE // 1000)
            reply.trace.mark(Mark.BARGE_IN_ONSET, onset_s)
            reply.trace.mark(Mark.BARGE_IN_DECIDED, self._clock.now())
        self._mouth.over(ReplyStatus.INTERRUPTED)
        self.emit(SpeechStarted(turn, onset_ms))

    def _reopen(self, effect: tm.Reopen) -> None:
        """The caller goes on with what we had just committed."""
        trace = self._traces.get(effect.old.index)
        heard = self._mouth.over(ReplyStatus.INTERRUPTED, finish_trace=False)
        if heard == 0:  # take the message back; its words join what follows
            self._reopened = self.conversation.reopen_user() or ""
            self.emit(TurnReopened(effect.old))
        self._traces.pop(effect.old.index + 1, None)
        self._hearing.revise(effect.turn)
        trace = trace or TurnTrace(effect.turn)
        trace.turn = effect.turn
        trace.marks = {k: v for k, v in trace.marks.items() if k is Mark.SPEECH_START}
        self._traces[effect.turn.index] = trace
        self.emit(SpeechStarted(effect.turn, effect.onset_ms))

    def _joined(self, text: str) -> str:
        return f"{self._reopened} {text}".strip()

    def _answer(self, trace: TurnTrace | None, extra: str | None) -> None:
        if extra:
            self.conversation.add_system(extra)
        turn = trace.turn if trace is not None else None
        self._mouth.answer(turn, trace, self.conversation.prompt())

    def reply_over(self, status: ReplyStatus) -> None:
        """Called by the mouth when the reply with the floor ended; the history is up to date."""
        self._active_s = self._clock.now()
        self.apply(tm.ReplyOver())
        self.conversation.make_room()
        if self._end_reason is not None and status is not ReplyStatus.CANCELLED:
            self.hang_up(self._end_reason)

    def trace_done(self, trace: TurnTrace, outcome: str) -> None:
        trace.outcome = outcome
        self._traces.pop(trace.turn.index, None)
        self.turns_done += 1
        logs.turn_done(trace, content=self._stack.log_content)
        self.emit(TurnTraced(trace))

    # ------------------------------------------------------------ plumbing

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
            self._mouth.watch(now)
            self._hearing.watch(now)
            if self.state.caller is tm.Caller.SPEAKING or self._mouth.reply is not None:
                self._active_s = now
            if now - self._started_s > limits.max_call_s:
                self.say_goodbye(EndReason.MAX_DURATION)
            elif now - self._active_s > limits.idle_s:
                self.say_goodbye(EndReason.IDLE_TIMEOUT)


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
