"""One call, wired: the ear's edges drive the turn machine, its effects drive hearing and mouth.

Everything here runs on the event loop. The transport gives frames to `hear()`, pulls one 20 ms
frame with `tick()` from whatever owns the clock, and receives `Event`s in order. Jobs live in one
TaskGroup; a job that fails tells the caller and leaves the call alive.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError

from . import logs
from . import turn as tm
from .aside import Asides
from .context import Conversation, Declaration, Key
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
from .glance import Glance
from .line import Line
from .own_words import Echo
from .player import Sounding
from .playout import Tick
from .reply_settings import AS_THE_CALL, ReplySettings, ToolChoice
from .scope import CancelScope
from .silence import Due, Silence, SilenceLimits
from .turns import Turns
from .types import Frame, ReplyId

if TYPE_CHECKING:
    from .library.call import Call as Handle
    from .stack import AgentRuntime, Stack

log = logging.getLogger(__name__)

WATCH_S = 0.1
SAY_POLL_S = 0.02
LAST_WORDS_S = 5.0  # a transport that takes none of them for so long is gone
MIN_MANUAL_MS = 100
ALL_MS = 1 << 30
LAST = "(last)"
"""Where messages are added unless said otherwise."""


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
        self.asides = Asides(self._turns, stack, agent)
        limits = agent.file.limits
        self._limits = SilenceLimits(
            limits.idle_s, limits.silence_s, limits.max_call_s, len(agent.idle_prompts)
        )
        self._started_s = self._clock.now()
        self._silence = Silence(self._limits, self._started_s)

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
            self.asides.end()
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
    def idle_timeout_ms(self) -> int | None:
        """After so much silence a turn without words is committed, and answered; None: never."""
        after_s = self._silence.client_s
        return None if after_s is None else round(after_s * 1000)

    @idle_timeout_ms.setter
    def idle_timeout_ms(self, ms: int | None) -> None:
        self._silence.client_s = None if ms is None else ms / 1000

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
        aloud: bool | None = None,
        tools: Sequence[Declaration] | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> None:
        """Change the call for replies that start from now on. After UsageError nothing changed.

        aloud: whether replies are spoken, not only written. tools: what the client does for them.
        """
        desk, history = self._turns.tools, self._turns.conversation
        before, choice = desk.client_tools, desk.choice
        try:
            if tools is not None:
                desk.use_client_tools(tools)
            if instructions is not None or tools is not None:
                words = history.messages[0].text if instructions is None else instructions
                self._stack.check_instructions(words, desk.tools)
            desk.choice = tool_choice or choice
            self._turns.mouth.sampling(AS_THE_CALL)
            self._turns.mouth.configure(
                voice=voice,
                speed=speed,
                max_output_tokens=max_output_tokens,
                temperature=temperature,
                aloud=aloud,
            )
        except UsageError:
            desk.choice = choice
            desk.use_client_tools(before)
            raise
        if instructions is not None or tools is not None:
            history.set_opening(instructions, desk.declarations if tools is not None else None)
            self._turns.mouth.cancel_early()
            self._turns.expect()
        if turn_taking is not None:
            self._turns.ear.endpointer.configure(turn_taking)

    def mute(self, on: bool) -> None:
        """While muted the caller's sound is replaced by silence. What they were just saying is
        their turn, answered as soon as its words are known."""
        self._turns.ear.muted = on
        if not self._turns.manual:
            if on:
                self._turns.ear.endpointer.reset()
            self._turns.apply(tm.Mute(on, self._turns.ear.now_ms))

    def add_message(
        self, role: str, text: str, key: str | None = None, *, after: Key | None = LAST
    ) -> None:
        """A typed message: "user", "system" or "assistant".

        key: what it is removed by. after: the message that it follows; None: it is the first.
        Raises UsageError VA111, VA109.
        """
        if role not in ("user", "system", "assistant"):
            raise UsageError(f"unknown role {role!r}: use user, system or assistant", code="VA111")
        self._stack.check_length(text, "message")
        self._turns.conversation.add(role, text, key)
        if after != LAST:
            self._turns.conversation.place(after)
        self.words()
        self._history_changed()

    def remove_message(self, key: Key) -> bool:
        """Forget a message, or a tool's call with its result. False if there is none: it had no
        words, or has been dropped."""
        removed = self._turns.conversation.remove(key)
        if isinstance(key, str):
            self._turns.tools.forget(key)
        self._history_changed()
        return removed

    def message_text(self, key: Key) -> str | None:
        """What the history has of a message; None if it is not there."""
        return self._turns.conversation.text_of(key)

    def tool_call(self, call_id: str, name: str, arguments: str) -> None:
        """The client tells of a call that was made elsewhere. Raises UsageError VA119."""
        self._turns.tools.client_call(call_id, name, arguments)

    def tool_result(self, call_id: str, result: str) -> None:
        """What came of a call that the client was asked for; it is spoken of when `respond` is
        called, or the caller says something. Raises UsageError VA119, VA109."""
        self._turns.tools.client_result(call_id, result)
        self.words()

    def _history_changed(self) -> None:
        if self._turns.mouth.reply is None:
            self._turns.mouth.cancel_early()  # it answers what was there before
            self._turns.expect()

    def aside(self, asked: ReplySettings) -> None:
        """A reply beside the conversation; its id in events has `aside`. Raises CapacityError VA107
        and UsageError."""
        self.asides.begin(asked)

    def cancel_aside(self, reply: ReplyId) -> bool:
        """False if it is over, or never was."""
        return self.asides.cancel(reply)

    def aside_ticks(self) -> list[Tick]:
        """20 ms of each reply beside the conversation that is spoken."""
        return self.asides.ticks()

    def respond(self, asked: ReplySettings = AS_THE_CALL) -> bool:
        """Answer the history as it stands. False if a reply already has the floor. Raises
        UsageError for what cannot be had."""
        if self._turns.mouth.reply is not None:
            return False
        self._turns.mouth.sampling(asked)
        self._turns.mouth.voiced(asked.voice)
        self._stack.check_instructions(asked.instructions or "", self._turns.tools.told(asked))
        if self._turns.manual and self._turns.state.caller is tm.Caller.PAUSED:
            self._turns.asked_to_respond = asked
            return True
        self._turns.mouth.cancel_early()
        self._turns.tools.interrupted()
        self._turns.tools.before_answer()
        self._turns.apply(tm.ReplyBegins())
        self._turns.answer(None, asked)
        return True

    def cancel_reply(self) -> bool:
        """The client withdraws the reply being made or spoken; heard words stay in the history."""
        self._turns.mouth.cancel_early()
        if self._turns.mouth.reply is None:
            if not self._turns.tools.waiting:
                return False
            self._turns.tools.interrupted()
            self._turns.apply(tm.ReplyOver())
            return True
        self._turns.mouth.over(ReplyStatus.CANCELLED)
        return True

    def press(self, key: str) -> None:
        """The caller pressed a key (DTMF): "0" to "9", "*", "#", "A" to "D". It ends what we are
        saying; the keys become a turn after "#" or two seconds without one.

        Raises UsageError VA116.
        """
        self.words()
        self._turns.watch.press(key)

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The client played only audio_ms of `reply`; the smaller of its and our position wins.

        Returns the ms that count. Raises UsageError past what was sent, or for an older reply.
        """
        return self._turns.mouth.truncate(reply, audio_ms)

    def playing_behind(self, ms: int) -> None:
        """The client measured how much later than sent our sound is heard: its buffer and its
        loudspeaker. Until it says so, what the transport was opened with counts."""
        self._turns.mouth.playing_behind(ms)

    def use_manual_turns(self, on: bool) -> None:
        """On: no turn detection; everything heard until `commit_audio` is one turn."""
        if on == self._turns.manual:
            return
        self._turns.manual = on
        self.clear_audio()
        if self._turns.ear.muted:  # a client that decides when a turn is over needs no such state
            self._turns.apply(tm.Mute(not on, self._turns.ear.now_ms))

    def commit_audio(self) -> bool:
        """What was heard since the last commit is a turn. False if there was (almost) nothing."""
        now_ms = self._turns.ear.now_ms
        if self._turns.manual:
            ms = self._turns.hearing.manual_ms
            if ms < MIN_MANUAL_MS or self._turns.state.caller is not tm.Caller.SILENT:
                return False
            self._turns.client_committed = True
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
        self._turns.apply(tm.Discard())
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
                turns.silent_for(self.idle_timeout_ms or 0)
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
