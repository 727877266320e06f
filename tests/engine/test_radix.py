from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.errors import InternalError
from engine.pins import Pins
from engine.prefix import Scope, common_prefix
from engine.radix import RadixCache

pytestmark = pytest.mark.unit

SIZE = 4


class Tree:
    """A cache whose handles the test holds by hand."""

    def __init__(self, n_blocks: int = 32, max_pinned: int = 16) -> None:
        self.pool = BlockPool(n_blocks)
        self.pins = Pins(self.pool, max_pinned)
        self.cache = RadixCache(self.pins, SIZE)

    def put(self, tokens, tenant="a", call=None):
        """Compute `tokens` as a request would, and let go of them."""
        node, blocks = None, []
        for at in range(0, len(tokens), SIZE):
            (own,) = self.pool.allocate(1)
            node = self.cache.insert(Scope(tenant, call), node, tokens[at : at + SIZE], own)
            if node.block != own:
                self.pool.retain([node.block])
                self.pool.release([own])
            blocks.append(node.block)
        self.cache.unlock(blocks)
        self.check()
        return blocks

    def hit(self, tokens, limit=None, tenant="a", call=None, now=0.0):
        limit = len(tokens) if limit is None else limit
        return self.cache.match(Scope(tenant, call), tokens, limit, now)

    def pin(self, key, tokens, ttl_s, now, tenant="a", call=None):
        return self.cache.pin(key, Scope(tenant, call), tokens, ttl_s, now)

    def check(self):
        self.pool.check()
        self.cache.check()


def test_whole_blocks_match_in_order():
    tree = Tree()
    blocks = tree.put(list(range(12)))
    match = tree.hit([*range(8), 99, 98, 97, 96])
    assert match.blocks == blocks[:2]
    assert match.partial is None
    assert match.n_tokens == 8


@pytest.mark.parametrize("n", range(1, 13))
def test_a_hit_is_exact_to_the_limit(n):
    tree = Tree()
    tree.put(list(range(12)))
    match = tree.hit(list(range(12)), limit=n)
    assert match.n_tokens == n
    assert len(match.blocks) == n // SIZE
    assert (match.partial is None) == (n % SIZE == 0)


def test_the_longest_partly_matching_sibling_is_taken():
    tree = Tree()
    tree.put([1, 2, 3, 4])
    want = tree.put([1, 2, 9, 9])
    match = tree.hit([1, 2, 9, 8, 7])
    assert match.partial is not None
    assert (match.partial.block, match.partial.n_rows) == (want[0], 3)


def test_tenants_never_share():
    tree = Tree()
    tree.put(list(range(8)), tenant="a")
    assert tree.hit(list(range(8)), tenant="b").n_tokens == 0
    other = tree.put(list(range(8)), tenant="b")
    assert tree.hit(list(range(8)), tenant="b").blocks == other
    assert tree.hit(list(range(8)), tenant="a").blocks != other


def test_the_same_tokens_are_stored_once():
    tree = Tree()
    first = tree.put(list(range(8)))
    assert tree.put(list(range(8))) == first
    assert tree.pool.n_cached == 2


