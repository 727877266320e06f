"""What a transport needs from a conversation, and nothing more.

`voice_agent.agent.Call`, its `client` and `voice_agent.stack.Stack` satisfy these Protocols. All
methods are called on the event-loop thread; only `run` and `transfer` wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.client import Engine
from engine.histogram import HistogramSnapshot
from voice_agent.client_requests import LAST
from voice_agent.context import Declaration, Key
from voice_agent.endpointing import TurnTaking
from voice_agent.events import EndReason, Event
from voice_agent.glance import Glance
from voice_agent.line import Line
from voice_agent.outlook import Outlook
from voice_agent.own_words import Echo
from voice_agent.player import Sounding
from voice_agent.playout import Tick
from voice_agent.reply_settings import AS_THE_CALL, ReplySettings, ToolChoice
from voice_agent.shedding import Shed
from voice_agent.types import Frame, ReplyId


class ClientPort(Protocol):
    """What a client may ask of its call besides speaking (`voice_agent.client_requests`)."""

    auto_response: bool
    interruptible: bool
    manual_turns: bool
    idle_timeout_ms: int | None
    """After so much silence of both sides a turn without words is committed and answered."""

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
        """None leaves a setting as it is. Raises UsageError naming what is not possible."""
        ...

    def mute(self, on: bool) -> None:
        """What was being said when muted is a turn."""
        ...

    def commit_audio(self) -> bool:
        """False when nothing was heard since the last commit."""
        ...

    def clear_audio(self) -> None: ...

    def add_message(
        self, role: str, text: str, key: str | None = None, *, after: Key | None = LAST
    ) -> None:
        """key: what it is removed by. after: what it follows; None: it is the first. Raises
        UsageError."""
        ...

    def remove_message(self, key: Key) -> bool:
        """False if there is none: it had no words, or has been dropped."""
        ...

    def message_text(self, key: Key) -> str | None:
        """What the history has of it."""
        ...

    def tool_call(self, call_id: str, name: str, arguments: str) -> None:
        """The client tells of a call made elsewhere. Raises UsageError."""
        ...

    def tool_result(self, call_id: str, result: str) -> None:
        """What came of a call that the client was asked for. Raises UsageError."""
        ...

    def respond(self, asked: ReplySettings = AS_THE_CALL) -> bool:
        """False if a reply already has the floor. Raises UsageError for what cannot be had."""
        ...

    def aside(self, asked: ReplySettings) -> None:
        """A reply beside the conversation: its id in events has `aside`. Raises VoiceAgentError."""
        ...

    def cancel_aside(self, reply: ReplyId) -> bool: ...

    def aside_ticks(self) -> Sequence[Tick]:
        """20 ms of each that is spoken."""
        ...

    def cancel_reply(self) -> bool:
        """False when there is none."""
        ...

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The ms that count: the smaller of the client's and our position. Raises UsageError."""
        ...


class CallPort(Protocol):
    """One live conversation, as its transport sees it."""

    line: Line | None
    """Set by a transport that can transfer a call or press keys."""

    @property
    def client(self) -> ClientPort:
        """Settings, the history, replies and turns, as a client changes them."""
        ...

    async def run(self) -> EndReason:
        """The whole life of the call. Cancelling it means that the transport was lost."""
        ...

    def glance(self) -> Glance:
        """How it stands, for the operator."""
        ...

    def hear(self, frame: Frame) -> None: ...

    def tell_echo(self, echo: Echo, note: str) -> None:
        """Whether the line sends our own voice back; note: for the trace."""
        ...

    def play_on(self, player: Sounding) -> None:
        """Our sound leaves through another player from now on, a reply from its cut word."""
        ...

    def line_lost(self, unheard_ms: int = 0) -> None:
        """The caller can't be reached: the call waits. unheard_ms: of what left, the last so much
        did not arrive."""
        ...

    def line_back(self) -> None:
        """The call goes on; `play_on` before, if the player is another one."""
        ...

    def tick(self) -> Tick:
        """20 ms of our voice; pulled by the owner of the output clock."""
        ...

    def hang_up(self, reason: EndReason) -> None: ...

    def press(self, key: str) -> None:
        """The caller pressed a key of a telephone."""
        ...

    async def transfer(self, target: str) -> None:
        """What is being said is played to its end, then the line hands the caller on. Raises
        UsageError VA115 where it cannot."""
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

    @property
    def shed(self) -> Shed:
        """What load has stopped."""
        ...

    def outlook(self, calls: int) -> Outlook:
        """How soon a caller would be answered, with so many calls and with more."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Numbers of the engine and of every stage's queue, by metric name without prefix."""
        ...

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        """The engine's distributions: metric name without prefix -> class of request -> values."""
        ...
