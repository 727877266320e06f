"""Whether one more request fits the KV cache at the worst moment of all that are admitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.headroom import Demand, future_peak
from engine.kvcache import KvCache
from engine.request import Request


class Admission:
    """Judges the newcomers of one planning pass; the admitted ones are looked at once for it.

    `growth` is the share of `max_tokens` that a reply is expected to use.
    """

    def __init__(self, kv: KvCache, growth: float, running: Iterable[Request]) -> None:
        self._kv = kv
        self._growth = growth
        self._demands: list[Demand] = []
        self._together = 0  # private blocks if all were at their longest at once
        for request in running:
            assert request.table is not None
            self._count(self._demand(request, request.table.n_shared))

    def fits(self, request: Request, hit: Sequence[int]) -> bool:
        """Whether the request, with the cached blocks of `hit`, may be admitted."""
        size, total = self._kv.block_size, self._kv.pool.n_total
        shared = self._kv.pins.shared
        n_shared = len(shared) + sum(1 for block in hit if block not in shared)
        demand = self._demand(request, len(hit))
        if n_shared + self._together + _longest(demand, size) <= total:
            return True  # no need to ask who ends first
        return future_peak(n_shared, [*self._demands, demand], size) <= total

    def admit(self, request: Request) -> None:
        """Count a newcomer that `fits` let in."""
        assert request.table is not None
        self._count(self._demand(request, request.table.n_shared))

    def _count(self, demand: Demand) -> None:
        self._demands.append(demand)
        self._together += _longest(demand, self._kv.block_size)

    def _demand(self, request: Request, n_shared: int) -> Demand:
        to_come = 0
        if not request.prefill_only and not request.held:
            to_come = int((request.max_new - request.n_output) * self._growth)
        return Demand(request.known, to_come, n_shared)


def _longest(demand: Demand, block_size: int) -> int:
    return -(-(demand.known + demand.to_come) // block_size) - demand.n_shared
