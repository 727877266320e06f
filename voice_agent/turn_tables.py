"""The two tables of the turn machine: what the caller does, and who has the floor. Data only.

A move that a table does not have is a bug of the machine (`turn.py`), never of its input: events
that mean nothing in a state make no move. docs/TURNS.md shows these tables; `turn_page.py` draws
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Caller(StrEnum):
    """What the caller does, as far as their turn is concerned."""

    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSED = "paused"  # silence inside a turn that may go on
    MUTED = "muted"


class Floor(StrEnum):
    """Who may be heard."""

    IDLE = "idle"
    THINKING = "thinking"  # a reply of ours has the floor, no sound of it has left yet
    SPEAKING = "speaking"
    HELD = "held"  # our voice is ducked or silent while the caller's is judged
    UNINTERRUPTIBLE = "uninterruptible"
    DRAINING = "draining"  # last words, then hang up


FORBIDDEN: frozenset[tuple[Caller, Floor]] = frozenset(
    {
        (Caller.SILENT, Floor.HELD),  # a hold always has a speaker to judge
        (Caller.MUTED, Floor.HELD),
        (Caller.SPEAKING, Floor.DRAINING),  # nobody is listened to any more
        (Caller.PAUSED, Floor.DRAINING),
    }
)


class CallerMove(StrEnum):
    """What happens to the caller's side."""

    STARTS = "starts"
    PAUSES = "pauses"
    GOES_ON = "goes on"
    IS_DONE = "is done"  # committed, answered with nothing, or dismissed
    IS_DROPPED = "is dropped"  # we say goodbye, or a client forgets it
    IS_MUTED = "is muted"  # and a turn that was begun is over: it needs only its words
    IS_DONE_MUTED = "is done or dropped, muted"
    IS_UNMUTED = "is unmuted"


class FloorMove(StrEnum):
    """What happens to the floor."""

    COMMITS = "turn committed"
    BEGINS = "reply begins"
    BEGINS_HELD = "reply begins under the caller's speech"
    GUARDS = "may not be interrupted"
    UNGUARDS = "may be interrupted, unheard"
    UNGUARDS_HEARD = "may be interrupted, heard"
    SOUNDS = "first sound"
    HOLDS = "caller starts"
    RETURNS = "not words, unheard"
    RETURNS_HEARD = "not words, heard"
    TAKEN = "words or keys"
    OVER = "reply over"
    GOODBYE = "goodbye"


CALLER: Mapping[Caller, Mapping[CallerMove, Caller]] = {
    Caller.SILENT: {
        CallerMove.STARTS: Caller.SPEAKING,
        CallerMove.IS_MUTED: Caller.MUTED,
    },
    Caller.SPEAKING: {
        CallerMove.PAUSES: Caller.PAUSED,
        CallerMove.IS_DROPPED: Caller.SILENT,
        CallerMove.IS_MUTED: Caller.PAUSED,
    },
    Caller.PAUSED: {
        CallerMove.GOES_ON: Caller.SPEAKING,
        CallerMove.IS_DONE: Caller.SILENT,
        CallerMove.IS_DROPPED: Caller.SILENT,
        CallerMove.IS_DONE_MUTED: Caller.MUTED,
    },
    Caller.MUTED: {
        CallerMove.IS_UNMUTED: Caller.SILENT,
    },
}

FLOOR: Mapping[Floor, Mapping[FloorMove, Floor]] = {
    Floor.IDLE: {
        FloorMove.COMMITS: Floor.THINKING,
        FloorMove.BEGINS: Floor.THINKING,
        FloorMove.BEGINS_HELD: Floor.HELD,
        FloorMove.GUARDS: Floor.UNINTERRUPTIBLE,
        FloorMove.GOODBYE: Floor.DRAINING,
    },
    Floor.THINKING: {
        FloorMove.SOUNDS: Floor.SPEAKING,
        FloorMove.HOLDS: Floor.HELD,
        FloorMove.TAKEN: Floor.IDLE,
        FloorMove.OVER: Floor.IDLE,
        FloorMove.GUARDS: Floor.UNINTERRUPTIBLE,
        FloorMove.GOODBYE: Floor.DRAINING,
    },
    Floor.SPEAKING: {
        FloorMove.HOLDS: Floor.HELD,
        FloorMove.TAKEN: Floor.IDLE,
        FloorMove.OVER: Floor.IDLE,
        FloorMove.GUARDS: Floor.UNINTERRUPTIBLE,
        FloorMove.GOODBYE: Floor.DRAINING,
    },
    Floor.HELD: {
        FloorMove.RETURNS: Floor.THINKING,
        FloorMove.RETURNS_HEARD: Floor.SPEAKING,
        FloorMove.TAKEN: Floor.IDLE,
        FloorMove.OVER: Floor.IDLE,
        FloorMove.GUARDS: Floor.UNINTERRUPTIBLE,
        FloorMove.GOODBYE: Floor.DRAINING,
    },
    Floor.UNINTERRUPTIBLE: {
        FloorMove.UNGUARDS: Floor.THINKING,
        FloorMove.UNGUARDS_HEARD: Floor.SPEAKING,
        FloorMove.OVER: Floor.IDLE,
        FloorMove.GOODBYE: Floor.DRAINING,
    },
    Floor.DRAINING: {},
}
