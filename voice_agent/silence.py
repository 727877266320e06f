"""When nobody speaks: who is asked, who is hung up on. Pure; times are seconds of the call's clock.

The ladder: after `idle_s` of silence on both sides the first prompt, after as much again the next
one, then the goodbye. Words of the caller's start it over; a noise only puts off the next step. A
caller of whom no word came for `silence_s` is hung up on, however loud it is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CLIENT_STEPS = 3
"""So often in a row a client's limit brings an answer to nothing; then the ladder goes on."""


class Due(StrEnum):
    NOTHING = "nothing"
    CLIENT = "client"  # as long as the client waits for a word
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
        self.client_s: float | None = None
        """The client's own limit; None: it has none."""
        self.step = 0
        """Prompts so far, since the caller's last word."""
        self.begin(now_s)

    def begin(self, now_s: float) -> None:
        """The call starts now."""
        self._started_s = self._active_s = self._words_s = now_s
        self.step = self._client_steps = 0

    def active(self, now_s: float) -> None:
        """Somebody speaks, or something is under way: no silence."""
        self._active_s = now_s

    def answered(self, now_s: float) -> None:
        """An answer of ours is being heard: the caller need not say anything."""
        self._active_s = self._words_s = now_s

    def words(self, now_s: float) -> None:
        """The caller said a word, pressed a key, wrote: they are there."""
        self.answered(now_s)
        self.step = self._client_steps = 0

    def due(self, now_s: float) -> Due:
        """What must happen now. A prompt counts as given."""
        limits = self._limits
        if now_s - self._started_s > limits.max_call_s:
            return Due.TIME_IS_UP
        if now_s - self._words_s > limits.silence_s:
            return Due.GOODBYE
        silent_s, client_s = now_s - self._active_s, self.client_s
        if client_s is not None and silent_s > client_s and self._client_steps < CLIENT_STEPS:
            self._client_steps += 1
            self._active_s = now_s
            return Due.CLIENT
        if silent_s <= limits.idle_s:
            return Due.NOTHING
        if self.step >= limits.prompts:
            return Due.GOODBYE
        self.step += 1
        self._active_s = now_s
        return Due.PROMPT
