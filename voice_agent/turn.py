"""The only conversation state: who is talking, who has the floor. Pure.

(state, event) -> (state, effects). Who may be where is two small tables, `CALLER` and `FLOOR`
(`turn_tables.py`, drawn in docs/TURNS.md); some pairs of them cannot be (`FORBIDDEN`). This module
says which event makes which move. Tools, timers and models are not states; they are data of the
call. Nothing here reads a clock: times are milliseconds of media time carried by the events.

Words used below (DESIGN: docs/INVARIANTS.md):

* a *candidate* is caller speech that began while we were thinking or speaking. Our voice is ducked
  or held at once; it is decided by what was said: words take the floor (`Interrupt`, or `Reopen`
  when it is the caller going on with what they just said), noise or "mm-hm" gives it back
  (`Resume`).
* *commit* is the end-of-turn decision. Only an uncommitted revision may be revised.
* words said over a reply that may not be interrupted wait, and are committed when it is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from .turn_records import (
    Commit,
    Cut,
    Discard,
    Dismiss,
    Duck,
    Effect,
    Ended,
    Event,
    FirstSound,
    Guard,
    Heard,
    Hold,
    Interrupt,
    Keyed,
    Lasted,
    Listen,
    Mute,
    NoInput,
    Onset,
    Pause,
    Pressed,
    Reopen,
    ReplyBegins,
    ReplyOver,
    Resume,
    Resumed,
    Revise,
    Speech,
    ThinkEarly,
    Transcribe,
    Undecided,
)
from .turn_tables import CALLER, FLOOR, FORBIDDEN, Caller, CallerMove, Floor, FloorMove
from .types import TurnId

__all__ = [
    "Caller", "Commit", "Cut", "Discard", "Dismiss", "Duck", "Effect", "Ended", "Event",
    "FirstSound", "Floor", "Guard", "Heard", "Hold", "Interrupt", "Keyed", "Lasted", "Listen",
    "Mute", "NoInput", "Onset", "Pause", "Pressed", "Reopen", "ReplyBegins", "ReplyOver", "Resume",
    "Resumed", "Revise", "Speech", "Step", "ThinkEarly", "Transcribe", "TurnState", "Undecided",
    "step",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TurnState:
    """All of it. Compare, log, replay: it is a value."""

    turn: TurnId
    caller: Caller = Caller.SILENT
    floor: Floor = Floor.IDLE
    candidate: bool = False  # the utterance began while we had the floor and is not decided
    sounded: bool = False  # the reply with the floor has been heard
    ducked: bool = False  # the hold is a lowered voice, not silence
    onset_ms: int = 0
    last_voiced_ms: int = 0
    ended: bool = False  # silence ran out, and the turn still waits: for its text, or for us
    muting: bool = False  # ended by muting: the caller is muted as soon as it is committed
    text: str | None = None  # complete transcript of the current revision
    speech: Speech = Speech.NOTHING
    committed: TurnId | None = None
    committed_end_ms: int = -(10**9)
    continuation_ms: int = 1500
    max_revisions: int = 8  # of a turn; past them nothing is thought early or re-opened
    ducks: bool = True

    def __post_init__(self) -> None:
        if (self.caller, self.floor) in FORBIDDEN:
            raise AssertionError(f"forbidden pair {self.caller}/{self.floor}")


Step: TypeAlias = tuple[TurnState, tuple[Effect, ...]]


def step(s: TurnState, e: Event) -> Step:
    """One event. Raises AssertionError only for a move or a pair of states that the tables do not
    have, which is a bug of this module."""
    match e:
        case Onset():
            return _onset(s, e)
        case Pause():
            return _pause(s, e)
        case Resumed():
            return _resumed(s)
        case Ended():
            if s.caller is not Caller.PAUSED:
                return s, ()
            return _settle(replace(s, ended=True, last_voiced_ms=e.last_voiced_ms))
        case Heard():
            return _heard(s, e)
        case Lasted():
            if not s.ducked or s.caller is not Caller.SPEAKING:
                return s, ()
            return replace(s, ducked=False), (Hold(),)
        case Undecided():
            return _give_back(s)
        case Pressed():
            return _pressed(s)
        case Keyed():
            return _keyed(s, e)
        case ReplyBegins():
            return _reply_begins(s, e)
        case FirstSound():
            return _first_sound(s)
        case ReplyOver():
            return _reply_over(s)
        case Guard():
            return _guard(s) if e.on else _unguard(s)
        case Mute():
            return _mute(s, e)
        case Discard():
            return _discard(s)


# ---------------------------------------------------------------- moves


def _caller(s: TurnState, move: CallerMove) -> Caller:
    if move not in CALLER[s.caller]:
        raise AssertionError(f"a {s.caller} caller never {move}")
    return CALLER[s.caller][move]


def _floor(s: TurnState, move: FloorMove) -> Floor:
    if move not in FLOOR[s.floor]:
        raise AssertionError(f"no {move!r} while the floor is {s.floor}")
    return FLOOR[s.floor][move]


def _taken(s: TurnState, move: FloorMove) -> TurnState:
    """Our reply is over or cut: what the caller says is an ordinary turn from here on."""
    return replace(s, floor=_floor(s, move), candidate=False, sounded=False, ducked=False)


def _hold(s: TurnState) -> Step:
    """The caller speaks while ours is thought or heard: lowered if there is a voice to lower."""
    ducked = _lowers(s)
    s = replace(s, floor=_floor(s, FloorMove.HOLDS), ducked=ducked)
    return s, (Duck() if ducked else Hold(),)


def _lowers(s: TurnState) -> bool:
    """Who goes on with the turn just committed says no "mm-hm": then ours is silent at once."""
    return s.sounded and s.ducks and not _goes_on(s)


def _goes_on(s: TurnState) -> bool:
    return s.onset_ms - s.committed_end_ms <= s.continuation_ms


def _give_back(s: TurnState) -> Step:
    if s.floor is not Floor.HELD:
        return s, ()
    move = FloorMove.RETURNS_HEARD if s.sounded else FloorMove.RETURNS
    return replace(s, floor=_floor(s, move), ducked=False), (Resume(),)


def _kept(s: TurnState) -> bool:
    """Words over a reply that may not be interrupted: they wait until it is over."""
    return s.candidate and s.speech is Speech.WORDS and s.text is not None


# ---------------------------------------------------------------- the caller


def _onset(s: TurnState, e: Onset) -> Step:
    if s.caller is Caller.PAUSED and s.ended:
        return _resumed(s)  # the end was not committed yet: the same turn goes on
    if s.caller is not Caller.SILENT or s.floor is Floor.DRAINING:
        return s, ()
    over_us = s.floor is not Floor.IDLE
    turn, caller = s.turn.next(), _caller(s, CallerMove.STARTS)
    s = replace(
        s,
        turn=turn,
        caller=caller,
        floor=_floor(s, FloorMove.HOLDS) if over_us and _may_interrupt(s) else s.floor,
        candidate=over_us,
        ducked=False,
        onset_ms=e.at_ms,
        last_voiced_ms=e.at_ms,
        ended=False,
        text=None,
        speech=Speech.NOTHING,
    )
    listen = Listen(turn, e.at_ms, over_us)
    if s.floor is not Floor.HELD:
        return s, (listen,)
    s = replace(s, ducked=_lowers(s))
    return s, (listen, Duck() if s.ducked else Hold())


def _may_interrupt(s: TurnState) -> bool:
    return s.floor in (Floor.THINKING, Floor.SPEAKING)


def _pause(s: TurnState, e: Pause) -> Step:
    if s.caller is not Caller.SPEAKING:
        return s, ()
    caller = _caller(s, CallerMove.PAUSES)
    s = replace(s, caller=caller, last_voiced_ms=e.last_voiced_ms, text=None)
    return s, (Transcribe(s.turn),)


def _resumed(s: TurnState) -> Step:
    if s.caller is not Caller.PAUSED or s.muting:
        return s, ()
    old, caller = s.turn, _caller(s, CallerMove.GOES_ON)
    s = replace(s, caller=caller, turn=old.revised(), ended=False, text=None)
    effects: tuple[Effect, ...] = (Revise(old, s.turn),)
    if s.candidate and _may_interrupt(s):
        # Dismissed once, speaking again: our voice is held again while it is judged.
        s, more = _hold(s)
        return s, effects + more
    return s, effects


def _heard(s: TurnState, e: Heard) -> Step:
    if e.turn != s.turn or s.caller in (Caller.SILENT, Caller.MUTED):
        return s, ()  # a stale revision: its words come again with the next pass
    if e.complete and e.speech is Speech.UNSURE:
        e = replace(e, speech=Speech.WORDS)  # nothing more will come
    if e.complete and s.caller is Caller.PAUSED:
        s = replace(s, text=e.text, speech=e.speech)
    if s.candidate:
        return _judge(s, e)
    if s.text is None:
        return s, ()
    if s.ended:
        return _settle(s)
    may = s.speech is not Speech.NOTHING and s.turn.revision < s.max_revisions
    return s, (ThinkEarly(s.turn, s.text),) if may else ()


def _judge(s: TurnState, e: Heard) -> Step:
    """A candidate's words decide whose floor it is."""
    if s.floor is Floor.UNINTERRUPTIBLE:
        return _settle(s)
    if e.speech is Speech.UNSURE:
        return s, ()
    if e.speech is not Speech.WORDS:
        s, effects = _give_back(s)
        s, more = _settle(s)
        return s, effects + more
    asked = s.turn
    s, effects = _take_floor(s)
    if s.text is None:
        # Renamed by a re-opening: the pass in flight carries the old name and will be dropped.
        again = s.turn != asked and s.caller is Caller.PAUSED
        return s, (*effects, Transcribe(s.turn)) if again else effects
    if s.ended:
        s, more = _settle(s)
        return s, effects + more
    may = s.turn.revision < s.max_revisions
    return s, (*effects, ThinkEarly(s.turn, e.text)) if may else effects


