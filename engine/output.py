"""One request's text on its way out: whole characters only, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.text.detokenizer import Detokenizer
from engine.text.stops import StopMatcher


class TextStream:
    """Detokenizer and stop matcher in a row. The texts add up to the output's, cut at the stop."""

    def __init__(self, token_bytes: Callable[[int], bytes], stops: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(token_bytes)
        self._matcher = StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        return self._matcher.stopped is not None

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        return self._matcher.push(self._detokenizer.push(token))

    def finish(self) -> str:
        """What was held back, now that no token follows; "" after a stop string."""
        text = self._matcher.push(self._detokenizer.finish())
        return text + self._matcher.finish()
