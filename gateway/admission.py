"""Who may enter now: an atomic count of live calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voice_agent.errors import CapacityError

RETRY_AFTER_S = 10


class Admission:
    """Taken before a call's first resource, given back once, whatever happens.

    One thread (the event loop) and no await between check and count make it atomic.
    """

    def __init__(self, max_calls: int) -> None:
        self.max_calls = max_calls
        self.active = 0
        self.refused = 0
        self.draining = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Raises CapacityError when full or draining."""
        if self.draining:
            self.refused += 1
            raise CapacityError("The server is shutting down. Try again later.", code="VA461")
        if self.active >= self.max_calls:
            self.refused += 1
            raise CapacityError(
                f"All {self.max_calls} lines are busy. Try again in a moment.", code="VA460"
            )
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
