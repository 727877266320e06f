"""The only conversation state: who is talking, who has the floor. Pure.

(state, event) -> (state, effects), over two small tables, `Caller` and `Floor`; some pairs of them
cannot be (`FORBIDDEN`). Tools, timers and models are not states; they are data of the call. Nothing
here reads a clock: times are milliseconds of media time carried by the events.

Words used below (DESIGN: docs/INVARIANTS.md):

* a *candidate* is caller speech that began while we were thinking or speaking. Our voice is held at
  once; it is decided by what was said: words take the floor (`Interrupt`, or `Reopen` when it is
  the caller going on with what they just said), noise or "mm-hm" gives it back (`Resume`).
* *commit* is the end-of-turn decision. Only an uncommitted revision may be revised.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias

from .types import TurnId


class Caller(StrEnum):
    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSED = "paused"  # silence inside a turn that may go on
    MUTED = "muted"


class Floor(StrEnum):
    IDLE = "idle"
    THINKING = "thinking"  # committed, no sound yet
    SPEAKING = "speaking"
    HELD = "held"  # our voice waits while a candidate is judged
    UNINTERRUPTIBLE = "uninterruptible"
    DRAINING = "draining"  # last words, then hang up


FORBIDDEN: frozenset[tuple[Caller, Floor]] = frozenset(
    {
        (Caller.SILENT, Floor.HELD),  # a hold always has a speaker to judge
        (Caller.MUTED, Floor.HELD),
    }
)


class Speech(StrEnum):
    """What a transcript turned out to be."""

    NOTHING = "nothing"  # noise, breath, echo
    BACKCHANNEL = "backchannel"  # "mm-hm", "okay": the caller listens, and wants us to go on
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
    """A transcript of the current revision. complete: it covers everything up to the pause."""

    turn: TurnId
    text: str
    speech: Speech
    complete: bool


@dataclass(frozen=True, slots=True)
class ReplyBegins:
    """A reply of ours other than an answer takes the floor: greeting, client request, goodbye."""

    floor: Floor = Floor.THINKING


@dataclass(frozen=True, slots=True)
class FirstSound:
    """The reply's first audible frame left."""


@dataclass(frozen=True, slots=True)
class ReplyOver:
    """The reply ended: its last frame left, it failed, or it was cancelled."""


@dataclass(frozen=True, slots=True)
class Mute:
    on: bool


Event: TypeAlias = (
    Onset | Pause | Resumed | Ended | Heard | ReplyBegins | FirstSound | ReplyOver | Mute
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
    | Hold
    | Resume
    | Interrupt
    | Reopen
    | Dismiss
)


@dataclass(frozen=True, slots=True)
class TurnState:
    """All of it. Compare, log, replay: it is a value."""

    turn: TurnId
    caller: Caller = Caller.SILENT
    floor: Floor = Floor.IDLE
    candidate: bool = False  # the utterance began while we had the floor and is not decided
    resume_to: Floor = Floor.IDLE  # what a hold goes back to
    onset_ms: int = 0
    last_voiced_ms: int = 0
    ended: bool = False  # silence ran out, the transcript has not arrived yet
    text: str | None = None  # complete transcript of the current revision
    speech: Speech = Speech.NOTHING
    committed: TurnId | None = None
    committed_end_ms: int = -(10**9)
    continuation_ms: int = 1500

    def __post_init__(self) -> None:
        if (self.caller, self.floor) in FORBIDDEN:
            raise AssertionError(f"forbidden pair {self.caller}/{self.floor}")


Step: TypeAlias = tuple[TurnState, tuple[Effect, ...]]

_OURS = (Floor.THINKING, Floor.SPEAKING, Floor.HELD)


def step(s: TurnState, e: Event) -> Step:
    """One event. Raises AssertionError only for a forbidden pair, which is a bug of this module."""
    match e:
        case Onset():
            return _onset(s, e)
        case Pause():
            if s.caller is not Caller.SPEAKING:
                return s, ()
            s = replace(s, caller=Caller.PAUSED, last_voiced_ms=e.last_voiced_ms, text=None)
            return s, (Transcribe(s.turn),)
        case Resumed():
            return _resumed(s)
        case Ended():
            if s.caller is not Caller.PAUSED:
                return s, ()
            s = replace(s, ended=True, last_voiced_ms=e.last_voiced_ms)
            return _settle(s) if s.text is not None else (s, ())
        case Heard():
            return _heard(s, e)
        case ReplyBegins():
            return _reply_begins(s, e)
        case FirstSound():
            if s.floor is Floor.THINKING:
                return replace(s, floor=Floor.SPEAKING), ()
            return s, ()
        case ReplyOver():
            return _reply_over(s)
        case Mute():
            return _mute(s, e)


def _onset(s: TurnState, e: Onset) -> Step:
    if s.caller is Caller.PAUSED and s.ended:
        return _resumed(s)  # the end was not committed yet: the same turn goes on
    if s.caller is not Caller.SILENT or s.floor in (Floor.DRAINING, Floor.UNINTERRUPTIBLE):
        return s, ()
    turn = s.turn.next()
    ours = s.floor in _OURS
    s = replace(
        s,
        turn=turn,
        caller=Caller.SPEAKING,
        candidate=ours,
        onset_ms=e.at_ms,
        last_voiced_ms=e.at_ms,
        ended=False,
        text=None,
        speech=Speech.NOTHING,
    )
    listen = Listen(turn, e.at_ms, ours)
    if not ours:
        return s, (listen,)
    return replace(s, floor=Floor.HELD, resume_to=s.floor), (listen, Hold())


