"""When nobody speaks: who is asked, who is hung up on. Pure; times are seconds of the call's clock.

The ladder: after `idle_s` of silence on both sides the first prompt, after as much again the next
one, then the goodbye. Words of the caller's start it over; a noise only puts off the next step. A
caller of whom no word came for `silence_s` is hung up on, however loud it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Due(StrEnum):
    NOTHING = "nothing"
    PROMPT = "prompt"
    GOODBYE = "goodbye"  # the ladder's end, or no word for too long
    TIME_IS_UP = "time is up"  # the call's own length


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """prompts: how many are asked before the goodbye. Seconds."""

    idle_s: float
    silence_s: float
    max_call_s: float
    prompts: int


class Silence:
    """One call's ladder."""

    def __init__(self, limits: SilenceLimits, now_s: float) -> None:
        self._limits = limits
        self._started_s = self._active_s = self._words_s = now_s
        self.step = 0
        """Prompts so far, since the caller's last word."""

    def active(self, now_s: float) -> None:
        """Somebody speaks, or something is under way: no silence."""
        self._active_s = now_s

    def answered(self, now_s: float) -> None:
        """An answer of ours is being heard: the caller need not say anything."""
        self._active_s = self._words_s = now_s

    def words(self, now_s: float) -> None:
        """The caller said a word, pressed a key, wrote: they are there."""
        self.answered(now_s)
        self.step = 0

    def due(self, now_s: float) -> Due:
        """What must happen now. A prompt counts as given."""
        limits = self._limits
        if now_s - self._started_s > limits.max_call_s:
            return Due.TIME_IS_UP
        if now_s - self._words_s > limits.silence_s:
            return Due.GOODBYE
        if now_s - self._active_s <= limits.idle_s:
            return Due.NOTHING
        if self.step >= limits.prompts:
            return Due.GOODBYE
        self.step += 1
        self._active_s = now_s
        return Due.PROMPT
