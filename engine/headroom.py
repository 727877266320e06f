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
    at_least = [0] * (block_size + 1)  # requests with so many tokens in their unfinished block
    for n, demand in enumerate(ordered, 1):
        blocks, tail = divmod(demand.known, block_size)
        whole += blocks - demand.n_shared
        for t in range(1, tail + 1):
            at_least[t] += 1
        more, rest = divmod(demand.to_come, block_size)
        # tail + rest tokens fill no further block, one, or two
        grown = n * more + (n + at_least[block_size - rest + 1] if rest else at_least[1])
        peak = max(peak, whole + grown)
    return n_shared + peak
