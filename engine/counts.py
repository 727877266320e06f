"""How often a request has used each token: what the penalties need, kept as it grows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """Grows by the new end of a history that is only appended to; a step costs its new tokens."""

    __slots__ = ("_ids", "_place", "_read", "_said")

    def __init__(self) -> None:
        self._read = 0
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, np.int64)
        self._said = np.zeros(64, np.float32)

    def catch_up(self, history: Sequence[int], n_prompt: int) -> None:
        """Count what `history` has beyond the last call; its first `n_prompt` ids were not said."""
        for at in range(self._read, len(history)):
            token = history[at]
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._said = np.concatenate([self._said, np.zeros_like(self._said)])
            self._ids[place] = token
            self._said[place] += at >= n_prompt
        self._read = len(history)

    @property
    def seen(self) -> NDArray[np.int64]:
        """Every token of prompt and output, once."""
        return self._ids[: len(self._place)]

    @property
    def said(self) -> NDArray[np.float32]:
        """How often the output has each token of `seen`."""
        return self._said[: len(self._place)]
