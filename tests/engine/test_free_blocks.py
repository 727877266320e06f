"""Free blocks: nothing lost, neighbours where there are any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.free_blocks import RUN, FreeBlocks

pytestmark = pytest.mark.unit


def test_a_request_goes_on_where_its_last_block_ends() -> None:
    free = FreeBlocks(64)
    one, two = [free.take(None)], [free.take(None)]
    for blocks in (one, two) * (RUN - 1):
        blocks.append(free.take(blocks[-1]))
    assert one == list(range(one[0], one[0] + RUN))
    assert two == list(range(two[0], two[0] + RUN))
    assert len(free) == 64 - 2 * RUN


def test_a_new_request_begins_where_a_whole_run_is_free() -> None:
    free = FreeBlocks(3 * RUN)
    for _ in range(3 * RUN):
        free.take(None)
    for block in (1, RUN + 3, *range(2 * RUN, 3 * RUN)):
        free.add(block)
    assert free.take(None) == 2 * RUN
    assert free.take(0) == 1


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=200))
def test_every_block_is_free_or_taken(n_blocks: int, steps: list[tuple[bool, int]]) -> None:
    free, taken = FreeBlocks(n_blocks), []
    for take, number in steps:
        if take and len(taken) < n_blocks:
            after = taken[number % len(taken)] if taken else None
            block = free.take(after)
            assert block not in taken
            taken.append(block)
        elif taken:
            free.add(taken.pop(number % len(taken)))
        assert sorted([*free, *taken]) == list(range(n_blocks))
        assert len(free) == n_blocks - len(taken)
    for _ in range(len(free)):
        taken.append(free.take(None))
    with pytest.raises(KeyError):
        free.take(None)