def test_an_unfinished_tail_is_replaced_by_its_continuation():
    tree = Tree()
    tree.put([0, 1, 2, 3, 4, 5])
    assert tree.hit([0, 1, 2, 3, 4, 5, 6]).n_tokens == 6
    tree.put([0, 1, 2, 3, 4, 5, 6])
    assert tree.pool.n_cached == 2
    tree.put([0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert tree.pool.n_cached == 3
    assert tree.hit(list(range(9))).n_tokens == 9


def test_a_shorter_tail_adds_nothing():
    tree = Tree()
    tree.put([0, 1, 2, 3])
    tree.put([0, 1])
    assert tree.pool.n_cached == 1


def test_eviction_takes_the_oldest_leaf_and_never_a_parent_first():
    tree = Tree()
    old = tree.put([1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3])
    new = tree.put([1, 1, 1, 1, 5, 5, 5, 5])
    assert tree.cache.evict(1) == 1
    assert not tree.pool.is_cached(old[2])
    assert tree.cache.evict(1) == 1
    assert not tree.pool.is_cached(old[1])
    assert tree.pool.is_cached(new[0])
    assert tree.cache.evict(9) == 2
    assert tree.pool.n_free == tree.pool.n_total
    tree.check()


def test_a_use_saves_from_eviction():
    tree = Tree()
    first = tree.put([1, 1, 1, 1])
    second = tree.put([2, 2, 2, 2])
    tree.hit([1, 1, 1, 1])
    tree.cache.evict(1)
    assert tree.pool.is_cached(first[0])
    assert not tree.pool.is_cached(second[0])


def test_held_blocks_are_not_evicted():
    tree = Tree()
    tree.put(list(range(8)))
    match = tree.hit(list(range(8)))
    held = tree.cache.lock(match)
    assert tree.cache.evict(9) == 0
    tree.check()
    tree.cache.unlock(held)
    assert tree.cache.evict(9) == 2


def test_pins_keep_until_unpinned():
    tree = Tree()
    tree.put(list(range(8)))
    assert tree.pin("k", list(range(8)), math.inf, 0.0) == 8
    assert tree.cache.evict(9) == 0
    assert tree.pins.n_blocks == 2
    assert tree.pins.remove("k")
    assert not tree.pins.remove("k")
    assert tree.cache.evict(9) == 2


def test_a_pin_expires_unless_used():
    tree = Tree()
    tree.put(list(range(6)))
    tree.pin("k", list(range(6)), 10.0, 0.0)
    tree.hit(list(range(6)), now=8.0)
    tree.pins.expire(15.0)
    assert tree.pins.n_blocks == 2
    tree.pins.expire(18.5)
    assert tree.pins.n_blocks == 0
    tree.check()


def test_repinning_moves_the_pin():
    tree = Tree()
    tree.put([1, 1, 1, 1, 2, 2])
    tree.put([1, 1, 1, 1, 3, 3])
    tree.pin("k", [1, 1, 1, 1, 2, 2], 10.0, 0.0)
    tree.pin("k", [1, 1, 1, 1, 3, 3], 10.0, 0.0)
    assert tree.pins.n_blocks == 2
    assert tree.cache.evict(9) == 1
    assert tree.hit([1, 1, 1, 1, 3, 3]).n_tokens == 6


def test_over_budget_the_longest_idle_call_lapses_and_the_agent_stays():
    tree = Tree(max_pinned=3)
    for n in range(4):
        tree.put([n] * 4)
    tree.pin("agent", [0] * 4, math.inf, 0.0)
    tree.pin("call1", [1] * 4, 100.0, 1.0)
    tree.pin("call2", [2] * 4, 100.0, 2.0)
    tree.pin("call3", [3] * 4, 100.0, 3.0)
    assert tree.pins.n_lapsed == 1
    assert tree.cache.evict(9) == 1
    assert tree.hit([1] * 4).n_tokens == 0
    assert tree.hit([0] * 4).n_tokens == 4


def test_a_pin_larger_than_the_budget_is_refused():
    tree = Tree(max_pinned=1)
    tree.put(list(range(8)))
    assert tree.pin("k", list(range(8)), 10.0, 0.0) == 0
    assert tree.pins.n_blocks == 0
    tree.check()


def test_check_notices_a_held_child_under_a_loose_parent():
    tree = Tree()
    blocks = tree.put(list(range(8)))
    tree.pool.retain([blocks[1]])
    with pytest.raises(InternalError, match="held block hangs"):
        tree.cache.check()


def test_common_prefix():
    assert common_prefix([1, 2, 3], [1, 2]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([2], [1]) == 0


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), tokens, st.sampled_from("ab"), st.integers(1, 6)),
             max_size=40)
)  # fmt: skip
def test_a_match_is_always_the_longest_known_prefix(calls):
    """Against a plain set of stored sequences, as long as nothing was evicted."""
    tree = Tree(n_blocks=400, max_pinned=12)
    stored: dict[str, list[list[int]]] = {"a": [], "b": []}
    evicted = False
    for now, (what, seq, tenant, n) in enumerate(calls):
        if what <= 1:
            tree.put(seq, tenant)
            stored[tenant].append(seq)
        elif what == 2:
            match = tree.hit(seq, tenant=tenant, now=float(now))
            best = max((common_prefix(seq, s) for s in stored[tenant]), default=0)
            assert match.n_tokens <= best
            if not evicted:
                assert match.n_tokens == best
        elif what == 3:
            pinned = set(tree.pins.blocks())
            evicted |= tree.cache.evict(n) > 0
            assert all(tree.pool.is_cached(block) for block in pinned)
        else:
            tree.pin(f"{tenant}{n}", seq, 5.0, float(now), tenant)
            assert tree.pins.n_blocks <= 12
        tree.pins.expire(float(now))
        tree.check()
    tree.cache.clear()
    assert tree.pool.n_free == tree.pool.n_total
