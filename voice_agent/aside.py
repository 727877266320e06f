"""Replies beside the conversation: made for the client, without the floor and not remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import CapacityError
from .events import ReplyDone, ReplyStarted, ReplyStatus, ReplyText, ToolStarted
from .playout import Playout, Tick
from .reply import Reply
from .reply_settings import ReplySettings
from .scope import CancelScope
from .tts.base import Clause
from .types import OUT_RATE, ReplyId

if TYPE_CHECKING:
    from .stack import AgentRuntime, Stack
    from .turns import Turns

MAX_OPEN = 4
"""Replies beside one conversation at once."""


class Aside:
    """One of them. Its sound is pulled by `tick`, at the pace of speech, into no call's ear."""

    def __init__(self, reply_id: ReplyId, asked: ReplySettings, turns: Turns, stack: Stack) -> None:
        mouth = turns.mouth
        self._turns = turns
        self._playout = Playout()
        self.reply = Reply(
            reply_id,
            CancelScope(str(reply_id)),
            clock=stack.clock,
            playout=self._playout,
            voiced=mouth.voiced(asked.voice),
            listener=self,
            trace=None,
            deadline_s=stack.clock.now() + stack.target_s,
            tools={n: t for n, t in turns.tools.offered(asked).items() if t.by_client},
            aloud=mouth.aloud if asked.aloud is None else asked.aloud,
        )
        self.over: Callable[[], None] = lambda: None

    def tick(self) -> Tick:
        tick = self._playout.tick()
        if tick.finished is not None:
            self.end(ReplyStatus.FAILED if self.reply.failed else ReplyStatus.COMPLETED)
        else:
            self.reply.on_tick()
        return tick

    def end(self, status: ReplyStatus) -> None:
        reply = self.reply
        if status is not ReplyStatus.COMPLETED:
            reply.scope.cancel()
        usage = reply.usage
        self.over()
        self._turns.call.emit(
            ReplyDone(
                reply.id,
                status,
                reply.text,
                "",
                audio_ms=self._playout.heard().samples * 1000 // OUT_RATE,
                input_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                output_tokens=usage.output_tokens if usage else 0,
                finish=reply.finish,
            )
        )

    # ------------------------------------------------------------ ReplyListener

    def reply_ready(self, reply: Reply) -> None:
        """It is released from the start."""

    def reply_text(self, reply: Reply, clause: Clause) -> None:
        self._turns.call.emit(ReplyText(reply.id, clause.text))

    def reply_asks(self, reply: Reply) -> None:
        """What the client makes of it is not told to the model: nothing follows."""
        for n, call in enumerate(reply.calls):
            name, arguments = call.name, call.arguments
            call_id = f"call_{reply.id.n}_{n}"
            told = ToolStarted(reply.id, call_id, name, arguments, by_client=True)
            self._turns.call.emit(told)

    def reply_produced(self, reply: Reply) -> None:
        if not reply.aloud:
            self.end(ReplyStatus.COMPLETED)

    def reply_failed(self, reply: Reply, error: Exception) -> None:
        self._turns.call.fault(error)
        if self._playout.buffered_s > 0:
            reply.cut_short()
        else:
            self.end(ReplyStatus.FAILED)


class Asides:
    """Owns those of one call."""

    def __init__(self, turns: Turns, stack: Stack, agent: AgentRuntime) -> None:
        self._turns = turns
        self._stack = stack
        self._tenant = agent.file.tenant
        self._open: dict[ReplyId, Aside] = {}

    def begin(self, asked: ReplySettings) -> None:
        """Raises CapacityError VA107, and UsageError for what cannot be had."""
        if len(self._open) >= MAX_OPEN:
            raise CapacityError(
                f"{MAX_OPEN} replies beside the conversation are being made: wait for one",
                code="VA107",
            )
        sampling = self._turns.mouth.sampling(asked)
        prompt = self._turns.prompt_of(asked)
        reply_id = self._turns.mouth.next_id(aside=True)
        aside = Aside(reply_id, asked, self._turns, self._stack)
        aside.over = lambda: self._forget(reply_id)
        self._open[reply_id] = aside
        self._turns.call.emit(ReplyStarted(reply_id))
        aside.reply.release()
        thinker, call = self._stack.thinker, f"{reply_id.call}/{reply_id.n}"

        async def think() -> None:
            try:
                await aside.reply.think(thinker, prompt, sampling, call=call, tenant=self._tenant)
            finally:
                thinker.forget(call)

        self._turns.call.spawn(think(), aside.reply.scope)

    def cancel(self, reply: ReplyId) -> bool:
        """False if it is over, or never was."""
        aside = self._open.get(reply)
        if aside is not None:
            aside.end(ReplyStatus.CANCELLED)
        return aside is not None

    def _forget(self, reply: ReplyId) -> None:
        self._open.pop(reply, None)

    def ticks(self) -> list[Tick]:
        """The next 20 ms of each that is spoken."""
        return [aside.tick() for aside in list(self._open.values()) if aside.reply.aloud]

    def end(self) -> None:
        for reply in list(self._open):
            self.cancel(reply)
