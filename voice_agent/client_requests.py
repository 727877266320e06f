"""What a client may ask of its call besides speaking: Realtime sessions, the page, scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import turn as tm
from .aside import Asides
from .context import Declaration, Key
from .endpointing import TurnTaking
from .errors import UsageError
from .events import ReplyStatus
from .playout import Tick
from .reply_settings import AS_THE_CALL, ReplySettings, ToolChoice
from .silence import Silence
from .turns import Turns
from .types import ReplyId

if TYPE_CHECKING:
    from .stack import Stack

MIN_MANUAL_MS = 100
LAST = "(last)"
"""Where messages are added unless said otherwise."""


class ClientRequests:
    """Settings, the history, replies and turns, as a client changes them. On the event loop."""

    def __init__(
        self,
        turns: Turns,
        stack: Stack,
        asides: Asides,
        silence: Silence,
        are_there: Callable[[], None],
    ) -> None:
        """are_there: told when the client typed something or brought a result."""
        self._turns = turns
        self._stack = stack
        self._asides = asides
        self._silence = silence
        self._are_there = are_there

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
        self._are_there()
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
        self._are_there()

    def _history_changed(self) -> None:
        if self._turns.mouth.reply is None:
            self._turns.mouth.cancel_early()  # it answers what was there before
            self._turns.expect()

    def aside(self, asked: ReplySettings) -> None:
        """A reply beside the conversation; its id in events has `aside`. Raises CapacityError VA107
        and UsageError."""
        self._asides.begin(asked)

    def cancel_aside(self, reply: ReplyId) -> bool:
        """False if it is over, or never was."""
        return self._asides.cancel(reply)

    def aside_ticks(self) -> list[Tick]:
        """20 ms of each reply beside the conversation that is spoken."""
        return self._asides.ticks()

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
