"""What one request's stream looked like from outside, and what many of them add up to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtest.report import quantile


@dataclass(slots=True)
class Reply:
    """Times in seconds of one clock. `times`: one per delivered piece; a piece may be tokens.

    first_text_s: the first piece with text in it, as a caller would hear it.
    """

    sent_s: float
    times: list[float] = field(default_factory=list)
    first_text_s: float | None = None
    n_tokens: int = 0
    n_cached: int = 0
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_text_s is None else self.first_text_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times)]

    @property
    def normalised_s(self) -> float | None:
        """Completion time / tokens, as the PagedAttention paper (arXiv 2309.06180) counts it."""
        if not self.times or not self.n_tokens:
            return None
        return (self.times[-1] - self.sent_s) / self.n_tokens


def tail(values: Sequence[float]) -> dict[str, Any]:
    """n, p50, p95, p99, max; `few` names the percentiles with n < 10 / (1 - p): orientation."""
    if not values:
        return {"n": 0, "p50": None, "p95": None, "p99": None, "max": None, "few": []}
    n = len(values)
    out: dict[str, Any] = {"n": n}
    out |= {name: quantile(values, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    out["max"] = max(values)
    out["few"] = [name for name, q in (("p95", 0.95), ("p99", 0.99)) if n < 10 / (1 - q) - 1e-9]
    return out


def summary(replies: Sequence[Reply]) -> dict[str, Any]:
    """Milliseconds, but for `tokens_per_s`: all tokens, from the first send to the last token."""
    good = [r for r in replies if not r.error and r.times]
    tokens = sum(r.n_tokens for r in good)
    seconds = 0.0
    if good:
        seconds = max(r.times[-1] for r in good) - min(r.sent_s for r in good)
    return {
        "requests": len(replies),
        "failed": sorted({r.error for r in replies if r.error}),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds else 0.0,
        "ttft_ms": tail([1000 * r.ttft_s for r in good if r.ttft_s is not None]),
        "gap_ms": tail([1000 * gap for r in good for gap in r.gaps_s]),
        "normalised_ms": tail([1000 * r.normalised_s for r in good if r.normalised_s is not None]),
        "cached_tokens": sum(r.n_cached for r in good),
    }


def pooled(rounds: Sequence[Sequence[Reply]]) -> dict[str, Any]:
    """`summary` over repeated rounds: tokens and seconds add up, percentiles see all replies."""
    every = [summary(replies) for replies in rounds]
    out = summary([r for replies in rounds for r in replies])
    out["seconds"] = sum(s["seconds"] for s in every)
    out["tokens_per_s"] = out["tokens"] / out["seconds"] if out["seconds"] else 0.0
    out["tokens_per_s_rounds"] = [s["tokens_per_s"] for s in every]
    return out


def ms(stats: dict[str, Any], name: str) -> str:
    """A percentile for a table; `~` before one that too few values support."""
    value = stats[name]
    if value is None:
        return "-"
    digits = 0 if value >= 100 else 1
    return f"{'~' if name in stats['few'] else ''}{value:.{digits}f}"
