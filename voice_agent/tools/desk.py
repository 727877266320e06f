"""One call's tools: what replies asked for, when it may run, and what becomes of the results.

A reply's calls come here once it has the floor. Results are facts: each enters the history once, as
soon as no reply is being made or said, whatever the caller does meanwhile. The answer to them is a
reply of its own, or the caller's next one if the caller took the floor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.text.tools import OPEN
from voice_agent import turn as tm
from voice_agent.context import Declaration, Message, ToolUse
from voice_agent.errors import InternalError, UsageError, VoiceAgentError
from voice_agent.events import ReplyStatus, ToolFinished, ToolStarted
from voice_agent.reply_settings import AS_THE_CALL, ReplySettings, ToolChoice, offered
from voice_agent.scope import CancelScope
from voice_agent.trace import Mark, ToolSpan, TurnTrace
from voice_agent.types import ReplyId, TurnId

from .arguments import parse
from .base import AskedCall, Tool, ToolFailed
from .client import client_tool
from .exchange import CANCELLED, RUNNING, Exchange, Use, caller_speaks, may_start

if TYPE_CHECKING:
    from voice_agent.reply import Reply
    from voice_agent.stack import AgentRuntime, Stack
    from voice_agent.turns import Turns

log = logging.getLogger(__name__)

POLL_S = 0.02
FILLER_AGAIN_S = 6.0
MAX_STEPS = 4
"""Replies in a row that may ask for tools, without a word of the caller in between."""
MAX_CLIENT_CALLS = 32
"""That wait for the client at once; of more, the oldest has no result."""
NO_ANSWER = "error: no result came"


@dataclass(frozen=True, slots=True)
class Unsaid:
    """Results that entered the history and were not spoken of. spoken: the turn has had sound.
    may_call: their answer may ask for more."""

    turn: TurnId | None
    trace: TurnTrace | None
    step: int
    spoken: bool
    may_call: bool


class ToolDesk:
    """Owned by the call's `Turns`; everything on the event loop."""

    def __init__(self, turns: Turns, stack: Stack, agent: AgentRuntime) -> None:
        self._turns = turns
        self._stack = stack
        self._clock = stack.clock
        self._agent = agent
        self._tools: dict[str, Tool] = {tool.name: tool for tool in agent.tools}
        self.choice = ToolChoice()
        """Which of them replies may or must call."""
        self._open: list[Exchange] = []
        self._unsaid: Unsaid | None = None
        self._known: set[tuple[str, str]] = set()
        self._ids: set[str] = set()  # of calls whose result is there
        self._pumping = False
        self._n_fillers = 0
        self._quiet_from_s = 0.0
        self._filled = False

    @property
    def tools(self) -> list[Tool]:
        """The agent's and the client's."""
        return list(self._tools.values())

    @property
    def declarations(self) -> list[Declaration]:
        return [tool.declaration for tool in self.tools]

    @property
    def client_tools(self) -> list[Declaration]:
        return [tool.declaration for tool in self.tools if tool.by_client]

    def told(self, asked: ReplySettings) -> list[Tool]:
        """What a reply's model is told of, whether it may call it or not."""
        return self.tools if asked.tools is None else list(map(client_tool, asked.tools))

    def use_client_tools(self, told: Sequence[Declaration]) -> None:
        """Those of the client's from now on, beside the agent's. Raises UsageError VA117."""
        known = {tool.name: tool for tool in self._agent.tools}
        for tool in map(client_tool, told):
            if tool.name in known:
                raise UsageError(f"there already is a tool called {tool.name!r}", code="VA117")
            known[tool.name] = tool
        self._tools = known

    def offered(self, asked: ReplySettings = AS_THE_CALL) -> dict[str, Tool]:
        """What a reply may call, by name. Raises UsageError VA117."""
        tools = self._tools
        if asked.tools is not None:
            tools = {tool.name: tool for tool in map(client_tool, asked.tools)}
        return offered(tools, asked.tool_choice or self.choice)

    def may_call(self, asked: ReplySettings) -> bool:
        return (asked.tool_choice or self.choice).mode != "none"

    @property
    def waiting(self) -> bool:
        """The caller waits for results."""
        return any(not exchange.let_go for exchange in self._open)

    @property
    def busy(self) -> bool:
        """Something runs here, or waits to be told."""
        open_ones = any(not x.by_client or x.over for x in self._open)
        return open_ones or self._unsaid is not None

    # ------------------------------------------------------------ what replies do

    def take(self, reply: Reply, *, sounded: bool) -> None:
        """A reply with the floor has asked; all of its calls are known."""
        if reply.step >= MAX_STEPS:
            error = InternalError("the model called tools without end", code="VA351")
            self._turns.mouth.reply_failed(reply, error)
            return
        if reply.step == 0:
            self._known.clear()
        uses = [self._use(reply, n) for n in range(len(reply.calls))]
        theirs = [use for use in uses if use.tool is not None and use.tool.by_client]
        ours = [use for use in uses if use not in theirs]
        if theirs:
            self._ask_client(reply, theirs, sounded=sounded, all_of_them=not ours)
        if not ours:
            return
        exchange = Exchange(
            reply.id,
            reply.id.turn,
            reply.trace,
            ours,
            _as_generated(reply) if not theirs else (),
            reply.step,
            reply.released_s,
            sounded,
        )
        self._open.append(exchange)
        self._quiet_from_s = max(self._quiet_from_s, reply.released_s)
        self._filled = False
        for use in exchange.uses:
            if use.tool is None:
                use.end(f"error: there is no tool called {use.asked.name!r}")
            elif use.key in self._known:
                use.end(None)  # neither run nor told: the history has it
                exchange.repeats = True
            else:
                self._turns.call.spawn(self._run(exchange, use, use.tool), use.scope)
        self._pump_on()

    def _use(self, reply: Reply, n: int) -> Use:
        asked = reply.calls[n]
        scope = CancelScope(f"{reply.id} {asked.name}")
        return Use(asked, reply.tools.get(asked.name), scope, id=f"call_{reply.id.n}_{n}")

    # ------------------------------------------------------------ what the client does

    def _ask_client(
        self, reply: Reply, uses: list[Use], *, sounded: bool, all_of_them: bool
    ) -> None:
        """The floor is not kept for it: whoever asks next is answered with what is known then."""
        ids = _as_generated(reply) if all_of_them else ()
        exchange = Exchange(
            reply.id, reply.id.turn, None, uses, ids, reply.step, reply.released_s, sounded
        )
        self._client_has(exchange)
        for use in uses:
            asked = use.asked
            event = ToolStarted(reply.id, use.id, asked.name, asked.arguments, by_client=True)
            self._turns.call.emit(event)

    def _client_has(self, exchange: Exchange) -> None:
        exchange.by_client = exchange.let_go = True
        for use in exchange.uses:
            use.started = True
        theirs = [x for x in self._open if x.by_client and not x.over]
        for old in theirs[: max(0, len(theirs) + 1 - MAX_CLIENT_CALLS)]:
            for use in old.uses:
                use.end(NO_ANSWER)
        self._open.append(exchange)

    def client_call(self, call_id: str, name: str, arguments: str) -> None:
        """The client tells of a call that was made elsewhere; its result follows. Raises
        UsageError VA119 for an id that was there before."""
        if call_id in self._ids or any(u.id == call_id for x in self._open for u in x.uses):
            raise UsageError(f"there already was a call {call_id[:64]!r}", code="VA119")
        use = Use(AskedCall(name, arguments), None, CancelScope(call_id), id=call_id)
        reply = ReplyId(self._turns.call.id, -1)
        self._client_has(Exchange(reply, None, None, [use], (), 0, self._clock.now()))

    def forget(self, call_id: str) -> None:
        """A call that waits for the client's result never was."""
        for exchange in self._open:
            if exchange.by_client:
                exchange.uses = [use for use in exchange.uses if use.over or use.id != call_id]
        self._sweep()

    def client_result(self, call_id: str, result: str) -> None:
        """What came of a call that the client was asked for. Raises UsageError VA119 for any other,
        VA121 for a result that leaves no room for an answer."""
        found = [
            (exchange, use)
            for exchange in self._open
            for use in exchange.uses
            if exchange.by_client and use.id == call_id and not use.over
        ]
        if not found:
            raise UsageError(f"no call {call_id[:64]!r} waits for a result", code="VA119")
        self._stack.check_length(result, "result")
        exchange, use = found[0]
        self._ended(exchange, use, result, "done", self._clock.now())
        self._enter()
        self._pump_on()

    def first_sound(self, reply: Reply) -> None:
        for exchange in self._open:
            exchange.sounded = exchange.sounded or exchange.reply == reply.id
            if reply.fixed and exchange.trace is not None:
                exchange.trace.mark(Mark.FIRST_SOUND, self._clock.now())

    def continues(self, reply: Reply, status: ReplyStatus) -> bool:
        """Whether the turn of a reply that just ended goes on with its tools' results."""
        mine = [x for x in self._open if x.trace is not None and x.trace is reply.trace]
        if status is ReplyStatus.COMPLETED:
            return bool(mine)
        for exchange in mine:
            exchange.trace = None
        return False

    def reply_over(self, reply: Reply, status: ReplyStatus, heard: Message | None) -> None:
        """heard: what entered the history of it. A reply that was withdrawn or failed takes what
        has not begun with it."""
        for exchange in self._open:
            if exchange.reply == reply.id:
                exchange.whole = status is ReplyStatus.COMPLETED
                exchange.said = heard
                if not exchange.whole:
                    self._let_go(exchange)
            elif reply.fixed and heard is not None and not exchange.let_go:
                exchange.said, exchange.whole = heard, False  # a filler
        self._sweep()

    # ------------------------------------------------------------ what the caller does

    def interrupted(self, *, finish_trace: bool = True) -> None:
        """The caller has the floor: what has not begun never will, what has begun keeps its
        result. finish_trace: not if the turn is being re-opened."""
        for exchange in self._open:
            if not exchange.let_go:
                self._let_go(exchange, finish_trace=finish_trace)
        if self._unsaid is not None and self._unsaid.trace is not None:
            if finish_trace:
                self._turns.trace_done(self._unsaid.trace, "interrupted")
            self._unsaid = replace(self._unsaid, trace=None)
        self._sweep()

    def before_answer(self) -> None:
        """The history is about to be answered: it says what is known, and what still runs."""
        self._enter()
        for exchange in self._open:
            if exchange.let_go and not exchange.told:
                exchange.told = True
                told = exchange.told_uses
                records = [use.record if use.over else _running(use.record) for use in told]
                self._turns.conversation.add_tools(records, said=exchange.said)
                exchange.uses = [use for use in told if not use.over]

    def answered(self) -> None:
        """The caller's next turn is answered, with all that has been entered."""
        self._unsaid = None

    def _let_go(self, exchange: Exchange, *, finish_trace: bool = True) -> None:
        exchange.let_go = True
        for use in exchange.uses:
            if not use.started:
                use.scope.cancel()
            elif not use.over and use.tool is not None and use.tool.on_interrupt == "cancel":
                use.scope.cancel()
                self._ended(exchange, use, CANCELLED, "cancelled", self._clock.now())
        exchange.uses = [use for use in exchange.uses if use.started]
        if exchange.trace is not None and finish_trace:
            self._turns.trace_done(exchange.trace, "interrupted")
        exchange.trace = None

    def _sweep(self) -> None:
        self._open = [exchange for exchange in self._open if exchange.uses]

    # ------------------------------------------------------------ one run

    async def _run(self, exchange: Exchange, use: Use, tool: Tool) -> None:
        try:
            arguments = parse(tool, use.asked.arguments)
        except ToolFailed as error:
            use.end(f"error: {error}")
            self._step()
            return
        await self._wait_for_start(exchange, tool)
        use.started = True
        began_s, call = self._clock.now(), self._turns.call
        call.emit(ToolStarted(exchange.reply, use.id, tool.name, use.asked.arguments))
        outcome = "done"
        try:
            async with asyncio.timeout(tool.timeout_s):
                result = await tool.run(arguments, call)
        except TimeoutError:
            outcome, result = "late", f"error: no answer within {tool.timeout_s:g} seconds"
        except ToolFailed as error:
            outcome, result = "failed", f"error: {error}"
        except VoiceAgentError as error:
            outcome, result = "failed", f"error: {error.args[0]}"
        except Exception:
            log.exception("tool %s failed", tool.name, extra={"call": call.id})
            outcome, result = "failed", "error: it could not be done"
        if result is not None and len(result) > tool.max_chars:
            result = result[: tool.max_chars] + " (cut)"
        if outcome == "done" and result is not None:
            self._known.add(use.key)
        self._ended(exchange, use, result, outcome, began_s)
        self._step()

    async def _wait_for_start(self, exchange: Exchange, tool: Tool) -> None:
        quiet_from_s = exchange.committed_s
        while True:
            now, state = self._clock.now(), self._turns.state
            if caller_speaks(state):
                quiet_from_s = now
            quiet_s = now - quiet_from_s
            if may_start(tool, state, sounded=exchange.sounded, quiet_s=quiet_s):
                return
            await asyncio.sleep(POLL_S)

    def _ended(
        self, exchange: Exchange, use: Use, result: str | None, outcome: str, began_s: float
    ) -> None:
        if use.over:
            return
        use.end(result)
        self._ids.add(use.id)
        if exchange.trace is not None:
            took_ms = (self._clock.now() - began_s) * 1000.0
            exchange.trace.tools.append(ToolSpan(use.asked.name, outcome, began_s, took_ms))
        self._turns.call.emit(
            ToolFinished(exchange.reply, use.id, use.asked.name, outcome, result or "")
        )

    # ------------------------------------------------------------ results

    def _pump_on(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._turns.call.spawn(self._pump())

    async def _pump(self) -> None:
        """While something is open: what only the passing of time brings about."""
        try:
            while self.busy:
                self._step()
                await asyncio.sleep(POLL_S)
        finally:
            self._pumping = False

    def _step(self) -> None:
        self._enter()
        self._follow_up()
        self._fill()

    def _enter(self) -> None:
        """What has ended becomes history, unless a reply is being made from it."""
        if self._turns.mouth.reply is not None:
            return
        ended = [exchange for exchange in self._open if exchange.over]
        for exchange in ended:
            self._open.remove(exchange)
            self._record(exchange)
        if ended:
            self._turns.mouth.cancel_early()
            self._turns.expect()

    def _record(self, exchange: Exchange) -> None:
        uses, conversation = exchange.told_uses, self._turns.conversation
        if not uses and not exchange.repeats:
            self._nothing_to_tell(exchange)
            return
        if exchange.told:
            for use in uses:
                conversation.add_system(f"Result of {use.asked.name}: {use.result}", use.id)
        elif uses:
            whole = exchange.whole and len(uses) == len(exchange.uses)
            records = [use.record for use in uses]
            ids = exchange.ids if whole else ()
            conversation.add_tools(records, said=exchange.said, call_ids=ids)
        if exchange.by_client:
            return
        if self._unsaid is not None and self._unsaid.trace is not None:
            self._turns.trace_done(self._unsaid.trace, "tool")
        step = exchange.step + 1
        may_call = step < MAX_STEPS and not exchange.repeats
        self._unsaid = Unsaid(exchange.turn, exchange.trace, step, exchange.sounded, may_call)

    def _nothing_to_tell(self, exchange: Exchange) -> None:
        if exchange.trace is not None:
            self._turns.trace_done(exchange.trace, "spoken" if exchange.sounded else "tool")
        if self._turns.state.floor is tm.Floor.THINKING and not self.waiting:
            self._turns.apply(tm.ReplyOver())

    def _follow_up(self) -> None:
        """The answer to the results, once it interrupts nobody."""
        unsaid, state = self._unsaid, self._turns.state
        if (
            unsaid is None
            or self.waiting
            or self._turns.mouth.reply is not None
            or caller_speaks(state)
            or state.floor not in (tm.Floor.IDLE, tm.Floor.THINKING)
        ):
            return
        self._unsaid = None
        self._turns.follow_up(unsaid)

    def _fill(self) -> None:
        """Words of the operator's while the caller waits and hears nothing."""
        now, mouth, state = self._clock.now(), self._turns.mouth, self._turns.state
        if caller_speaks(state) or mouth.sounding:
            self._quiet_from_s = now
            return
        fillers = self._agent.fillers
        if (
            not fillers
            or mouth.reply is not None
            or state.floor is not tm.Floor.THINKING
            or not any(not exchange.over and not exchange.let_go for exchange in self._open)
        ):
            return
        after_s = self._agent.file.tools.filler_after_ms / 1000.0
        if now - self._quiet_from_s >= (FILLER_AGAIN_S if self._filled else after_s):
            self._filled = True
            self._n_fillers += 1
            mouth.say(fillers[(self._n_fillers - 1) % len(fillers)])


def _as_generated(reply: Reply) -> tuple[int, ...]:
    """The reply's ids, if the history may keep them: without tags it is not as it should be."""
    return tuple(reply.ids) if OPEN in reply.written else ()


def _running(record: ToolUse) -> ToolUse:
    return replace(record, result=RUNNING)
