from __future__ import annotations

import pytest

from engine.errors import InternalError
from engine.kvcache import KvCache
from engine.prefix import Scope

pytestmark = pytest.mark.unit


A = Scope("a")


def cache(n_blocks=8) -> KvCache:
    return KvCache(n_blocks, 4, max_pinned=n_blocks)


def fill(kv, tokens, scope=A):
    table, n_cached = kv.open(scope, tokens, len(tokens), 0.0)
    assert kv.grow(table, len(tokens))
    kv.copied(kv.take_copies())
    kv.close(table, tokens, len(tokens), keep=True)
    return n_cached


def test_a_partial_hit_is_a_copy_whose_source_stays_until_it_is_made():
    kv = cache()
    fill(kv, [1, 2, 3, 4, 5, 6])
    table, n_cached = kv.open(A, [1, 2, 3, 4, 5, 9, 9], 6, 0.0)
    assert n_cached == 5
    (copy,) = kv._copies
    kv.prefix.evict(8)
    assert kv.pool.is_cached(copy.src), "not evicted before it was copied"
    kv.check([table])
    copies = kv.take_copies()
    assert (copies[0].dst, copies[0].n_rows) == (table.blocks[1], 1)
    kv.copied(copies)
    kv.prefix.evict(8)
    assert not kv.pool.is_cached(copy.src)
    kv.close(table, [1, 2, 3, 4, 5], 5, keep=True)
    kv.check([])


def test_a_table_closed_before_its_copy_takes_the_copy_back():
    kv = cache()
    fill(kv, [1, 2, 3, 4, 5, 6])
    table, _ = kv.open(A, [1, 2, 3, 4, 5, 9, 9], 6, 0.0)
    kv.close(table, [1, 2, 3, 4, 5, 9, 9], 5, keep=True)
    assert kv.take_copies() == ()
    assert kv.pool.n_held == 0
    kv.check([])
    assert kv.prefix.match(A, [1, 2, 3, 4, 5, 9], 6, 0.0).n_tokens == 5, "nothing false was cached"


@pytest.mark.parametrize("read", [False, True])
def test_rows_that_a_step_in_flight_copies_are_not_cached_before_it_is_read(read):
    kv = cache()
    fill(kv, [1, 2, 3, 4, 5, 6])
    table, n_cached = kv.open(A, [1, 2, 3, 4, 5, 9], 5, 0.0)
    copies = kv.take_copies()
    kv.launched(copies)
    kv.check([table])
    if read:
        kv.landed(copies)
    kv.prefix.clear()
    kv.close(table, [1, 2, 3, 4, 5, 9], n_cached, keep=True)
    assert kv.prefix.match(A, [1, 2, 3, 4, 5, 9], 6, 0.0).n_tokens == (5 if read else 4)
    kv.check([])


def test_closing_twice_releases_once():
    kv = cache()
    table, _ = kv.open(A, [1] * 6, 5, 0.0)
    assert kv.grow(table, 6)
    kv.close(table, [1] * 6, 6, keep=False)
    kv.close(table, [1] * 6, 6, keep=True)
    assert kv.pool.n_free == 8


def test_growing_evicts_what_nobody_holds_and_nothing_else():
    kv = cache(4)
    fill(kv, [1, 1, 1, 1, 2, 2, 2, 2])
    holder, n_cached = kv.open(A, [1, 1, 1, 1, 9], 4, 0.0)
    assert n_cached == 4
    table, _ = kv.open(A, [7] * 12, 11, 0.0)
    assert not kv.grow(table, 16), "one of the four is held"
    assert kv.pool.n_cached == 1, "a refusal evicts nothing"
    assert kv.grow(table, 12)
    assert kv.pool.n_cached == 0
    kv.close(holder, [], 0, keep=False)
    kv.close(table, [], 0, keep=False)
    kv.check([])


def test_blocks_fenced_by_a_step_count_as_coming():
    kv = cache(4)
    first, _ = kv.open(A, [7] * 12, 11, 0.0)
    assert kv.grow(first, 12)
    step = kv.pool.launch()
    kv.close(first, [7] * 12, 0, keep=False)
    second, _ = kv.open(A, [8] * 12, 11, 0.0)
    assert not kv.grow(second, 12)
    assert kv.could_come(second, 12)
    kv.pool.retire(step)
    assert kv.grow(second, 12)


def test_two_who_compute_the_same_end_up_sharing():
    kv = cache()
    tokens = [1, 2, 3, 4, 5]
    tables = [kv.open(A, tokens, 4, 0.0)[0] for _ in range(2)]
    for table in tables:
        assert kv.grow(table, 5)
    for table in tables:
        kv.commit(table, tokens, 4)
    assert tables[0].blocks[0] == tables[1].blocks[0]
    assert tables[0].blocks[1] != tables[1].blocks[1]
    assert kv.pool.refs(tables[0].blocks[0]) == 2
    kv.check(tables)


def test_check_notices_a_handle_nobody_knows():
    kv = cache()
    kv.pool.allocate(1)
    with pytest.raises(InternalError, match="1 references, 0 live handles"):
        kv.check([])
