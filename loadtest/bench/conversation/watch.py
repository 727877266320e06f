"""What an outsider sees of one call: our sound tick by tick, and what the system said it did."""

from __future__ import annotations

from dataclasses import dataclass, field

from voice_agent.types import FRAME_MS

from .room import Placed, Room
from .scene import NO_TURNS, Kind, Scene

ANSWER_MS = 5000  # DESIGN: from the end of a turn to our first sound, on a CPU
SETTLE_MS = 2500  # after a sound that takes no turn: long enough to see us go on
SOUNDS_MS = 100  # of a new reply: enough to know that it came
ECHO_MS = 10_000
QUIET = 0.5  # of the level sent before: a voice that has made room


@dataclass(frozen=True, slots=True)
class Commit:
    """The system took the caller's turn to be over. ms: when; text: what it heard."""

    ms: float
    text: str


@dataclass(frozen=True, slots=True)
class Over:
    """A reply ended. heard: the words that the system will remember as said; None: not told."""

    ms: float
    reply: int
    completed: bool
    heard: str | None


@dataclass(slots=True)
class Run:
    """One scene through one system. Per tick (tick i leaves at `ms(i)`): which reply (-1: none),
    whether it moved on, the position of its first sample (24 kHz), and its gain."""

    scene: Scene
    placed: list[Placed]
    reply: list[int] = field(default_factory=list)
    audible: list[bool] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    overs: list[Over] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @staticmethod
    def ms(tick: int) -> float:
        """When tick i leaves: the frame i of the caller was heard by then."""
        return (tick + 1) * FRAME_MS

    @property
    def now_ms(self) -> float:
        return len(self.reply) * FRAME_MS


class Watcher:
    """Fills a `Run` and says when the scene is over."""

    def __init__(self, scene: Scene, room: Room) -> None:
        self.run = Run(scene, room.placed)
        self._room = room
        self._sounded: dict[int, float] = {}

    def tick(self, reply: int, audible: bool, offset: int, gain: float) -> None:
        run = self.run
        run.reply.append(reply)
        run.audible.append(audible)
        run.offset.append(offset)
        run.gain.append(gain)
        if audible and reply not in self._sounded:
            self._sounded[reply] = run.now_ms
            if len(self._sounded) == 1:
                self._room.reply_sounds(run.now_ms)

    @property
    def finished(self) -> bool:
        """Nothing more can happen that the scene is about."""
        run, now = self.run, self.run.now_ms
        if not self._room.all_placed:
            return now > 3 * ANSWER_MS  # our reply never sounded
        if run.scene.kind is Kind.ECHO:
            first = self._sounded.get(0)
            return first is not None and now > first + ECHO_MS
        end = run.placed[-1].end_ms
        later = [ms for ms in self._sounded.values() if ms > end]
        if later and now >= later[0] + SOUNDS_MS:
            return True
        if run.scene.kind in NO_TURNS and now >= end + SETTLE_MS and self._goes_on():
            return True
        return now >= end + ANSWER_MS + 500

    def _goes_on(self) -> bool:
        """The reply that was being spoken still is, or was spoken to its end."""
        run = self.run
        done = any(o.reply == 0 and o.completed for o in run.overs)
        return done or (run.reply[-1] == 0 and run.audible[-1])
