"""One request's grammar while it runs: the mask of the next token, computed beside the forward."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Constraint:
    """`push` and `banned` belong to the engine thread; the matcher to the one worker thread.

    The mask of the first token is computed at once, that of the next one from the moment a token
    is pushed: while the forward of the next step runs.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, worker: Executor) -> None:
        self._matcher = matcher
        self._worker = worker
        self._bits = np.zeros((n_vocab + 31) // 32, np.uint32)
        self._n_vocab = n_vocab
        self._next: Future[NDArray[np.bool_] | None] = worker.submit(self._compute)

    def push(self, token: int) -> None:
        """The request's next token was chosen; start on the mask of the one after it."""
        self._next = self._worker.submit(self._advance, token)

    def banned(self) -> NDArray[np.bool_] | None:
        """What the next token must not be, bool [n_vocab]; waits. None: the grammar failed.

        It is never raised here, where the rows of others are in the same step: see `check`.
        """
        return self._next.result()

    def check(self) -> None:
        """Raises UsageError if the grammar met its limits or was left; waits."""
        if self._next.result() is None:
            why = self._matcher.get_error() or self._matcher.stop_reason()
            raise UsageError(f"the grammar could not be followed: {why}")

    def _advance(self, token: int) -> NDArray[np.bool_] | None:
        return self._compute() if self._matcher.consume_token(token) else None

    def _compute(self) -> NDArray[np.bool_] | None:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        if self._matcher.is_error() or not self._bits.any():
            return None
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little")
        return np.equal(bits, 0)
