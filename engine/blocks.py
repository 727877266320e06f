"""The block pool: who may write where in the KV cache.

A block is exactly one of
    free     on the free list
    held     referenced by at least one handle (a request's table, a pin, a pending copy)
    cached   owned by the prefix cache and referenced by no handle: evictable
    fenced   owned by nobody, but a step in flight may still touch it

so that free + cached + held + fenced == total after every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import CapacityError, InternalError
from engine.free_blocks import FreeBlocks


@dataclass(frozen=True, slots=True)
class PoolCounts:
    free: int
    cached: int
    held: int
    fenced: int
    total: int


class BlockPool:
    """Fixed-size blocks with reference counts, a free list and a step fence. Not thread-safe."""

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise CapacityError("the KV cache has no room for a single block")
        self._refs = [0] * n_blocks
        self._left = [0] * n_blocks  # steps launched when the last handle let go of a cached block
        self._in_cache = bytearray(n_blocks)
        self._free = FreeBlocks(n_blocks)
        self._fenced: deque[tuple[int, int]] = deque()  # (step that must retire first, block)
        self._launched = 0
        self._retired = 0
        self._n_cached = 0
        self._n_held = 0

    @property
    def n_total(self) -> int:
        return len(self._refs)

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_cached(self) -> int:
        return self._n_cached

    @property
    def n_held(self) -> int:
        return self._n_held

    @property
    def n_fenced(self) -> int:
        return len(self._fenced)

    def counts(self) -> PoolCounts:
        return PoolCounts(self.n_free, self._n_cached, self._n_held, self.n_fenced, self.n_total)

    def refs(self, block: int) -> int:
        """Handles that reference the block."""
        return self._refs[block]

    def is_cached(self, block: int) -> bool:
        """Whether the prefix cache owns the block (held or not)."""
        return bool(self._in_cache[block])

    # handles

    def allocate(self, n: int, after: int | None = None) -> list[int]:
        """Take `n` free blocks, each with one reference. Raises `CapacityError`, taking none.

        after: the block that they follow in a table, so that they can lie next to it.
        """
        if n > len(self._free):
            raise CapacityError(f"{n} blocks wanted, {len(self._free)} free")
        taken = []
        for _ in range(n):
            after = self._free.take(after)
            self._refs[after] = 1
            taken.append(after)
        self._n_held += n
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """Add a reference to blocks that are held or cached."""
        for block in blocks:
            if self._refs[block] == 0:
                if not self._in_cache[block]:
                    raise InternalError(f"block {block} is nobody's: it cannot be retained")
                self._n_cached -= 1
                self._n_held += 1
            self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Drop a reference; the last one makes the block cached, fenced or free."""
        for block in blocks:
            if self._refs[block] <= 0:
                raise InternalError(f"block {block} released more often than retained")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._n_held -= 1
                if self._in_cache[block]:
                    self._n_cached += 1
                    self._left[block] = self._launched
                else:
                    self._return(block, self._launched)

    # the prefix cache

    def adopt(self, block: int) -> None:
        """The prefix cache becomes an owner of a held block."""
        if self._in_cache[block] or self._refs[block] == 0:
            raise InternalError(f"block {block} cannot enter the cache")
        self._in_cache[block] = 1

    def disown(self, block: int) -> None:
        """The prefix cache gives the block up; without handles it is fenced or free."""
        if not self._in_cache[block]:
            raise InternalError(f"block {block} is not in the cache")
        self._in_cache[block] = 0
        if self._refs[block] == 0:
            self._n_cached -= 1
            self._return(block, self._left[block])

    # the step fence

    @property
    def in_flight(self) -> bool:
        """Whether a step is launched and not retired."""
        return self._launched > self._retired

    def launch(self) -> int:
        """A step that may touch any block has started; returns its number."""
        self._launched += 1
        return self._launched

    def retire(self, step: int) -> None:
        """Step `step` and all before it are done: what was freed under them becomes free."""
        if not self._retired < step <= self._launched:
            raise InternalError(f"step {step} retired out of order")
        self._retired = step
        while self._fenced and self._fenced[0][0] <= step:
            self._free.add(self._fenced.popleft()[1])

    def _return(self, block: int, last: int) -> None:
        """Nobody's any more; `last` is the latest step that may touch it."""
        if last > self._retired:
            self._fenced.append((self._launched, block))
        else:
            self._free.add(block)

    # integrity

    def check(self) -> None:
        """Raise `InternalError` unless every block is in exactly one state. O(blocks)."""
        owner = ["" for _ in self._refs]
        for name, blocks in (("free", self._free), ("fenced", [b for _, b in self._fenced])):
            for block in blocks:
                if owner[block]:
                    raise InternalError(f"block {block} is {owner[block]} and {name}")
                owner[block] = name
        held = cached = 0
        for block, refs in enumerate(self._refs):
            if refs < 0:
                raise InternalError(f"block {block} has {refs} references")
            if refs or self._in_cache[block]:
                if owner[block]:
                    raise InternalError(f"block {block} is {owner[block]} and in use")
                held += refs > 0
                cached += refs == 0
            elif not owner[block]:
                raise InternalError(f"block {block} is lost")
        if (held, cached) != (self._n_held, self._n_cached):
            raise InternalError(f"counts drifted: {self.counts()} but {held=} {cached=}")
