"""What the turn machine must be told when time passes and nothing else happens.

A lowered voice under a caller who goes on becomes a silent one; a hold without a verdict ends; a
guarded beginning is over; keys that are followed by no more are a turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import turn as tm
from .barge_in import BargeIn
from .clock import Clock
from .errors import UsageError
from .languages.en.keys import keys_pressed

if TYPE_CHECKING:
    from .turns import Turns

KEY_PAUSE_S = 2.0  # without another key, the keys pressed so far are all
KEYS = frozenset("0123456789*#ABCD")
LAST_KEY = "#"


class FloorWatch:
    """Owns the times of one call's holds, guard and keys. `look` is called every few frames."""

    def __init__(self, turns: Turns, clock: Clock, settings: BargeIn) -> None:
        self._turns = turns
        self._clock = clock
        self._settings = settings
        self._held_s: float | None = None  # since when our voice is lowered or silent
        self._guard_s: float | None = None  # how long the reply may not be interrupted
        self._sounds_s: float | None = None  # since when it is heard
        self._keys = ""
        self._key_s = 0.0

    def look(self) -> None:
        now = self._clock.now()
        if self._turns.line_lost:
            self._held_s = None
            return
        self._look_at_hold(now)
        self._look_at_guard(now)
        if self._keys and (self._keys.endswith(LAST_KEY) or now - self._key_s >= KEY_PAUSE_S):
            self._send_keys()

    # ------------------------------------------------------------ holds

    def _look_at_hold(self, now: float) -> None:
        state = self._turns.state
        if state.floor is not tm.Floor.HELD:
            self._held_s = None
            return
        if self._held_s is None:
            self._held_s = now
        held_ms = (now - self._held_s) * 1000
        if held_ms >= self._settings.decide_ms:
            self._turns.apply(tm.Undecided())
        elif held_ms >= self._settings.hold_ms and state.ducked:
            self._turns.apply(tm.Lasted())

    # ------------------------------------------------------------ the greeting's beginning

    def guard(self, ms: int) -> None:
        """The reply that just took the floor is not interrupted in its first `ms` of sound."""
        if ms > 0:
            self._guard_s, self._sounds_s = ms / 1000, None
            self._turns.apply(tm.Guard(True))

    def _look_at_guard(self, now: float) -> None:
        if self._guard_s is None:
            return
        state = self._turns.state
        if state.floor is not tm.Floor.UNINTERRUPTIBLE:
            self._guard_s = None
            return
        if not state.sounded:
            return
        if self._sounds_s is None:
            self._sounds_s = now
        if now - self._sounds_s >= self._guard_s:
            self._guard_s = None
            if self._turns.interruptible:
                self._turns.apply(tm.Guard(False))

    # ------------------------------------------------------------ keys

    def press(self, key: str) -> None:
        """A key of the caller's telephone: it ends what we are saying. Raises UsageError."""
        if key not in KEYS:
            raise UsageError(f"{key!r} is no key of a telephone", code="VA116")
        self._turns.apply(tm.Pressed(self._turns.ear.now_ms))
        self._keys += key
        self._key_s = self._clock.now()
        self.look()

    def _send_keys(self) -> None:
        """The keys are a turn as soon as the caller is silent and nothing holds the floor for good.
        An answer to what was said before them is void."""
        state = self._turns.state
        if state.caller in (tm.Caller.SPEAKING, tm.Caller.PAUSED):
            return
        if state.floor in (tm.Floor.UNINTERRUPTIBLE, tm.Floor.DRAINING):
            return
        keys, self._keys = self._keys, ""
        at_ms = self._turns.ear.now_ms
        self._turns.apply(tm.Pressed(at_ms))
        self._turns.apply(tm.Keyed(keys_pressed(keys), at_ms))