def _take_floor(s: TurnState) -> Step:
    old = s.committed
    goes_on = _goes_on(s)
    s = _taken(s, FloorMove.TAKEN)
    if old is None or not goes_on or old.revision >= s.max_revisions:
        return s, (Interrupt(s.turn, s.onset_ms),)
    s = replace(s, turn=old.revised(), committed=None)
    return s, (Reopen(old, s.turn, s.onset_ms),)


def _settle(s: TurnState) -> Step:
    """Silence ran out and the complete transcript is there: commit, or back to listening."""
    if not s.ended or s.text is None or _kept(s):
        return s, ()
    turn, text, speech = s.turn, s.text, s.speech
    if s.candidate:  # judged not to be words
        s, effects = _give_back(s)
        return _done(s, candidate=False), (*effects, Dismiss(turn))
    if speech is Speech.NOTHING:
        return _done(s), (NoInput(turn, s.last_voiced_ms - s.onset_ms),)
    s = _done(s, floor=_floor(s, FloorMove.COMMITS))
    s = replace(s, committed=turn, committed_end_ms=s.last_voiced_ms)
    return s, (Commit(turn, text, s.last_voiced_ms),)


def _done(
    s: TurnState,
    move: CallerMove = CallerMove.IS_DONE,
    *,
    floor: Floor | None = None,
    candidate: bool | None = None,
) -> TurnState:
    """The caller's utterance is over, one way or another."""
    return replace(
        s,
        caller=_caller(s, CallerMove.IS_DONE_MUTED if s.muting else move),
        floor=s.floor if floor is None else floor,
        candidate=s.candidate if candidate is None else candidate,
        muting=False,
        ended=False,
        text=None,
    )


