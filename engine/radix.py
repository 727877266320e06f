"""The prefix cache: a tree of KV blocks, one root per tenant.

    root(tenant) -> [16 tokens] -> [16 tokens] -> [5 tokens]     a leaf may be partly filled
                               \\-> [16 tokens]

An edge is keyed by the block's tokens themselves, so a match compares tokens, never only a hash.
A handle (a request or a pin) holds a reference on every block of its path: a held node's
ancestors are held too, so the evictable blocks are exactly the pool's cached ones.
The idea is SGLang's RadixAttention (arXiv 2312.07104), kept to whole blocks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.blocks import BlockPool
from engine.errors import InternalError


class Node:
    """One cached block and the tokens whose keys and values its rows hold."""

    __slots__ = ("alive", "block", "children", "depth", "last_used", "parent", "pins", "tokens")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], block: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.depth: int = 0 if parent is None else parent.depth + 1
        # first token -> all tokens -> child: a partial match looks at few siblings
        self.children: dict[int, dict[tuple[int, ...], Node]] = {}
        self.last_used = 0
        self.pins: set[str] = set()
        self.alive = True


@dataclass(frozen=True, slots=True)
class PartialHit:
    """The first `n_rows` rows of `block` continue the match; copy them, never share them."""

    block: int
    n_rows: int


@dataclass(frozen=True, slots=True)
class Match:
    """`blocks` are whole hits in order; `node` is the deepest of them (or the root)."""

    node: Node
    blocks: tuple[int, ...]
    partial: PartialHit | None
    n_tokens: int
    """Tokens covered, the partial hit's rows included."""


@dataclass(slots=True)
class Pin:
    key: str
    tenant: str
    node: Node
    blocks: tuple[int, ...]
    ttl_s: float
    used_s: float = field(default=0.0)


