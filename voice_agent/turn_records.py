"""What the turn machine is told, and what it asks for: events in, effects out. Records only.

Times are milliseconds of the caller's media time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from .turn_tables import Floor
from .types import TurnId


class Speech(StrEnum):
    """What a transcript turned out to be."""

    NOTHING = "nothing"  # noise, breath, echo
    BACKCHANNEL = "backchannel"  # "mm-hm", "okay": the caller listens, and wants us to go on
    UNSURE = "unsure"  # too little of a sentence that goes on: the next transcript decides
    WORDS = "words"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Onset:
    """The VAD is sure that speech began. at_ms: first voiced sample."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Pause:
    last_voiced_ms: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """Speech went on before the silence time-out ran out."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The silence time-out ran out."""

    last_voiced_ms: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A transcript of the current revision. complete: it covers everything up to the pause.

    why: what `speech` rests on, without a word of the text.
    """

    turn: TurnId
    text: str
    speech: Speech
    complete: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Lasted:
    """The caller's voice went on over our ducked one for longer than an acknowledgement takes."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """Our voice was ducked or held for as long as it may be, and nothing was understood."""


@dataclass(frozen=True, slots=True)
class Pressed:
    """A key (DTMF): a decision that needs no judging."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Keyed:
    """The keys pressed are complete; they are a turn of their own. Ignored while anybody has the
    floor or the caller speaks."""

    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReplyBegins:
    """A reply of ours other than an answer takes the floor: greeting, client request, goodbye.

    Nothing happens while another reply has it, except that a goodbye takes it from anyone.
    """

    floor: Floor = Floor.THINKING


@dataclass(frozen=True, slots=True)
class FirstSound:
    """The reply's first audible frame left."""


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """The reply ended: its last frame left, it failed, or it was cancelled."""


@dataclass(frozen=True, slots=True)
class Guard:
    """From now on the reply with the floor may not be interrupted (on), or may again (off)."""

    on: bool


@dataclass(frozen=True, slots=True)
class Mute:
    """The caller is muted from now on (on), or heard again (off)."""

    on: bool
    at_ms: int


@dataclass(frozen=True, slots=True)
class Discard:
    """What the caller says and was not committed is to be forgotten."""


Event: TypeAlias = (
    Onset
    | Pause
    | Resumed
    | Ended
    | Heard
    | Lasted
    | Undecided
    | Pressed
    | Keyed
    | ReplyBegins
    | FirstSound
    | ReplyOver
    | Guard
    | Mute
    | Discard
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Listen:
    """Start recording this turn's utterance. candidate: it began while we had the floor."""

    turn: TurnId
    onset_ms: int
    candidate: bool


@dataclass(frozen=True, slots=True)
class Revise:
    """Same utterance goes on: early work of the old revision is void."""

    old: TurnId
    turn: TurnId


@dataclass(frozen=True, slots=True)
class Transcribe:
    """The tail up to a pause: this text becomes the final if the pause becomes the end."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ThinkEarly:
    """The text is complete but the end is not decided: work without side effects may start."""

    turn: TurnId
    text: str


@dataclass(frozen=True, slots=True)
class Commit:
    turn: TurnId
    text: str
    end_ms: int


@dataclass(frozen=True, slots=True)
class NoInput:
    """Speech without words ended: back to listening (a recovery may be spoken)."""

    turn: TurnId
    speech_ms: int


@dataclass(frozen=True, slots=True)
class Duck:
    """Lower our voice from the next frame: the caller may only be saying "mm-hm"."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Silence our voice from the next frame; nothing is lost yet."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Not an interruption: go on from the start of the cut word."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Barge-in is decided: cancel the reply, keep only what was heard."""

    turn: TurnId
    onset_ms: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A key ends the reply: nobody spoke."""


@dataclass(frozen=True, slots=True)
class Reopen:
    """The caller goes on with the turn just committed; `turn` is its next revision.

    The reply is cancelled; if any of it was heard the call keeps three messages instead of one.
    """

    old: TurnId
    turn: TurnId
    onset_ms: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Forget the candidate's audio: it was nothing, or a backchannel."""

    turn: TurnId


Effect: TypeAlias = (
    Listen
    | Revise
    | Transcribe
    | ThinkEarly
    | Commit
    | NoInput
    | Duck
    | Hold
    | Resume
    | Interrupt
    | Cut
    | Reopen
    | Dismiss
)
