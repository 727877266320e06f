"""A network in virtual time: packets lost, delayed and overtaken, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Arrivals = list[tuple[float, int]]
"""(arrival in ms, packet number), in order of arrival."""


def channel(
    n: int,
    *,
    seed: int,
    loss: float = 0.05,
    delay_ms: float = 50.0,
    jitter_ms: float = 20.0,
    ppm: float = 0.0,
) -> Arrivals:
    """n packets, one each 20 ms of a clock that runs `ppm` slow."""
    rng = random.Random(seed)
    sent = [i for i in range(n) if rng.random() >= loss]
    return sorted(
        (i * 20.0 * (1 + ppm * 1e-6) + delay_ms + rng.uniform(-jitter_ms, jitter_ms), i)
        for i in sent
    )


def stalled(arrivals: Arrivals, at_ms: float, for_ms: float) -> Arrivals:
    """Nothing arrives for a while; then all of it does."""
    until = at_ms + for_ms
    return sorted((until if at_ms <= at < until else at, n) for at, n in arrivals)


def ticks(arrivals: Arrivals, n_ticks: int, arrive: Callable[[int, float], None]) -> Iterator[int]:
    """Every 20 ms of the play clock, once what has come by then was given to `arrive`."""
    i = 0
    for tick in range(n_ticks):
        while i < len(arrivals) and arrivals[i][0] <= tick * 20.0 + 0.5:
            at, n = arrivals[i]
            arrive(n, at)
            i += 1
        yield tick