def _mute(s: TurnState, e: Mute) -> Step:
    """What was said until now is the turn: nothing can follow, so no silence is waited for."""
    if not e.on:
        unmuted = s.caller is Caller.MUTED
        caller = _caller(s, CallerMove.IS_UNMUTED) if unmuted else s.caller
        return replace(s, caller=caller, muting=False), ()
    if s.caller is Caller.MUTED or s.muting:
        return s, ()
    if s.caller is Caller.SILENT:
        return replace(s, caller=_caller(s, CallerMove.IS_MUTED)), ()
    s = replace(s, muting=True, ended=True)
    if s.caller is Caller.PAUSED:
        return _settle(s)
    caller = _caller(s, CallerMove.IS_MUTED)
    return replace(s, caller=caller, last_voiced_ms=e.at_ms, text=None), (Transcribe(s.turn),)


def _discard(s: TurnState) -> Step:
    if s.caller not in (Caller.SPEAKING, Caller.PAUSED):
        return s, ()
    turn = s.turn
    s, effects = _give_back(s)
    return _done(s, CallerMove.IS_DROPPED, candidate=False), (Dismiss(turn), *effects)


# ---------------------------------------------------------------- keys


def _pressed(s: TurnState) -> Step:
    if s.floor not in (Floor.THINKING, Floor.SPEAKING, Floor.HELD):
        return s, ()
    spoke = s.candidate and s.caller is not Caller.SILENT
    s = _taken(s, FloorMove.TAKEN)
    cut = Interrupt(s.turn, s.onset_ms) if spoke else Cut()
    s, more = _settle(s)
    return s, (cut, *more)


