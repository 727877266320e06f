"""What a call tells its transport: records, in the order they happened.

A transport maps them to its protocol and never infers state of its own. Audio is not here: the
clock's owner pulls frames with `Call.tick()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from .decisions import Decision
from .trace import TurnTrace
from .types import ReplyId, TurnId


class ReplyStatus(StrEnum):
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"  # the caller cut in; heard words only are kept
    CANCELLED = "cancelled"  # the client or a revision withdrew it
    FAILED = "failed"


class EndReason(StrEnum):
    """Why a call ended; a closed list, one of them on the call's last log line."""

    CALLER_HUNG_UP = "caller_hung_up"
    AGENT_GOODBYE = "agent_goodbye"
    IDLE_TIMEOUT = "idle_timeout"
    MAX_DURATION = "max_duration"
    TRANSFERRED = "transferred"
    TRANSPORT_LOST = "transport_lost"
    BAD_INPUT = "bad_input"
    OPERATOR = "operator_hung_up"
    SERVER_DRAINING = "server_draining"
    SERVER_ERROR = "server_error"


@dataclass(frozen=True, slots=True)
class CallStarted:
    call: str
    agent: str


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The caller takes the floor. While our agent speaks: sent only when barge-in is decided.

    onset_ms: first voiced sample in media time (ms of audio since the call began).
    """

    turn: TurnId
    onset_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """Sent at commit, so revisions are invisible to a protocol that knows none."""

    turn: TurnId
    end_ms: int


@dataclass(frozen=True, slots=True)
class Partial:
    """confirmed never changes within a turn (it only grows); tail may. A space joins them."""

    turn: TurnId
    confirmed: str
    tail: str


@dataclass(frozen=True, slots=True)
class TurnCommitted:
    """The final transcript; the reply to it follows. Empty text means no_input."""

    turn: TurnId
    text: str


@dataclass(frozen=True, slots=True)
class TurnReopened:
    """The caller went on within the continuation window: the committed words join the next text."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class CallerSilent:
    """The client's own limit of silence is over; a turn without words is committed next.

    start_ms, end_ms: the silence, in media time.
    """

    turn: TurnId
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class ReplyStarted:
    reply: ReplyId


@dataclass(frozen=True, slots=True)
class ReplySounds:
    """Its first audible frame has left."""

    reply: ReplyId


@dataclass(frozen=True, slots=True)
class ReplyText:
    """Text handed to the voice, in order; concatenated deltas are the reply as written."""

    reply: ReplyId
    delta: str


@dataclass(frozen=True, slots=True)
class WordsHeard:
    """The caller has now heard the reply's text up to `chars` characters."""

    reply: ReplyId
    chars: int


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """After the reply's last audio frame. heard is the exact text that entered the context.

    finish: why the model stopped, "stop" or "length" (its limit); None if it was not asked.
    """

    reply: ReplyId
    status: ReplyStatus
    text: str
    heard: str
    audio_ms: int
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish: str | None = None


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool runs from now on. id: of this run; arguments: JSON text, as the model wrote it.

    by_client: the transport's client is asked to do it and to say what came of it.
    """

    reply: ReplyId
    id: str
    name: str
    arguments: str
    by_client: bool = False


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """outcome: done, failed, late or cancelled. result: as told to the model, possibly nothing."""

    reply: ReplyId
    id: str
    name: str
    outcome: str
    result: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The turn machine is about to do this; nothing of it concerns a client."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class TurnTraced:
    trace: TurnTrace


@dataclass(frozen=True, slots=True)
class CallFault:
    """A user-visible error. code is stable and documented in docs/ERRORS.md."""

    code: str
    message: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class CallEnded:
    call: str
    reason: EndReason


Event: TypeAlias = (
    CallStarted
    | SpeechStarted
    | SpeechStopped
    | Partial
    | TurnCommitted
    | TurnReopened
    | CallerSilent
    | ReplyStarted
    | ReplySounds
    | ReplyText
    | WordsHeard
    | ReplyDone
    | ToolStarted
    | ToolFinished
    | Decided
    | TurnTraced
    | CallFault
    | CallEnded
)
