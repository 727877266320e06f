"""What happens in one short call: who makes which sound when, and what it should lead to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .sounds import Sound


class Kind(StrEnum):
    """Classes of events, as the report names them."""

    SMOOTH = "smooth"  # a whole turn, then silence: to be answered
    PAUSE = "pause"  # a turn with pauses: not to be answered in them
    CORRECTION = "correction"  # a turn, then another few words at once: both to be answered
    INTERRUPTION = "interruption"  # words to us while we speak: we stop and answer
    INTERRUPTION_ECHO = "interruption_echo"  # the same over the echo of our own voice
    BACKCHANNEL = "backchannel"  # "mm-hm" while we speak: we go on
    COUGH = "cough"
    CLATTER = "clatter"
    BACKGROUND = "background_talk"  # somebody far away talks while we speak: we go on
    SIDE = "side_speech"  # the caller speaks to somebody else, turned away: we go on
    ECHO = "echo"  # only our own voice comes back: we go on


TURNS = (Kind.SMOOTH, Kind.PAUSE, Kind.CORRECTION)
INTERRUPTIONS = (Kind.INTERRUPTION, Kind.INTERRUPTION_ECHO)
NO_TURNS = (
    Kind.BACKCHANNEL,
    Kind.COUGH,
    Kind.CLATTER,
    Kind.BACKGROUND,
    Kind.SIDE,
    Kind.ECHO,
)  # fmt: skip


class After(StrEnum):
    """What a sound's start is counted from."""

    START = "start"  # of the call
    REPLY = "reply"  # the first sample of our first reply
    SOUND = "sound"  # the last voiced sample of the sound before


@dataclass(frozen=True, slots=True)
class Play:
    """One sound: its first voiced sample comes `ms` after the anchor, `gain_db` above the level
    of a caller's speech. far: it comes dull and with the room's reverberation."""

    sound: Sound
    ms: int
    after: After = After.START
    gain_db: float = 0.0
    far: bool = False


@dataclass(frozen=True, slots=True)
class Echo:
    """Our own voice comes back `gain_db` louder or quieter than it was sent, `delay_ms` after it
    was played, through a small room; clipped: through an overdriven loudspeaker."""

    gain_db: float
    delay_ms: int
    clipped: bool = False

    @property
    def name(self) -> str:
        return f"{self.gain_db:.0f} dB" + (" clipped" if self.clipped else "")


@dataclass(frozen=True, slots=True)
class Scene:
    """detail: which sort of its kind, for tables. agent_first: we begin to speak, on request.
    reply: number of the reply's text. player_ms: what the caller's player buffers; it drops that
    when told of an interruption. noise_db: level of the room's noise, dBFS."""

    name: str
    kind: Kind
    detail: str
    human: bool
    plays: tuple[Play, ...]
    agent_first: bool
    reply: int
    echo: Echo | None = None
    player_ms: int = 0
    noise_db: float = -66.0


REPLIES = (
    "Your parcel left our warehouse on Monday morning, and the driver has it on the van today. It "
    "should reach you before five, and somebody has to be at home to sign for it.",
    "The museum opens at nine and closes at six. On Thursdays it stays open until eight, and "
    "children under twelve come in free when an adult is with them.",
    "I have found two flights that would suit you. The first one leaves at ten in the morning "
    "and has one stop, and the second one is direct but costs forty dollars more.",
    "To reset the router, hold the small button on its back for ten seconds. All of the lights "
    "will go out and come back one after the other, which takes about two minutes.",
    "We can move your appointment to Wednesday afternoon. The doctor is here until four, so "
    "please come a little earlier and bring the letter that we sent you last week.",
    "The soup of the day is tomato with basil, and there is fresh bread with it. For the main "
    "course I can recommend the grilled fish, which our cook prepares with lemon and garlic.",
    "Your account shows three payments this month. The last one was made on Friday at a book "
    "shop in the old town, and it is the only one that has not been confirmed yet.",
    "The train from platform four is late because of work on the line. It will leave in about "
    "half an hour, and your ticket is good for the slower train as well if you would rather go.",
)
"""About nine seconds each, of the sort that callers interrupt."""