def _resumed(s: TurnState) -> Step:
    if s.caller is not Caller.PAUSED:
        return s, ()
    old = s.turn
    s = replace(s, caller=Caller.SPEAKING, turn=old.revised(), ended=False, text=None)
    effects: tuple[Effect, ...] = (Revise(old, s.turn),)
    if s.candidate and s.floor in (Floor.THINKING, Floor.SPEAKING):
        # Dismissed once, speaking again: our voice is held again while it is judged.
        return replace(s, floor=Floor.HELD, resume_to=s.floor), (*effects, Hold())
    return s, effects


def _heard(s: TurnState, e: Heard) -> Step:
    if e.turn != s.turn or s.caller in (Caller.SILENT, Caller.MUTED):
        return s, ()  # a stale revision: its words come again with the next pass
    if e.complete and s.caller is Caller.PAUSED:
        s = replace(s, text=e.text, speech=e.speech)
    if s.candidate:
        return _judge(s, e)
    if s.text is None:
        return s, ()
    if s.ended:
        return _settle(s)
    return s, (ThinkEarly(s.turn, s.text),) if s.speech is not Speech.NOTHING else ()


def _judge(s: TurnState, e: Heard) -> Step:
    """A candidate's words decide whose floor it is."""
    if e.speech is Speech.WORDS:
        asked = s.turn
        s, effects = _take_floor(s)
        if s.text is None:
            # Renamed by a re-opening: the pass in flight carries the old name and will be dropped.
            again = s.turn != asked and s.caller is Caller.PAUSED
            return s, (*effects, Transcribe(s.turn)) if again else effects
        if s.ended:
            s, more = _settle(s)
            return s, effects + more
        return s, (*effects, ThinkEarly(s.turn, e.text))
    effects = ()
    if s.floor is Floor.HELD:
        s = replace(s, floor=s.resume_to)
        effects = (Resume(),)
    if s.ended and s.text is not None:
        s, more = _settle(s)
        return s, effects + more
    return s, effects


def _take_floor(s: TurnState) -> Step:
    goes_on = s.committed is not None and s.onset_ms - s.committed_end_ms <= s.continuation_ms
    if goes_on and s.committed is not None:
        old = s.committed
        turn = old.revised()
        s = replace(s, floor=Floor.IDLE, candidate=False, turn=turn, committed=None)
        return s, (Reopen(old, turn, s.onset_ms),)
    s = replace(s, floor=Floor.IDLE, candidate=False)
    return s, (Interrupt(s.turn, s.onset_ms),)


def _settle(s: TurnState) -> Step:
    """Silence ran out and the complete transcript is there: commit, or back to listening."""
    text, turn = s.text or "", s.turn
    if s.candidate:  # judged not to be words
        s = replace(s, caller=Caller.SILENT, candidate=False, ended=False, text=None)
        return s, (Dismiss(turn),)
    if s.speech is Speech.NOTHING:
        s = replace(s, caller=Caller.SILENT, ended=False, text=None)
        return s, (NoInput(turn, s.last_voiced_ms - s.onset_ms),)
    s = replace(
        s,
        caller=Caller.SILENT,
        floor=Floor.THINKING,
        ended=False,
        text=None,
        committed=turn,
        committed_end_ms=s.last_voiced_ms,
    )
    return s, (Commit(turn, text, s.last_voiced_ms),)


def _reply_begins(s: TurnState, e: ReplyBegins) -> Step:
    if s.floor is Floor.DRAINING:
        return s, ()
    if s.caller in (Caller.SPEAKING, Caller.PAUSED) and e.floor is Floor.THINKING:
        # The caller is speaking: the reply waits, held, until that speech is judged.
        return replace(s, floor=Floor.HELD, resume_to=e.floor, candidate=True), (Hold(),)
    caller = s.caller
    effects: tuple[Effect, ...] = ()
    if e.floor is Floor.DRAINING and caller in (Caller.SPEAKING, Caller.PAUSED):
        caller, effects = Caller.SILENT, (Dismiss(s.turn),)
    return replace(s, floor=e.floor, caller=caller, candidate=False), effects


def _reply_over(s: TurnState) -> Step:
    if s.floor in (Floor.IDLE, Floor.DRAINING):
        return s, ()
    effects: tuple[Effect, ...] = ()
    if s.candidate and s.caller in (Caller.SPEAKING, Caller.PAUSED):
        # Nothing left to interrupt: the candidate is an ordinary turn from here on.
        effects = (Interrupt(s.turn, s.onset_ms),)
    return replace(s, floor=Floor.IDLE, candidate=False), effects


def _mute(s: TurnState, e: Mute) -> Step:
    if not e.on:
        return (replace(s, caller=Caller.SILENT), ()) if s.caller is Caller.MUTED else (s, ())
    effects: tuple[Effect, ...] = ()
    if s.caller in (Caller.SPEAKING, Caller.PAUSED):
        effects = (Dismiss(s.turn),)
    floor = s.floor
    if floor is Floor.HELD:
        floor, effects = s.resume_to, (*effects, Resume())
    return replace(s, caller=Caller.MUTED, floor=floor, candidate=False, ended=False), effects
