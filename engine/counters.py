"""What the engine thread counts as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.histogram import Histogram
from engine.request import Request

CLASSES = ("live", "background")
_RING = 512


def _per_class() -> dict[str, Histogram]:
    return {name: Histogram() for name in CLASSES}


@dataclass(slots=True)
class LoopCounters:
    """Totals since start; read by other threads one integer at a time."""

    steps: int = 0
    tokens: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    wakeups: int = 0
    integrity_failures: int = 0
    grammar_finished: int = 0
    grammar_valid: int = 0
    """Requests with a grammar that ran to an end, and those whose grammar was complete then."""
    abort_steps_max: int = 0
    """Most steps from an abort until the request's blocks were free."""
    kv_slots: int = 0
    kv_slots_used: int = 0
    """Token slots in open block tables and those that hold a token, added up over all steps."""
    step_ms: list[float] = field(default_factory=list)
    """The last steps' durations."""
    step_over_floor: list[float] = field(default_factory=list)
    """The same, each divided by the best time that warm-up found for as many tokens."""
    ttft_s: dict[str, Histogram] = field(default_factory=_per_class)
    """From arrival (or a session's commit) to the first text, by class."""
    token_gap_s: dict[str, Histogram] = field(default_factory=_per_class)
    """Between two tokens of one request, by class."""

    def note_abort(self, steps: int, n_fenced: int) -> None:
        """steps: made since it was asked for; blocks that are still fenced take one more."""
        self.abort_steps_max = max(self.abort_steps_max, steps + (n_fenced > 0))

    def note_step(self, ms: float, floor_ms: float) -> None:
        at = self.steps % _RING
        over = ms / floor_ms if floor_ms > 0.0 else 0.0
        if len(self.step_ms) < _RING:
            self.step_ms.append(ms)
            self.step_over_floor.append(over)
        else:
            self.step_ms[at], self.step_over_floor[at] = ms, over
        self.steps += 1

    def note_output(self, request: Request, text: str, now: float) -> None:
        """A token of the request leaves at `now`."""
        kind = "background" if request.background else "live"
        if request.last_out_s is not None:
            self.token_gap_s[kind].observe(now - request.last_out_s)
        request.last_out_s = now
        if text and not request.heard_from:
            request.heard_from = True
            self.ttft_s[kind].observe(now - request.arrival_s)
