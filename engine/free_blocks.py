"""The free blocks, handed out as neighbours where that is possible.

A processor reads blocks that lie side by side two to three times as fast as scattered ones, so a
request goes on where its last block ends, and begins where a run of eight is free. Nothing is
reserved: as long as one block is free, somebody can have it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

RUN = 8
"""Blocks of an aligned run."""


class FreeBlocks:
    """A set of block numbers; all operations but iteration take constant time."""

    def __init__(self, n_blocks: int) -> None:
        self._is_free = bytearray(b"\1") * n_blocks
        self._sizes = [min(RUN, n_blocks - first) for first in range(0, n_blocks, RUN)]
        self._counts = list(self._sizes)  # free blocks per run
        self._whole = OrderedDict.fromkeys(range(len(self._sizes)))  # runs, longest free first
        self._broken: OrderedDict[int, None] = OrderedDict()  # runs of which some are free
        self._n = n_blocks

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[int]:
        return (block for block, free in enumerate(self._is_free) if free)

    def take(self, after: int | None) -> int:
        """Remove and return one, the block next to `after` if it is free. KeyError: none is."""
        if after is not None and after + 1 < len(self._is_free) and self._is_free[after + 1]:
            block = after + 1
        elif self._whole:
            block = next(iter(self._whole)) * RUN
        elif self._broken:
            block = self._is_free.index(1, next(iter(self._broken)) * RUN)
        else:
            raise KeyError("no block is free")
        self._is_free[block] = 0
        self._n -= 1
        self._count(block // RUN, -1)
        return block

    def add(self, block: int) -> None:
        """Put one back that was taken."""
        self._is_free[block] = 1
        self._n += 1
        self._count(block // RUN, 1)

    def _count(self, run: int, change: int) -> None:
        self._counts[run] += change
        count = self._counts[run]
        for runs, belongs in (
            (self._whole, count == self._sizes[run]),
            (self._broken, 0 < count < self._sizes[run]),
        ):
            if not belongs:
                runs.pop(run, None)
            elif run not in runs:
                runs[run] = None
