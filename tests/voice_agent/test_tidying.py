"""What a call leaves is freed without waiting for the collector's own thresholds."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from voice_agent.tidying import AT_LEAST, tidy

pytestmark = pytest.mark.unit


class Part:
    """Of a call: it knows the other one."""

    other: Part


@pytest.fixture(autouse=True)
def _no_collection_of_its_own() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left_behind() -> weakref.ref[Part]:
    a, b = Part(), Part()
    a.other, b.other = b, a
    return weakref.ref(a)


async def after(periods: int) -> None:
    task = asyncio.ensure_future(tidy(0.001))
    for _ in range(periods):
        await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pass_frees_it() -> None:
    part = left_behind()
    made: list[list[int]] = [[] for _ in range(AT_LEAST)]
    assert part() is not None
    await after(50)
    assert part() is None
    assert len(made) == AT_LEAST


async def test_where_little_was_made_nothing_is_looked_at() -> None:
    part = left_behind()
    await after(5)
    assert part() is not None
