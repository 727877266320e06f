"""What the page tells the server."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.page_events import behind_ms

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("value", "ms"), [(0, 0), (93.6, 94), (10_000, 10_000)])
def test_how_far_behind_it_plays(value: float, ms: int) -> None:
    assert behind_ms({"type": "playback", "behind_ms": value}) == ms


@pytest.mark.parametrize(
    "message",
    [
        {"type": "hangup"},
        {"type": "other", "behind_ms": 5},
        {"type": "playback"},
        *(
            {"type": "playback", "behind_ms": bad}
            for bad in (None, "5", True, [5], -1, 10_001, 10**400, float("nan"), float("inf"))
        ),
    ],
)
def test_nonsense_says_nothing(message: dict[str, Any]) -> None:
    assert behind_ms(message) is None
