from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool
from engine.errors import CapacityError, InternalError

pytestmark = pytest.mark.unit


def test_allocates_each_block_once_and_takes_none_when_short():
    pool = BlockPool(5)
    first = pool.allocate(3)
    with pytest.raises(CapacityError, match="3 blocks wanted, 2 free"):
        pool.allocate(3)
    assert pool.n_free == 2
    assert sorted(first + pool.allocate(2)) == [0, 1, 2, 3, 4]
    pool.check()


def test_last_release_frees_and_one_more_raises():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.retain([block])
    pool.release([block])
    assert pool.n_held == 1
    pool.release([block])
    assert (pool.n_held, pool.n_free) == (0, 2)
    with pytest.raises(InternalError, match="released more often"):
        pool.release([block])


def test_a_freed_block_cannot_be_retained():
    pool = BlockPool(2)
    with pytest.raises(InternalError, match="nobody's"):
        pool.retain([0])


def test_cached_block_survives_its_last_handle_until_disowned():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.adopt(block)
    with pytest.raises(InternalError):
        pool.adopt(block)
    pool.release([block])
    assert (pool.n_cached, pool.n_held, pool.n_free) == (1, 0, 1)
    pool.retain([block])
    assert (pool.n_cached, pool.n_held) == (0, 1)
    pool.disown(block)
    assert pool.n_held == 1
    pool.release([block])
    assert pool.n_free == 2
    pool.check()


def test_blocks_freed_in_flight_return_after_that_step_only():
    pool = BlockPool(4)
    a, b = pool.allocate(2)
    first = pool.launch()
    pool.release([a])
    second = pool.launch()
    pool.release([b])
    assert (pool.n_fenced, pool.n_free) == (2, 2)
    pool.check()
    pool.retire(first)
    assert (pool.n_fenced, pool.n_free) == (1, 3)
    pool.retire(second)
    assert (pool.n_fenced, pool.n_free) == (0, 4)
    with pytest.raises(InternalError, match="out of order"):
        pool.retire(second)


def test_check_notices_a_lost_block():
    pool = BlockPool(3)
    pool._free.take(None)
    with pytest.raises(InternalError, match="lost"):
        pool.check()


def test_check_notices_a_block_that_is_free_and_in_use():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool._free.add(block)
    with pytest.raises(InternalError, match="in use"):
        pool.check()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30)), max_size=80))
def test_identity_holds_under_any_order_of_calls(calls):
    pool = BlockPool(8)
    handles: list[int] = []
    in_flight: list[int] = []
    for what, pick in calls:
        if what == 0 and pool.n_free:
            handles += pool.allocate(1 + pick % pool.n_free)
        elif what == 1 and handles:
            pool.release([handles.pop(pick % len(handles))])
        elif what == 2 and handles:
            block = handles[pick % len(handles)]
            pool.retain([block])
            handles.append(block)
        elif what == 3 and handles:
            block = handles[pick % len(handles)]
            if not pool.is_cached(block):
                pool.adopt(block)
        elif what == 4:
            block = pick % pool.n_total
            if pool.is_cached(block):
                pool.disown(block)
        elif what == 5 and len(in_flight) < 2:
            in_flight.append(pool.launch())
        elif what == 6 and in_flight:
            pool.retire(in_flight.pop(0))
        pool.check()
        counts = pool.counts()
        assert counts.free + counts.cached + counts.held + counts.fenced == counts.total
        assert counts.held == len(set(handles))
        assert counts.fenced == 0 or in_flight