class RadixCache:
    """Match, insert, lock, pin and evict over whole blocks. Not thread-safe."""

    def __init__(self, pool: BlockPool, block_size: int, max_pinned: int) -> None:
        self.block_size = block_size
        self.max_pinned = max_pinned
        self.n_evicted = 0
        self.n_pins_lapsed = 0
        self._pool = pool
        self._roots: dict[str, Node] = {}
        self._pins: dict[str, Pin] = {}
        self._pin_refs: dict[int, int] = {}  # block -> pins that hold it
        self._tick = 0
        self._n_nodes = 0
        self._leaves: list[tuple[int, int, int, Node]] = []  # lazy heap, see _offer
        self._n_offers = 0

    # lookup

    def root(self, tenant: str) -> Node:
        node = self._roots.get(tenant)
        if node is None:
            node = self._roots[tenant] = Node(None, (), -1)
        return node

    def match(self, tenant: str, tokens: Sequence[int], limit: int, now: float) -> Match:
        """The longest cached prefix of `tokens[:limit]`; marks it used and refreshes its pins."""
        node, at, blocks = self.root(tenant), 0, []
        self._tick += 1
        size = self.block_size
        while at + size <= limit:
            want = tuple(tokens[at : at + size])
            child = node.children.get(want[0], {}).get(want)
            if child is None:
                break
            node = child
            blocks.append(node.block)
            at += size
            self._touch(node, now)
        partial = self._partial(node, tokens[at : min(limit, at + size)], now)
        covered = at + (partial.n_rows if partial else 0)
        return Match(node, tuple(blocks), partial, covered)

    def _partial(self, node: Node, rest: Sequence[int], now: float) -> PartialHit | None:
        if not rest:
            return None
        best, best_rows = None, 0
        for tokens, child in node.children.get(rest[0], {}).items():
            rows = common_prefix(tokens, rest)
            if rows > best_rows:
                best, best_rows = child, rows
        if best is None:
            return None
        self._touch(best, now)
        return PartialHit(best.block, best_rows)

    def _touch(self, node: Node, now: float) -> None:
        node.last_used = self._tick
        for key in node.pins:
            self._pins[key].used_s = now
        if not node.children:
            self._offer(node)

    # locks

    def lock(self, match: Match) -> list[int]:
        """Reference the whole hits; the caller's block table starts with them."""
        self._pool.retain(match.blocks)
        return list(match.blocks)

    def unlock(self, blocks: Sequence[int]) -> None:
        """Drop a handle's references (the deepest first, as eviction will go)."""
        self._pool.release(list(reversed(blocks)))

    # growth

    def insert(self, node: Node, tokens: Sequence[int], block: int) -> Node:
        """Hang one computed block (whole or, as a leaf, partly filled) under `node`.

        The caller holds `block`. Returns the node that now stands for these tokens: its block is
        another one if the same tokens were cached already, and then the caller should use that
        block instead of its own.
        """
        key = tuple(tokens)
        if not 0 < len(key) <= self.block_size or not node.alive:
            raise InternalError("a cache entry needs 1..block_size tokens and a live parent")
        siblings = node.children.setdefault(key[0], {})
        self._tick += 1
        found = siblings.get(key)
        if found is None:
            for tokens_, sibling in list(siblings.items()):
                rows = common_prefix(tokens_, key)
                if rows == len(key):  # a longer entry serves every match this one could
                    found = sibling
                    break
                if rows == len(tokens_) and self._pool.refs(sibling.block) == 0:
                    self._remove(sibling)  # a shorter tail, now superseded
        if found is not None:
            self._mark_used(found)
            return found
        # removing a superseded tail may have dropped the emptied sibling table
        child = Node(node, key, block)
        self._pool.adopt(block)
        node.children.setdefault(key[0], {})[key] = child
        self._n_nodes += 1
        self._mark_used(child)
        return child

    def _mark_used(self, node: Node) -> None:
        node.last_used = self._tick
        if not node.children:
            self._offer(node)

    # pins

    @property
    def n_pinned(self) -> int:
        """Distinct blocks that pins hold."""
        return len(self._pin_refs)

    def pinned(self) -> Iterator[int]:
        return iter(self._pin_refs)

    def pin(self, key: str, tenant: str, tokens: Sequence[int], ttl_s: float, now: float) -> int:
        """Keep the cached prefix of `tokens` until `unpin`, the TTL, or the pin budget ends it.

        Replaces an earlier pin of the same key. Returns the number of tokens now pinned.
        """
        path = self._path(tenant, tokens)
        self._pool.retain([node.block for node in path])  # before the old pin lets go
        self.unpin(key)
        if not path:
            return 0
        pin = Pin(key, tenant, path[-1], tuple(node.block for node in path), ttl_s, now)
        self._pins[key] = pin
        pin.node.pins.add(key)
        for block in pin.blocks:
            self._pin_refs[block] = self._pin_refs.get(block, 0) + 1
        self._enforce_budget(keep=key)
        return sum(len(node.tokens) for node in path) if key in self._pins else 0

    def unpin(self, key: str) -> bool:
        """Let go; False if there was no such pin (it may have lapsed)."""
        pin = self._pins.pop(key, None)
        if pin is None:
            return False
        pin.node.pins.discard(key)
        for block in pin.blocks:
            self._pin_refs[block] -= 1
            if self._pin_refs[block] == 0:
                del self._pin_refs[block]
        self.unlock(pin.blocks)
        return True

    def expire(self, now: float) -> None:
        """Drop the pins that nobody used for their time to live."""
        for key in [p.key for p in self._pins.values() if now - p.used_s > p.ttl_s]:
            self.unpin(key)

    def lapse_one(self) -> bool:
        """Drop the longest idle pin (counted), one without time limit last; False if none."""
        if not self._pins:
            return False
        self.unpin(min(self._pins.values(), key=_lapse_order).key)
        self.n_pins_lapsed += 1
        return True

    def _enforce_budget(self, keep: str) -> None:
        while self.n_pinned > self.max_pinned:
            others = [p for p in self._pins.values() if p.key != keep]
            victim = min(others, key=_lapse_order).key if others else keep
            self.unpin(victim)
            self.n_pins_lapsed += 1

    def _path(self, tenant: str, tokens: Sequence[int]) -> list[Node]:
        node, at, path = self.root(tenant), 0, []
        while at < len(tokens):
            want = tuple(tokens[at : at + self.block_size])
            siblings = node.children.get(want[0], {})
            child = siblings.get(want)
            if child is None and len(want) < self.block_size:
                child = next((c for t, c in siblings.items() if t[: len(want)] == want), None)
            if child is None:
                break
            path.append(child)
            node, at = child, at + self.block_size
        return path

    # eviction

    def evict(self, n: int) -> int:
        """Free up to `n` cached blocks, least recently used leaves first; returns how many."""
        done, held = 0, []
        while done < n and self._leaves:
            entry = heapq.heappop(self._leaves)
            node = entry[3]
            if not node.alive or node.children or node.last_used != entry[0]:
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
        """Unpin and evict everything that no request holds."""
        for key in list(self._pins):
            self.unpin(key)
        self.evict(self._n_nodes)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        if parent is None or node.children or node.pins:
            raise InternalError("only an unpinned leaf may leave the cache")
        siblings = parent.children[node.tokens[0]]
        del siblings[node.tokens]
        if not siblings:
            del parent.children[node.tokens[0]]
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

    def nodes(self) -> Iterator[Node]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            for siblings in node.children.values():
                stack.extend(siblings.values())

    def pin_blocks(self) -> Iterator[tuple[int, ...]]:
        """Each pin's blocks: the references that pins account for."""
        return (pin.blocks for pin in self._pins.values())

    def check(self) -> None:
        """Raise `InternalError` if the tree and the pool disagree. O(nodes)."""
        seen: set[int] = set()
        for node in self.nodes():
            if node.block in seen or not self._pool.is_cached(node.block):
                raise InternalError(f"block {node.block} is not the cache's alone")
            seen.add(node.block)
            if node.children and len(node.tokens) != self.block_size:
                raise InternalError("a partly filled block has children")
            up = node.parent
            held = self._pool.refs(node.block) > 0
            if held and up is not None and up.block >= 0 and not self._pool.refs(up.block):
                raise InternalError("a held block hangs under one that nobody holds")
        if len(seen) != self._n_nodes:
            raise InternalError(f"{len(seen)} nodes reachable, {self._n_nodes} counted")
        offered = {id(entry[3]) for entry in self._leaves if _current(entry)}
        for node in self.nodes():
            if not node.children and id(node) not in offered:
                raise InternalError(f"leaf block {node.block} can never be evicted")


def _lapse_order(pin: Pin) -> tuple[bool, float]:
    return pin.ttl_s == math.inf, pin.used_s


def _current(entry: tuple[int, int, int, Node]) -> bool:
    node = entry[3]
    return node.alive and not node.children and node.last_used == entry[0]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
