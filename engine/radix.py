"""The radix prefix cache: a tree of KV blocks, one root per tenant.

    root(tenant) -> [16 tokens] -> [16 tokens] -> [5 tokens]     a leaf may be partly filled
                               \\-> [16 tokens]
                               \\-> call 7: [16 tokens] -> [9 tokens]

An edge is keyed by the block's tokens themselves, so a match compares tokens, never only a hash.
What a call computes hangs, for that call alone, below the part of the tree that its tenant shares,
and is freed when the call is forgotten. A handle (a request or a pin) holds a reference on every
block of its path: a held node's ancestors are held too, so the evictable blocks are exactly the
pool's cached ones. The idea is SGLang's RadixAttention (arXiv 2312.07104), kept to whole blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from engine.errors import InternalError
from engine.pins import Pins
from engine.prefix import Entry, Match, PartialHit, Scope, common_prefix


class Node(Entry):
    """One cached block and the tokens whose keys and values its rows hold."""

    __slots__ = ("alive", "call", "children", "depth", "last_used", "parent", "tokens")

    def __init__(
        self, parent: Node | None, call: str | None, tokens: tuple[int, ...], block: int
    ) -> None:
        super().__init__(block)
        self.parent = parent
        self.call = call
        self.tokens = tokens
        self.depth: int = 0 if parent is None else parent.depth + 1
        # (whose, first token) -> all tokens -> child: a partial match looks at few siblings
        self.children: dict[tuple[str | None, int], dict[tuple[int, ...], Node]] = {}
        self.last_used = 0
        self.alive = True


class RadixCache:
    """See `PrefixCache`. Not thread-safe."""

    keeps_tails = True

    def __init__(self, pins: Pins, block_size: int) -> None:
        self.block_size = block_size
        self.pins = pins
        self.n_evicted = 0
        self._pool = pins.pool
        self._roots: dict[str, Node] = {}
        self._own: dict[str, set[Node]] = {}  # call -> its nodes
        self._tick = 0
        self._n_nodes = 0
        self._leaves: list[tuple[int, int, int, Node]] = []  # lazy heap, see _offer
        self._n_offers = 0

    # lookup

    def root(self, tenant: str) -> Node:
        node = self._roots.get(tenant)
        if node is None:
            node = self._roots[tenant] = Node(None, None, (), -1)
        return node

    def match(self, scope: Scope, tokens: Sequence[int], limit: int, now: float) -> Match:
        self._tick += 1
        path = self._walk(scope, tokens, limit)
        for node in path:
            self._touch(node, now)
        at = len(path) * self.block_size
        tip = path[-1] if path else self.root(scope.tenant)
        partial = self._partial(tip, scope, tokens[at : min(limit, at + self.block_size)], now)
        return Match(tuple(path), partial, at + (partial.n_rows if partial else 0))

    def _walk(self, scope: Scope, tokens: Sequence[int], limit: int) -> list[Node]:
        """The longest path of whole blocks: shared as far as some point, then the call's own."""
        root = self.root(scope.tenant)
        best = shared = self._descend(root, None, tokens, 0, limit)
        if scope.call in self._own:
            for n in range(len(shared), -1, -1):
                start = shared[n - 1] if n else root
                own = self._descend(start, scope.call, tokens, n * self.block_size, limit)
                if n + len(own) > len(best):
                    best = shared[:n] + own
        return best

    def _descend(
        self, node: Node, call: str | None, tokens: Sequence[int], at: int, limit: int
    ) -> list[Node]:
        path, size = [], self.block_size
        while at + size <= limit:
            siblings = node.children.get((call, tokens[at]))
            child = siblings.get(tuple(tokens[at : at + size])) if siblings else None
            if child is None:
                break
            path.append(child)
            node, at = child, at + size
        return path

    def _partial(
        self, node: Node, scope: Scope, rest: Sequence[int], now: float
    ) -> PartialHit | None:
        best, best_rows = None, 0
        for call in _visible(scope) if rest else ():
            for tokens, child in node.children.get((call, rest[0]), {}).items():
                rows = common_prefix(tokens, rest)
                if rows > best_rows:
                    best, best_rows = child, rows
        if best is None:
            return None
        self._touch(best, now)
        return PartialHit(best.block, best_rows)

    def _touch(self, node: Node, now: float) -> None:
        node.last_used = self._tick
        self.pins.touch(node.block, now)
        if not node.children:
            self._offer(node)

    # locks

    def lock(self, match: Match) -> list[int]:
        blocks = match.blocks
        self._pool.retain(blocks)
        return blocks

    def unlock(self, blocks: Sequence[int]) -> None:
        self._pool.release(blocks[::-1])

    # growth

    def insert(self, scope: Scope, parent: Entry | None, tokens: Sequence[int], block: int) -> Node:
        node = self.root(scope.tenant) if parent is None else parent
        key = tuple(tokens)
        if not isinstance(node, Node) or not node.alive or not 0 < len(key) <= self.block_size:
            raise InternalError("a cache entry needs 1..block_size tokens and a live parent")
        self._tick += 1
        for call in _visible(scope):
            found = self._standing(node, call, key, mine=call == scope.call)
            if found is not None:
                self._mark_used(found)
                return found
        child = Node(node, scope.call, key, block)
        self._pool.adopt(block)
        node.children.setdefault((scope.call, key[0]), {})[key] = child
        self._n_nodes += 1
        if scope.call is not None:
            self._own.setdefault(scope.call, set()).add(child)
        self._mark_used(child)
        return child

    def _standing(
        self, node: Node, call: str | None, key: tuple[int, ...], *, mine: bool
    ) -> Node | None:
        """The child that serves every match `key` could; shorter tails of ours make way for it."""
        siblings = node.children.get((call, key[0]), {})
        found = siblings.get(key)
        if found is not None:
            return found
        for tokens, sibling in list(siblings.items()):
            rows = common_prefix(tokens, key)
            if rows == len(key):
                return sibling
            if mine and rows == len(tokens) and self._pool.refs(sibling.block) == 0:
                self._remove(sibling)
        return None

    def _mark_used(self, node: Node) -> None:
        node.last_used = self._tick
        if not node.children:
            self._offer(node)

    # pins

    def pin(self, key: str, scope: Scope, tokens: Sequence[int], ttl_s: float, now: float) -> int:
        path = self._path(scope, tokens)
        blocks = [node.block for node in path]
        pinned = self.pins.add(key, scope.call, blocks, ttl_s, now)
        return sum(len(node.tokens) for node in path) if pinned else 0

    def _path(self, scope: Scope, tokens: Sequence[int]) -> list[Node]:
        """The cached path of `tokens`, its unfinished tail included."""
        path = self._walk(scope, tokens, len(tokens))
        tail = tuple(tokens[len(path) * self.block_size :])
        if 0 < len(tail) < self.block_size:
            node = path[-1] if path else self.root(scope.tenant)
            for call in _visible(scope):
                siblings = node.children.get((call, tail[0]), {})
                child = next((c for t, c in siblings.items() if t[: len(tail)] == tail), None)
                if child is not None:
                    return [*path, child]
        return path

    # a call's own

    def drop(self, path: Sequence[Entry]) -> None:
        for node in reversed(path):
            if not isinstance(node, Node) or not self._droppable(node):
                return
            self._remove(node)

    def withdraw(self, entry: Entry) -> bool:
        if not isinstance(entry, Node) or not self._droppable(entry, holders=1):
            return False
        self._remove(entry)
        return True

    def _droppable(self, node: Node, holders: int = 0) -> bool:
        mine = node.alive and node.call is not None
        return mine and not node.children and self._pool.refs(node.block) == holders

    def trim(self, call: str, keep: int) -> None:
        for node in sorted(self._own.get(call, ()), key=lambda node: -node.depth):
            if (node.depth - 1) * self.block_size >= keep and self._droppable(node):
                self._remove(node)

    def forget(self, call: str) -> None:
        self.pins.remove_call(call)
        self.trim(call, 0)

    # eviction

    def evict(self, n: int) -> int:
        """Leaves only, least recently used first, the deepest first among equals."""
        done, held = 0, []
        while done < n and self._leaves:
            entry = heapq.heappop(self._leaves)
            node = entry[3]
            if not _current(entry):
                continue
            if self._pool.refs(node.block):
                held.append(entry)
                continue
            self._remove(node)
            self.n_evicted += 1
            done += 1
        for entry in held:
            heapq.heappush(self._leaves, entry)
        return done

    def clear(self) -> None:
        self.pins.clear()
        self.evict(self._n_nodes)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.children or self.pins.refuses(node.block):
            raise InternalError("only an unpinned leaf may leave the cache")
        key = (node.call, node.tokens[0])
        siblings = parent.children[key]
        del siblings[node.tokens]
        if not siblings:
            del parent.children[key]
        if node.call is not None:
            own = self._own[node.call]
            own.discard(node)
            if not own:
                del self._own[node.call]
        node.alive = False
        self._n_nodes -= 1
        self._pool.disown(node.block)
        if not parent.children and parent.parent is not None:
            self._offer(parent)

    def _offer(self, leaf: Node) -> None:
        """Note a leaf for eviction; entries that a later use made stale are skipped there."""
        self._n_offers += 1
        entry = (leaf.last_used, -leaf.depth, self._n_offers, leaf)
        heapq.heappush(self._leaves, entry)
        if len(self._leaves) > 4 * self._n_nodes + 64:
            live = {id(e[3]): e for e in self._leaves if _current(e)}
            self._leaves = list(live.values())
            heapq.heapify(self._leaves)

    # integrity

    def entries(self) -> Iterator[Node]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            for siblings in node.children.values():
                stack.extend(siblings.values())

    def check(self) -> None:
        seen: set[int] = set()
        offered = {id(entry[3]) for entry in self._leaves if _current(entry)}
        for node in self.entries():
            if node.block in seen or not self._pool.is_cached(node.block):
                raise InternalError(f"block {node.block} is not the cache's alone")
            seen.add(node.block)
            if node.children and len(node.tokens) != self.block_size:
                raise InternalError("a partly filled block has children")
            up = node.parent
            held = self._pool.refs(node.block) > 0
            if held and up is not None and up.block >= 0 and not self._pool.refs(up.block):
                raise InternalError("a held block hangs under one that nobody holds")
            if up is not None and up.call not in (None, node.call):
                raise InternalError(f"block {node.block} hangs under another call's")
            if node.call is not None and node not in self._own.get(node.call, ()):
                raise InternalError(f"block {node.block} would outlive its call")
            if not node.children and id(node) not in offered:
                raise InternalError(f"leaf block {node.block} can never be evicted")
        if len(seen) != self._n_nodes:
            raise InternalError(f"{len(seen)} nodes reachable, {self._n_nodes} counted")


def _visible(scope: Scope) -> tuple[str | None, ...]:
    """Whose entries a scope sees: its tenant's shared ones, then its own."""
    return (None,) if scope.call is None else (None, scope.call)


def _current(entry: tuple[int, int, int, Node]) -> bool:
    node = entry[3]
    return node.alive and not node.children and node.last_used == entry[0]
