"""What noise may cost: passes that find no words are rationed, for each call and all together.

The voice detector takes some noise for speech, and every such start asks for passes. A call whose
passes find nothing, one after the other, is a suspect: its passes come after everybody's finals and
are spread out, so that they take at most `SHARE` of the recogniser's time. A call that never said a
word shares one such ration with all that never did; a pass for which there is none is skipped,
unless what it would hear is surely voice. The first word ends all suspicion.
"""

from __future__ import annotations

from voice_agent.clock import Clock
from voice_agent.service_time import ServiceTime

SHARE = 0.05
_RATE, BURST_S = 0.04, 0.4
"""Seconds a second, and at once: together no more than `SHARE` of any minute."""
SUSPECT_AT = 2
"""Passes in a row without a word."""
PATIENCE_S = 2.0
"""A pass that would have to wait longer for its ration is skipped."""
YIELD_S = 2.0
"""So much later than asked for is a suspect's pass due."""


class Ration:
    """Work that may begin when what was begun before it has been paid for, `_RATE` a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._paid_s = float("-inf")  # all that was spent is paid for by then

    @property
    def wait_s(self) -> float:
        return max(0.0, self._paid_s - BURST_S / _RATE - self._clock.now())

    def spend(self, work_s: float) -> None:
        self._paid_s = max(self._paid_s, self._clock.now()) + work_s / _RATE

    def clear(self) -> None:
        self._paid_s = float("-inf")


class NoiseWatch:
    """Shared by all calls: the common ration, and the counts for /metrics. On the event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.common = Ration(clock)
        self.false_starts = 0
        """Utterances in which no word was found."""
        self.wordless_s = 0.0
        """Recogniser's time for passes that found no word."""
        self.delayed = self.skipped = 0
        self.pass_s = ServiceTime()

    def open_call(self) -> CallNoise:
        return CallNoise(self)

    def gauges(self) -> dict[str, float]:
        return {
            "vad_false_starts_total": float(self.false_starts),
            "stt_wordless_seconds_total": self.wordless_s,
            "stt_noise_delayed_total": float(self.delayed),
            "stt_noise_skipped_total": float(self.skipped),
        }


class CallNoise:
    """One call's part: what its passes found, and when the next one may be."""

    def __init__(self, shared: NoiseWatch) -> None:
        self._shared = shared
        self._own = Ration(shared.clock)
        self._in_a_row = 0
        self._ever_spoke = False
        self._claimed_s = 0.0

    @property
    def suspect(self) -> bool:
        return self._in_a_row >= SUSPECT_AT

    def heard(self, words: bool, work_s: float) -> None:
        """A pass is over and took `work_s`."""
        self._shared.pass_s.note(work_s)
        claimed_s, self._claimed_s = self._claimed_s, 0.0
        if words:
            self._in_a_row, self._ever_spoke = 0, True
            self._own.clear()
            return
        for ration in self._rations():
            ration.spend(work_s - claimed_s)
        self._in_a_row += 1
        self._shared.wordless_s += work_s

    def distrust(self) -> None:
        """What was taken for words was none."""
        self._in_a_row, self._ever_spoke = max(self._in_a_row, SUSPECT_AT), False

    def over(self, words: bool) -> None:
        """An utterance has ended."""
        self._shared.false_starts += not words

    def claim(self, *, patient: bool) -> float | None:
        """Seconds that a pass has to wait for; None: it is not to be made.

        patient: it may wait at all. What is claimed is spent, so that of many who ask at once few
        wait for the same.
        """
        rations, work_s = self._rations(), self._shared.pass_s.seconds()
        wait_s = max((ration.wait_s for ration in rations), default=0.0) if self.suspect else 0.0
        if wait_s > (PATIENCE_S if patient else 0.0):
            self._shared.skipped += 1
            return None
        for ration in rations:
            ration.spend(work_s)
        self._claimed_s += work_s
        self._shared.delayed += wait_s > 0.0
        return wait_s

    def _rations(self) -> list[Ration]:
        alone = self._ever_spoke or not self.suspect
        return [self._own] if alone else [self._own, self._shared.common]