def _keyed(s: TurnState, e: Keyed) -> Step:
    if s.floor is not Floor.IDLE or s.caller in (Caller.SPEAKING, Caller.PAUSED):
        return s, ()
    turn = s.turn.next()
    floor = _floor(s, FloorMove.COMMITS)
    s = replace(s, turn=turn, floor=floor, committed=turn, committed_end_ms=e.at_ms)
    return s, (Commit(turn, e.text, e.at_ms),)


# ---------------------------------------------------------------- our replies


def _reply_begins(s: TurnState, e: ReplyBegins) -> Step:
    speaks = s.caller in (Caller.SPEAKING, Caller.PAUSED)
    if e.floor is Floor.DRAINING and s.floor is not Floor.DRAINING:
        dropped: tuple[Effect, ...] = (Dismiss(s.turn),) if speaks else ()
        if s.floor is Floor.HELD:
            dropped = (*dropped, Resume())
        floor = _floor(s, FloorMove.GOODBYE)
        s = _done(s, CallerMove.IS_DROPPED, floor=floor) if speaks else replace(s, floor=floor)
        return replace(s, candidate=False, sounded=False, ducked=False), dropped
    if s.floor is not Floor.IDLE:
        return s, ()
    if e.floor is Floor.UNINTERRUPTIBLE:
        return replace(s, floor=_floor(s, FloorMove.GUARDS), candidate=speaks), ()
    if speaks:  # the reply waits, held, until that speech is judged
        return replace(s, floor=_floor(s, FloorMove.BEGINS_HELD), candidate=True), (Hold(),)
    return replace(s, floor=_floor(s, FloorMove.BEGINS), candidate=False), ()


def _first_sound(s: TurnState) -> Step:
    if s.floor is Floor.THINKING:
        return replace(s, floor=_floor(s, FloorMove.SOUNDS), sounded=True), ()
    return replace(s, sounded=s.floor is Floor.UNINTERRUPTIBLE or s.sounded), ()


def _reply_over(s: TurnState) -> Step:
    if s.floor in (Floor.IDLE, Floor.DRAINING):
        return s, ()
    left = s.candidate and s.caller in (Caller.SPEAKING, Caller.PAUSED)
    s = _taken(s, FloorMove.OVER)
    if not left:
        return s, ()
    s, more = _settle(s)  # words that waited for us
    return s, (Interrupt(s.turn, s.onset_ms), *more)


def _guard(s: TurnState) -> Step:
    if s.floor not in (Floor.THINKING, Floor.SPEAKING, Floor.HELD):
        return s, ()
    effects: tuple[Effect, ...] = (Resume(),) if s.floor is Floor.HELD else ()
    return replace(s, floor=_floor(s, FloorMove.GUARDS), ducked=False), effects


def _unguard(s: TurnState) -> Step:
    if s.floor is not Floor.UNINTERRUPTIBLE:
        return s, ()
    move = FloorMove.UNGUARDS_HEARD if s.sounded else FloorMove.UNGUARDS
    s = replace(s, floor=_floor(s, move))
    return _hold(s) if s.candidate and s.caller is Caller.SPEAKING else (s, ())
