"""The block-hash prefix cache: a table of whole blocks by the chained hash of their tokens.

vLLM's scheme (its v1 "automatic prefix caching"): a block's key is a SHA-256 over its parent's
key, whose it is and its own tokens; the tokens are compared on a hit as well. There is no tree: a
parent may be evicted before its children, which then wait, unreachable, for its return. A hit is
exact to a whole block only.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from engine.errors import InternalError
from engine.pins import Pins
from engine.prefix import Entry, Match, Scope


class HashedBlock(Entry):
    __slots__ = ("call", "depth", "key", "tokens")

    def __init__(
        self, key: bytes, depth: int, call: str | None, tokens: tuple[int, ...], block: int
    ) -> None:
        super().__init__(block)
        self.depth = depth
        self.key = key
        self.call = call
        self.tokens = tokens


class BlockHashCache:
    """See `PrefixCache`. Not thread-safe."""

    keeps_tails = False

    def __init__(self, pins: Pins, block_size: int) -> None:
        self.block_size = block_size
        self.pins = pins
        self.n_evicted = 0
        self._pool = pins.pool
        self._table: OrderedDict[bytes, HashedBlock] = OrderedDict()  # least recently used first
        self._by_block: dict[int, HashedBlock] = {}
        self._own: dict[str, set[bytes]] = {}  # call -> its keys

    # lookup

    def match(self, scope: Scope, tokens: Sequence[int], limit: int, now: float) -> Match:
        path = self._walk(scope, tokens, limit)
        for entry in reversed(path):
            self._table.move_to_end(entry.key)
            self.pins.touch(entry.block, now)
        return Match(tuple(path), None, len(path) * self.block_size)

    def _walk(self, scope: Scope, tokens: Sequence[int], limit: int) -> list[HashedBlock]:
        path: list[HashedBlock] = []
        size = self.block_size
        for at in range(0, limit - size + 1, size):
            found = self._find(scope, path[-1] if path else None, tuple(tokens[at : at + size]))
            if found is None:
                break
            path.append(found)
        return path

    def _find(
        self, scope: Scope, parent: HashedBlock | None, tokens: tuple[int, ...]
    ) -> HashedBlock | None:
        """The tenant's shared block of these tokens, else the call's own."""
        for call in (None,) if scope.call is None else (None, scope.call):
            found = self._table.get(_key(scope.tenant, call, parent, tokens))
            if found is not None and found.tokens == tokens:
                return found
        return None

    # locks

    def lock(self, match: Match) -> list[int]:
        blocks = match.blocks
        self._pool.retain(blocks)
        return blocks

    def unlock(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # the deepest first, as eviction will go
            entry = self._by_block.get(block)
            if entry is not None:
                self._table.move_to_end(entry.key)
        self._pool.release(blocks[::-1])

    # growth

    def insert(
        self, scope: Scope, parent: Entry | None, tokens: Sequence[int], block: int
    ) -> HashedBlock:
        ids = tuple(tokens)
        if len(ids) != self.block_size or not isinstance(parent, HashedBlock | None):
            raise InternalError("a block is hashed whole, below one of its own kind")
        found = self._find(scope, parent, ids)
        if found is not None:
            return found
        key = _key(scope.tenant, scope.call, parent, ids)
        depth = 0 if parent is None else parent.depth + 1
        entry = HashedBlock(key, depth, scope.call, ids, block)
        self._pool.adopt(block)
        self._table[entry.key] = entry
        self._by_block[block] = entry
        if scope.call is not None:
            self._own.setdefault(scope.call, set()).add(entry.key)
        return entry

    def pin(self, key: str, scope: Scope, tokens: Sequence[int], ttl_s: float, now: float) -> int:
        path = self._walk(scope, tokens, len(tokens))
        blocks = [entry.block for entry in path]
        pinned = self.pins.add(key, scope.call, blocks, ttl_s, now)
        return len(path) * self.block_size if pinned else 0

    # a call's own

    def drop(self, path: Sequence[Entry]) -> None:
        for entry in reversed(path):
            if not isinstance(entry, HashedBlock) or not self._droppable(entry):
                return
            self._remove(entry)

    def withdraw(self, entry: Entry) -> bool:
        if not isinstance(entry, HashedBlock) or not self._droppable(entry, holders=1):
            return False
        self._remove(entry)
        return True

    def _droppable(self, entry: HashedBlock, holders: int = 0) -> bool:
        mine = entry.call is not None and self._table.get(entry.key) is entry
        return mine and self._pool.refs(entry.block) == holders

    def trim(self, call: str, keep: int) -> None:
        for key in list(self._own.get(call, ())):
            entry = self._table[key]
            if entry.depth * self.block_size >= keep and self._droppable(entry):
                self._remove(entry)

    def forget(self, call: str) -> None:
        self.pins.remove_call(call)
        self.trim(call, 0)

    # eviction

    def evict(self, n: int) -> int:
        done = 0
        for _ in range(len(self._table)):
            if done == n:
                break
            key, entry = next(iter(self._table.items()))
            if self._pool.refs(entry.block):
                self._table.move_to_end(key)  # in use: as recent as can be
                continue
            self._remove(entry)
            self.n_evicted += 1
            done += 1
        return done

    def clear(self) -> None:
        self.pins.clear()
        self.evict(len(self._table))

    def _remove(self, entry: HashedBlock) -> None:
        if self.pins.refuses(entry.block):
            raise InternalError("a pinned block may not leave the cache")
        del self._table[entry.key]
        del self._by_block[entry.block]
        if entry.call is not None:
            own = self._own[entry.call]
            own.discard(entry.key)
            if not own:
                del self._own[entry.call]
        self._pool.disown(entry.block)

    # integrity

    def entries(self) -> Iterator[HashedBlock]:
        return iter(self._table.values())

    def check(self) -> None:
        if len(self._by_block) != len(self._table):
            raise InternalError("a block is in the table twice")
        for key, entry in self._table.items():
            if entry.key != key or self._by_block.get(entry.block) is not entry:
                raise InternalError(f"block {entry.block} is filed under another key")
            if not self._pool.is_cached(entry.block):
                raise InternalError(f"block {entry.block} is not the cache's")
            if entry.call is not None and key not in self._own.get(entry.call, ()):
                raise InternalError(f"block {entry.block} would outlive its call")


def _key(
    tenant: str, call: str | None, parent: HashedBlock | None, tokens: tuple[int, ...]
) -> bytes:
    above = parent.key if parent is not None else hashlib.sha256(tenant.encode()).digest()
    digest = hashlib.sha256(above)
    digest.update(b"" if call is None else b"call" + call.encode())
    digest.update(array("q", tokens).tobytes())
    return digest.digest()
