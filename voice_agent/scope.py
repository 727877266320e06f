"""One cancel for everything a turn revision and its reply started."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class CancelScope:
    """Cancelled once, seen by every stage. Not thread-affine: `cancelled` may be read anywhere.

    `cancel()` and `on_cancel()` are called on the event-loop thread. Cancel is idempotent and each
    callback runs exactly once, at once if the scope is already cancelled.
    """

    __slots__ = ("_callbacks", "cancelled", "name", "sounding")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cancelled = False
        self.sounding = False
        """Something of it has gone to the caller's ear: from now on what it lacks is a hole."""
        self._callbacks: list[Callable[[], None]] = []

    def on_cancel(self, callback: Callable[[], None]) -> None:
        if self.cancelled:
            callback()
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        if self.cancelled:
            return
        self.cancelled = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # one stage's fault must not keep the others running
                log.exception("cancel callback failed", extra={"scope": self.name})
