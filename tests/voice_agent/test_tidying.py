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


def left_behind(*, old: bool = False) -> weakref.ref[Part]:
    """old: it has lived through a pass."""
    a, b = Part(), Part()
    a.other, b.other = b, a
    if old:
        gc.collect()
    return weakref.ref(a)


async def after_some(periods: int = 50, made: int = 2 * AT_LEAST, **how: float) -> None:
    kept: list[list[int]] = [[] for _ in range(made)]
    task = asyncio.ensure_future(tidy(0.001, **how))  # type: ignore[arg-type]
    for _ in range(periods):
        await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(kept) == made


async def test_a_pass_frees_it() -> None:
    for old in (False, True):
        part = left_behind(old=old)
        assert part() is not None
        await after_some(most=10**9)
        assert part() is None


async def test_where_little_was_made_nothing_is_looked_at() -> None:
    part = left_behind()
    await after_some(5, made=0, most=10**9)
    assert part() is not None


async def test_with_many_calls_the_new_goes_at_once_and_the_old_later() -> None:
    old = left_behind(old=True)
    new = left_behind()
    await after_some(most=0, whole_s=1e9)
    assert new() is None
    assert old() is not None
    await after_some(most=0, whole_s=0.0)
    assert old() is None
