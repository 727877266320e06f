"""Pins: cached prefixes that eviction leaves alone, for a time and within a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.blocks import BlockPool


class Tally:
    """Distinct blocks and how many handles name each."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, blocks: Sequence[int]) -> None:
        counts = self._counts
        for block in blocks:
            counts[block] = counts.get(block, 0) + 1

    def remove(self, blocks: Sequence[int]) -> None:
        counts = self._counts
        for block in blocks:
            if counts[block] == 1:
                del counts[block]
            else:
                counts[block] -= 1

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, block: int) -> bool:
        return block in self._counts

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def count(self, block: int) -> int:
        return self._counts.get(block, 0)


@dataclass(slots=True)
class Pin:
    """`blocks`: the whole path, so that nothing above what is pinned can be evicted."""

    key: str
    call: str | None
    blocks: tuple[int, ...]
    ttl_s: float
    used_s: float = field(default=0.0)


class Pins:
    """Each pin holds a reference on its blocks. Not thread-safe."""

    def __init__(self, pool: BlockPool, max_blocks: int) -> None:
        self.pool = pool
        self.max_blocks = max_blocks
        self.n_lapsed = 0
        self.n_refused = 0
        self.shared = Tally()
        """Blocks that pins hold or that open block tables took from the cache; see KvCache."""
        self._blocks = Tally()
        self._pins: dict[str, Pin] = {}
        self._by_tip: dict[int, set[str]] = {}  # a pin's deepest block -> keys

    def __contains__(self, key: str) -> bool:
        return key in self._pins

    @property
    def n_blocks(self) -> int:
        """Distinct blocks that pins hold."""
        return len(self._blocks)

    def blocks(self) -> Iterator[int]:
        return iter(self._blocks)

    def refuses(self, block: int) -> bool:
        """Whether the block may not be evicted; to ask for a pinned one is a bug, and counted."""
        self.n_refused += block in self._blocks
        return block in self._blocks

    def paths(self) -> Iterator[tuple[int, ...]]:
        """Each pin's blocks: the references that pins account for."""
        return (pin.blocks for pin in self._pins.values())

    def add(
        self, key: str, call: str | None, blocks: Sequence[int], ttl_s: float, now: float
    ) -> bool:
        """Pin a path that is cached, in place of an earlier pin of the key.

        False if it alone is over the budget, or empty.
        """
        self.pool.retain(blocks)  # before the old pin lets go
        self.remove(key)
        if not blocks:
            return False
        pin = Pin(key, call, tuple(blocks), ttl_s, now)
        self._pins[key] = pin
        self._by_tip.setdefault(pin.blocks[-1], set()).add(key)
        self._blocks.add(pin.blocks)
        self.shared.add(pin.blocks)
        self._enforce_budget(keep=key)
        return key in self._pins

    def remove(self, key: str) -> bool:
        """Let go; False if there was no such pin (it may have lapsed)."""
        pin = self._pins.pop(key, None)
        if pin is None:
            return False
        keys = self._by_tip[pin.blocks[-1]]
        keys.discard(key)
        if not keys:
            del self._by_tip[pin.blocks[-1]]
        self._blocks.remove(pin.blocks)
        self.shared.remove(pin.blocks)
        self.pool.release(pin.blocks[::-1])
        return True

    def remove_call(self, call: str) -> None:
        for key in [pin.key for pin in self._pins.values() if pin.call == call]:
            self.remove(key)

    def touch(self, block: int, now: float) -> None:
        """A request uses this block: the pins that end there count as used."""
        for key in self._by_tip.get(block, ()):
            self._pins[key].used_s = now

    def expire(self, now: float) -> None:
        """Drop the pins that nobody used for their time to live."""
        for key in [p.key for p in self._pins.values() if now - p.used_s > p.ttl_s]:
            self.remove(key)

    def lapse_one(self) -> bool:
        """Drop the longest idle pin (counted), one without time limit last; False if none."""
        if not self._pins:
            return False
        self.remove(min(self._pins.values(), key=_lapse_order).key)
        self.n_lapsed += 1
        return True

    def clear(self) -> None:
        for key in list(self._pins):
            self.remove(key)

    def _enforce_budget(self, keep: str) -> None:
        while self.n_blocks > self.max_blocks:
            others = [p for p in self._pins.values() if p.key != keep]
            self.remove(min(others, key=_lapse_order).key if others else keep)
            self.n_lapsed += 1


def _lapse_order(pin: Pin) -> tuple[bool, float]:
    return pin.ttl_s == math.inf, pin.used_s
