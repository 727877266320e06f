"""The radix cache without its order of eviction is the same cache otherwise."""

from __future__ import annotations

import pytest

from engine.kvcache import KvCache
from engine.prefix import Scope
from loadtest.bench.llm.oldest import OldestFirst

pytestmark = pytest.mark.unit

A, B, C = (list(range(at, at + 8)) for at in (100, 200, 300))


def hits(oldest: bool) -> list[int]:
    """A, B, A again, then C, in a pool of two blocks: what is left of A and of B."""
    kv = KvCache(2, 8, max_pinned=0)
    if oldest:
        kv.prefix = OldestFirst(kv.pins, kv.block_size)
    for now, tokens in enumerate((A, B, A, C)):
        table, n = kv.open(Scope(), tokens, len(tokens), float(now))
        assert kv.grow(table, len(tokens))
        if n < len(tokens):
            kv.commit(table, tokens, len(tokens))
        kv.close(table, tokens, len(tokens), keep=True)
        kv.check([])
    return [kv.prefix.match(Scope(), tokens, 8, 9.0).n_tokens for tokens in (A, B)]


def test_the_oldest_goes_first_whether_used_or_not() -> None:
    assert hits(oldest=False) == [8, 0]
    assert hits(oldest=True) == [0, 8]
