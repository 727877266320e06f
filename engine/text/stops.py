"""Stop strings: text is withheld while it could still become one."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Looks for the first stop string to be complete in one request's output, across pushes."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped: str | None = None
        """The stop string that was found; from then on every push gives ""."""

    def push(self, text: str) -> str:
        """The text that may be shown now. A found stop string and all after it never is."""
        if self.stopped is not None:
            return ""
        held = self._held + text
        # The one that is complete first, so that the pieces' borders don't matter.
        found = [(at + len(s), at, s) for s in self._stops if (at := held.find(s)) >= 0]
        if found:
            _, at, self.stopped = min(found)
            self._held = ""
            return held[:at]
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        cut = len(held) - keep
        self._held = held[cut:]
        return held[:cut]

    def finish(self) -> str:
        """The text still withheld: the output ended before it became a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of text that is a beginning of stop."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
