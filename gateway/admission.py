"""Who may enter now: an atomic count of live calls, all together and of each owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from voice_agent.errors import CapacityError

RETRY_AFTER_S = 10
OWNER: ContextVar[str] = ContextVar("owner", default="")
"""Whose request runs here, set at the door: a key, or an address on a public page. "": anyone's.
Tasks that a request starts inherit it."""


class Admission:
    """Taken before a call's first resource, given back once, whatever happens.

    One thread (the event loop) and no await between check and count make it atomic.
    """

    def __init__(self, max_calls: int, max_each: int = 0) -> None:
        """max_each: of one owner; 0: max_calls."""
        self.max_calls = max_calls
        self.max_each = max_each
        self._by_owner: Counter[str] = Counter()
        self.active = 0
        self.refused = 0
        self.draining = False

    @contextmanager
    def call(self) -> Iterator[None]:
        """Raises CapacityError when full, draining, or the owner has too many."""
        if self.draining:
            self.refused += 1
            raise CapacityError("The server is shutting down. Try again later.", code="VA461")
        if self.active >= self.max_calls:
            self.refused += 1
            raise CapacityError(
                f"All {self.max_calls} lines are busy. Try again in a moment.", code="VA460"
            )
        owner = OWNER.get()
        if owner and self.max_each and self._by_owner[owner] >= self.max_each:
            self.refused += 1
            raise CapacityError(
                f"{self.max_each} calls are live for this key or address, and no more may be.",
                code="VA467",
            )
        self.active += 1
        self._by_owner[owner] += 1
        try:
            yield
        finally:
            self.active -= 1
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]
