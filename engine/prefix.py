"""What a prefix cache is to the KV cache: three kinds behind one small interface.

radix: a tree of blocks, a hit is exact to the token (engine/radix.py). block-hash: a table of whole
blocks by chained hash (engine/block_hash.py). none: nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from engine.pins import Pins

PrefixKind = Literal["radix", "block-hash", "none"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Who may see what is computed: everybody of the tenant, or (`call`) that call alone.

    A call also sees what its tenant shares; its own entries hang below that.
    """

    tenant: str = "default"
    call: str | None = None


class Entry:
    """One cached block. Each kind of cache has its own subclass."""

    __slots__ = ("block",)

    def __init__(self, block: int) -> None:
        self.block = block


@dataclass(frozen=True, slots=True)
class PartialHit:
    """The first `n_rows` rows of `block` continue the match; copy them, never share them."""

    block: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Match:
    """`path`: the whole hits in order. `n_tokens` covers the partial hit's rows too."""

    path: tuple[Entry, ...]
    partial: PartialHit | None
    n_tokens: int

    @property
    def blocks(self) -> list[int]:
        return [entry.block for entry in self.path]


class PrefixCache(Protocol):
    """Match, insert, lock, pin and evict. Every method runs on the engine thread."""

    pins: Pins
    n_evicted: int
    keeps_tails: bool
    """Whether a partly filled block may be inserted."""

    def match(self, scope: Scope, tokens: Sequence[int], limit: int, now: float) -> Match:
        """The longest cached prefix of `tokens[:limit]`; refreshes the pins it meets."""
        ...

    def lock(self, match: Match) -> list[int]:
        """Reference the whole hits; the caller's block table starts with them."""
        ...

    def unlock(self, blocks: Sequence[int]) -> None:
        """Drop a handle's references to the leading-to-deepest `blocks`."""
        ...

    def insert(
        self, scope: Scope, parent: Entry | None, tokens: Sequence[int], block: int
    ) -> Entry:
        """Keep one computed block below `parent` (None: it is the first).

        The caller holds `block` and all blocks before it. The entry returned may hold another
        block if the same tokens were cached already: then the caller should use that one.
        """
        ...

    def pin(self, key: str, scope: Scope, tokens: Sequence[int], ttl_s: float, now: float) -> int:
        """Keep the cached prefix of `tokens` until `unpin`, the TTL, or the pin budget ends it.

        Replaces an earlier pin of the same key. Returns the number of tokens now pinned.
        """
        ...

    def drop(self, path: Sequence[Entry]) -> None:
        """Free a call's own entries that nobody holds, from the deepest of `path` upwards."""
        ...

    def withdraw(self, entry: Entry) -> bool:
        """Stop showing a call's own block, so that its one holder may write to it again."""
        ...

    def trim(self, call: str, keep: int) -> None:
        """Free a call's own entries that nobody holds and that begin at or after token `keep`."""
        ...

    def forget(self, call: str) -> None:
        """The call is over and holds nothing: free its own entries and its pins."""
        ...

    def evict(self, n: int) -> int:
        """Free up to `n` blocks that nobody holds, least recently used first; how many it was."""
        ...

    def clear(self) -> None:
        """Unpin and evict everything that no request holds."""
        ...

    def check(self) -> None:
        """Raise `InternalError` if the cache and the pool disagree. O(entries)."""
        ...

    def entries(self) -> Iterator[Entry]: ...


class NoCache:
    """Keeps nothing: what a request computes is gone when it ends."""

    keeps_tails = False

    def __init__(self, pins: Pins) -> None:
        self.pins = pins
        self.n_evicted = 0

    def match(self, scope: Scope, tokens: Sequence[int], limit: int, now: float) -> Match:
        return Match((), None, 0)

    def lock(self, match: Match) -> list[int]:
        return []

    def unlock(self, blocks: Sequence[int]) -> None:
        self.pins.pool.release(blocks)

    def insert(
        self, scope: Scope, parent: Entry | None, tokens: Sequence[int], block: int
    ) -> Entry:
        return Entry(block)

    def pin(self, key: str, scope: Scope, tokens: Sequence[int], ttl_s: float, now: float) -> int:
        return 0

    def drop(self, path: Sequence[Entry]) -> None: ...

    def withdraw(self, entry: Entry) -> bool:
        return True

    def trim(self, call: str, keep: int) -> None: ...

    def forget(self, call: str) -> None: ...

    def evict(self, n: int) -> int:
        return 0

    def clear(self) -> None: ...

    def check(self) -> None: ...

    def entries(self) -> Iterator[Entry]:
        return iter(())


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
