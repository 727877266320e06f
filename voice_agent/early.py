"""How much may be done before the caller has finished: early thinking and voice, and their waste.

Each call has an allowance per minute of what may be thrown away; when it is used up the call works
early no more until half of it has come back. Under load early work stops for everybody, the voice
first and then the model, long before anything else is shed. Nothing here does the work or cancels
it; all on the event loop.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .clock import Clock
from .shedding import Load, Shed

BACK_AT = 0.5  # of an allowance, below which early work may start again


@dataclass(frozen=True, slots=True)
class EarlyLimits:
    """llm, voice: whether there is early work at all. The rest: what a call may waste a minute,
    tokens (generated and unused, prefilled and taken back) and seconds of voice."""

    llm: bool = True
    voice: bool = True
    tokens_per_minute: float = 600.0
    voice_s_per_minute: float = 30.0


class Allowance:
    """A leaky bucket of one minute's waste that refuses from full until half empty."""

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._level = 0.0
        self._at_s = clock.now()
        self._open = per_minute > 0

    def spend(self, amount: float) -> None:
        self._leak()
        self._level += amount
        self._open = self._open and self._level < self._per_minute

    @property
    def open(self) -> bool:
        self._leak()
        if self._level <= self._per_minute * BACK_AT:
            self._open = self._per_minute > 0
        return self._open

    def _leak(self) -> None:
        now = self._clock.now()
        self._level = max(0.0, self._level - (now - self._at_s) * self._per_minute / 60.0)
        self._at_s = now


class EarlyWork:
    """What all calls share: limits, load, and the counts for /metrics."""

    def __init__(self, limits: EarlyLimits, load: Load, clock: Clock) -> None:
        self.limits = limits
        self.load = load
        self.clock = clock
        self.wasted_tokens = 0
        self.wasted_voice_s = 0.0
        self.refused: Counter[str] = Counter()
        """Decisions against early work: `llm_load`, `llm_budget`, `voice_load`, `voice_budget`."""

    def open_call(self) -> CallEarly:
        return CallEarly(self)

    def gauges(self) -> dict[str, float]:
        refused = {
            f"early_refused_{job}_{why}_total": float(self.refused[f"{job}_{why}"])
            for job in ("voice", "llm")
            for why in ("load", "budget")
        }
        return {
            "early_shed": float(min(self.load.shed, Shed.LLM)),
            "early_wasted_tokens_total": float(self.wasted_tokens),
            "early_wasted_voice_seconds_total": self.wasted_voice_s,
            **refused,
        }


class CallEarly:
    """One call's early work: may it start, and what became of it."""

    def __init__(self, shared: EarlyWork) -> None:
        self._shared = shared
        limits, clock = shared.limits, shared.clock
        self._tokens = Allowance(limits.tokens_per_minute, clock)
        self._voice = Allowance(limits.voice_s_per_minute, clock)

    @property
    def thinks(self) -> bool:
        """Whether early work of the model may start; decides nothing."""
        return self._shared.limits.llm and not self._llm_refusal

    def may_think(self) -> str:
        """ "" if the model may start; else why not, counted."""
        if not self._shared.limits.llm:
            return "off"
        return self._count("llm", self._llm_refusal)

    def may_voice(self) -> str:
        """Likewise for the voice of what was thought."""
        if not self._shared.limits.voice:
            return "off"
        why = "load" if self._shared.load.shed >= Shed.VOICE else ""
        return self._count("voice", why or ("" if self._voice.open else "budget"))

    def wasted(self, *, tokens: int = 0, voice_s: float = 0.0) -> None:
        """Early work that nobody will hear."""
        self._tokens.spend(tokens)
        self._voice.spend(voice_s)
        self._shared.wasted_tokens += tokens
        self._shared.wasted_voice_s += voice_s

    @property
    def _llm_refusal(self) -> str:
        if self._shared.load.shed >= Shed.LLM:
            return "load"
        return "" if self._tokens.open else "budget"

    def _count(self, job: str, why: str) -> str:
        if why:
            self._shared.refused[f"{job}_{why}"] += 1
        return why
