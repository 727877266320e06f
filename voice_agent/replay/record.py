"""A call that keeps everything it takes in: its stages are wrapped, its code is untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from voice_agent.agent import Call
from voice_agent.client_requests import ClientRequests
from voice_agent.events import EndReason, Event
from voice_agent.playout import Tick
from voice_agent.smart_turn import SmartTurn
from voice_agent.tools.base import Tool
from voice_agent.types import Frame
from voice_agent.vad import VadService

from .tape import Head, Recorded
from .taping import Taping
from .taps import (
    TapedRecognizer,
    TapedSmartTurn,
    TapedSpeaker,
    TapedThinker,
    TapedVad,
    taped_tool,
)

if TYPE_CHECKING:
    from voice_agent.stack import AgentRuntime, MakeCall, Stack

CONTROLS = ("playing_behind", "press", "tell_echo", "line_lost", "line_back", "say")
"""What a transport may ask of a call while it lives."""
CLIENT_CONTROLS = (
    "update", "mute", "add_message", "remove_message", "tool_call", "tool_result", "respond",
    "cancel_reply", "truncate", "use_manual_turns", "commit_audio", "clear_audio",
)  # fmt: skip
"""What its client may ask."""
SETTINGS = ("auto_response", "interruptible", "manual_turns", "idle_timeout_ms")


class TapedCall(Call):
    """A call whose transport, client and stages are recorded."""

    def __init__(
        self,
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
        max_s: float = 600.0,
        done: Callable[[TapedCall], None] = lambda call: None,
    ) -> None:
        """done: told once, when the call is over."""
        self._taping: Taping | None = None  # settings made in here are none of the client's
        taping = Taping(head_of(stack, agent, lead_ms), stack.clock, max_s)
        self._done = done

        def listen(event: Event) -> None:
            taping.event(event)
            on_event(event)

        super().__init__(
            taped_stack(stack, taping), taped_agent(agent, taping), listen, lead_ms=lead_ms
        )
        self.client = TapedClient(self)
        self._taping = taping

    def hear(self, frame: Frame) -> None:
        if self._taping is not None:
            self._taping.heard(frame)
        super().hear(frame)

    def tick(self) -> Tick:
        if self._taping is not None:
            self._taping.ticked(self._stack.early.load.shed)
        return super().tick()

    async def run(self) -> EndReason:
        taping = self._taping
        assert taping is not None
        taping.tape.run_at_s = taping.now()
        reason = EndReason.TRANSPORT_LOST
        try:
            reason = await super().run()
        finally:
            taping.ended(reason.value)
            self._done(self)
        return reason

    def recorded(self) -> Recorded:
        assert self._taping is not None
        return self._taping.recorded()

    def noted(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], act: Callable[[], Any]
    ) -> Any:
        """Note the outermost control only: what it calls in turn is the call's own doing."""
        taping = self._taping
        if taping is None or taping.inside:
            return act()
        taping.control(name, args, kwargs)
        taping.inside = True
        try:
            return act()
        finally:
            taping.inside = False


class TapedClient(ClientRequests):
    """What the client of a taped call asks is recorded."""

    def __init__(self, call: TapedCall) -> None:
        super().__init__(call._turns, call._stack, call._asides, call._silence, call.words)
        self._call = call

    def noted(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], act: Callable[[], Any]
    ) -> Any:
        return self._call.noted(name, args, kwargs, act)


def taped(done: Callable[[TapedCall], None]) -> MakeCall:
    """What `Stack.make_call` is set to for calls to be recorded; `done` gets each at its end."""

    def make(
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
    ) -> TapedCall:
        return TapedCall(stack, agent, on_event, lead_ms=lead_ms, done=done)

    return make


def _note(taped: type[Any], plain: type[Any], names: Sequence[str]) -> None:
    """Methods of `plain` are told to `taped.noted` before they run."""

    def noting(name: str) -> Callable[..., Any]:
        asked: Callable[..., Any] = getattr(plain, name)

        @wraps(asked)
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            return self.noted(name, args, kwargs, lambda: asked(self, *args, **kwargs))

        return noted

    for name in names:
        setattr(taped, name, noting(name))


def _noting_setting(name: str) -> property:
    plain: property = getattr(ClientRequests, name)
    assert plain.fget is not None

    def noted(self: TapedClient, value: Any) -> None:
        self.noted(name, (value,), {}, lambda: plain.__set__(self, value))

    return property(plain.fget, noted)


_note(TapedCall, Call, CONTROLS)
_note(TapedClient, ClientRequests, CLIENT_CONTROLS)
for _name in SETTINGS:
    setattr(TapedClient, _name, _noting_setting(_name))


def head_of(stack: Stack, agent: AgentRuntime, lead_ms: int) -> Head:
    file = agent.file
    plain = file.model_dump(mode="json", exclude={"tools"})
    section = file.tools
    plain["tools"] = {
        "timeout_s": section.timeout_s,
        "max_chars": section.max_chars,
        "fillers": list(section.fillers),
        "filler_after_ms": section.filler_after_ms,
        "end_call": bool(agent.tools),
    }
    tools = [
        {f.name: getattr(tool, f.name) for f in fields(Tool) if f.name != "run"}
        for tool in agent.tools
    ]
    conversation = stack.conversation(file.instructions, agent.tools)
    return Head(
        agent=plain,
        tools=[{**tool, "parameters": dict(tool["parameters"])} for tool in tools],
        models=stack.models,
        prompt_version=conversation.version,
        voice=file.voice,
        target_s=stack.target_s,
        answer_within_s=stack.answer_within_s,
        max_context=stack.max_prompt_tokens,
        lead_ms=lead_ms,
        smart_turn=stack.smart_turn is not None,
        announcement=stack.announcement,
        early=asdict(stack.early.limits),
    )


def taped_stack(stack: Stack, taping: Taping) -> Stack:
    """The same loaded parts, seen through the tape."""
    taped = copy.copy(stack)
    taped.vad = cast(VadService, TapedVad(stack.vad, taping))
    if stack.smart_turn is not None:
        taped.smart_turn = cast(SmartTurn, TapedSmartTurn(stack.smart_turn, taping))
    taped.recognizer = TapedRecognizer(stack.recognizer, taping)
    taped.thinker = TapedThinker(stack.thinker, taping)
    taped._speakers = {
        name: TapedSpeaker(speaker, taping) for name, speaker in stack._speakers.items()
    }
    return taped


def taped_agent(agent: AgentRuntime, taping: Taping) -> AgentRuntime:
    """Its voice and tools through the tape."""
    return replace(
        agent,
        speaker=TapedSpeaker(agent.speaker, taping),
        tools=tuple(taped_tool(tool, taping) for tool in agent.tools),
    )
