"""What a transport needs from a conversation, and nothing more.

`voice_agent.agent.Call` and `voice_agent.stack.Stack` satisfy these Protocols. All methods are
called on the event-loop thread; only `run` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.client import Engine
from engine.histogram import HistogramSnapshot
from voice_agent.endpointing import TurnTaking
from voice_agent.events import EndReason, Event
from voice_agent.line import Line
from voice_agent.own_words import Echo
from voice_agent.player import Sounding
from voice_agent.playout import Tick
from voice_agent.types import Frame, ReplyId


class CallPort(Protocol):
    """One live conversation, as its transport sees it."""

    auto_response: bool
    interruptible: bool
    manual_turns: bool
    line: Line | None
    """Set by a transport that can transfer a call or press keys."""

    async def run(self) -> EndReason:
        """The whole life of the call. Cancelling it means that the transport was lost."""
        ...

    def hear(self, frame: Frame) -> None: ...

    def tell_echo(self, echo: Echo, note: str) -> None:
        """Whether the line sends our own voice back; note: for the trace."""
        ...

    def play_on(self, player: Sounding) -> None:
        """Our sound leaves through a player elsewhere; set before `run`."""
        ...

    def tick(self) -> Tick:
        """20 ms of our voice; pulled by the owner of the output clock."""
        ...

    def hang_up(self, reason: EndReason) -> None: ...

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
        """None leaves a setting as it is. Raises UsageError naming what is not possible."""
        ...

    def commit_audio(self) -> bool:
        """False when nothing was heard since the last commit."""
        ...

    def clear_audio(self) -> None: ...

    def add_message(self, role: str, text: str) -> None: ...

    def respond(self, instructions: str | None = None) -> bool:
        """False if a reply already has the floor."""
        ...

    def cancel_reply(self) -> bool:
        """False when there is none."""
        ...

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The ms that count: the smaller of the client's and our position. Raises UsageError."""
        ...

    def playing_behind(self, ms: int) -> None:
        """So much later than sent is our sound heard, by the client's own measurement."""
        ...


EventSink = Callable[[Event], None]


class StackPort(Protocol):
    """The loaded models and agents, as the gateway sees them."""

    @property
    def ready(self) -> bool: ...

    @property
    def engine(self) -> Engine | None:
        """The language model in this process; None: replies come from elsewhere."""
        ...

    @property
    def engine_model(self) -> str:
        """The name it is served under."""
        ...

    def agent_names(self) -> Sequence[str]:
        """The default agent first."""
        ...

    def open_call(self, agent_name: str | None, on_event: EventSink, lead_ms: int) -> CallPort:
        """None: the default agent. Raises UsageError for an agent that does not exist."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Numbers of the engine and of every stage's queue, by metric name without prefix."""
        ...

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        """The engine's distributions: metric name without prefix -> class of request -> values."""
        ...
