"""When a partial transcript is worth its milliseconds. Pure; positions are samples of media time.

While our agent speaks: `barge_in_ms` after the onset, to tell an interruption from "mm-hm", and
while that is still undecided twice more `again_ms` apart, then ever less often.
At every VAD pause: that pass becomes the final if the caller is done. Else: when `interval_s` of
new voice has come since the last pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from voice_agent.types import IN_RATE

BARGE_IN_PASSES = 3  # at even distances


class Why(StrEnum):
    """Reason of a pass, for the trace."""

    BARGE_IN = "barge_in"
    INTERVAL = "interval"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True)
class PartialConfig:
    """first_s: voice before the first timed pass; interval_s: new voice before each further one."""

    first_s: float = 1.5
    interval_s: float = 1.5
    barge_in_ms: int = 350
    again_ms: int = 350

    def __post_init__(self) -> None:
        if min(self.first_s, self.interval_s) <= 0 or min(self.barge_in_ms, self.again_ms) < 0:
            raise ValueError("intervals must be positive")


class PartialPolicy:
    """One utterance's schedule. Call `begin` at ONSET, `due` for each window, `pause` at PAUSE."""

    def __init__(self, config: PartialConfig | None = None) -> None:
        self._config = config or PartialConfig()
        self.stretch = 1.0  # > 1 under load: longer intervals, never while our agent speaks
        self.n_partials = 0
        self.begin(0)

    def begin(self, onset_sample: int) -> None:
        """A new utterance whose first voiced sample is `onset_sample`."""
        self._onset = onset_sample
        self._seen = onset_sample  # voice up to here is in some pass
        self._new_voice = 0  # voiced samples after it
        self._timed = 0
        self._n_asked = 0  # passes for a verdict on speech over ours
        self.n_partials = 0

    def due(
        self, start_sample: int, end_sample: int, *, voiced: bool, agent_speaking: bool
    ) -> Why | None:
        """Whether to start a pass now that the window [start, end) was heard. A yes counts as
        done."""
        if voiced:
            self._new_voice += end_sample - max(start_sample, self._seen)
        if agent_speaking:
            later = max(0, self._n_asked - BARGE_IN_PASSES + 1)
            apart = self._n_asked - later + 2 * (2**later - 1)
            wait_ms = self._config.barge_in_ms + apart * self._config.again_ms
            if self._elapsed_ms(end_sample) < wait_ms:
                return None
            self._n_asked += 1
            return self._passed(end_sample, Why.BARGE_IN)
        wait_s = self._config.interval_s if self._timed else self._config.first_s
        if self._new_voice < wait_s * self.stretch * IN_RATE:
            return None
        self._timed += 1
        return self._passed(end_sample, Why.INTERVAL)

    def pause(self, last_voiced_sample: int, at_sample: int) -> Why | None:
        """At a VAD pause: a pass, unless the last one already heard all of the voice."""
        if last_voiced_sample <= self._seen:
            return None
        return self._passed(at_sample, Why.PAUSE)

    def _elapsed_ms(self, end_sample: int) -> float:
        return (end_sample - self._onset) * 1000 / IN_RATE

    def _passed(self, end_sample: int, why: Why) -> Why:
        self._seen = end_sample
        self._new_voice = 0
        self.n_partials += 1
        return why
