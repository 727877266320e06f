"""How many KV blocks the admitted requests may need at worst, all together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """One request: tokens known, tokens it may still add, leading blocks shared with others."""

    known: int
    to_come: int
    n_shared: int


def future_peak(n_shared: int, demands: Iterable[Demand], block_size: int) -> int:
    """Blocks in use at the worst later moment, `n_shared` distinct shared ones included.

    Requests end in the order of what they still may add; just before the i-th longest ends, i
    requests have each grown by its remainder. O(requests * block_size).
    """
    ordered = sorted(demands, key=lambda d: -d.to_come)
    peak = whole = 0
    tails = [0] * block_size  # requests by tokens in their last, unfinished block
    for demand in ordered:
        blocks, tail = divmod(demand.known, block_size)
        whole += blocks - demand.n_shared
        tails[tail] += 1
        grown = sum(n * -(-(t + demand.to_come) // block_size) for t, n in enumerate(tails) if n)
        peak = max(peak, whole + grown)
    return n_shared + peak
