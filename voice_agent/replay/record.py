"""A call that keeps everything it takes in: its stages are wrapped, its code is untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from voice_agent.agent import Call
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

CONTROLS = (
    "update", "mute", "add_message", "respond", "cancel_reply", "truncate", "playing_behind",
    "press", "tell_echo", "line_lost", "line_back", "say", "use_manual_turns", "commit_audio",
    "clear_audio",
)  # fmt: skip
"""What a transport or client may ask of a call while it lives."""
SETTINGS = ("auto_response", "interruptible", "manual_turns")


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

    def _noted(
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


def _noting(name: str) -> Callable[..., Any]:
    plain: Callable[..., Any] = getattr(Call, name)

    @wraps(plain)
    def noted(self: TapedCall, *args: Any, **kwargs: Any) -> Any:
        return self._noted(name, args, kwargs, lambda: plain(self, *args, **kwargs))

    return noted


def _noting_setting(name: str) -> property:
    plain: property = getattr(Call, name)
    assert plain.fget is not None

    def noted(self: TapedCall, value: Any) -> None:
        self._noted(name, (value,), {}, lambda: plain.__set__(self, value))

    return property(plain.fget, noted)


for _name in CONTROLS:
    setattr(TapedCall, _name, _noting(_name))
for _name in SETTINGS:
    setattr(TapedCall, _name, _noting_setting(_name))


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
