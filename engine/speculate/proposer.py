"""What guesses the next tokens, behind one small interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.prefix import Scope
from engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """One reply that would take up to `k` guesses.

    tokens: prompt and output so far; only appended to between two asks of the same reply. seed and
    params: how the reply's tokens are chosen; a guess for place n is best drawn with (seed, n).
    """

    reply: int
    tokens: Sequence[int]
    k: int
    params: SamplingParams
    seed: int
    scope: Scope


class Proposer(Protocol):
    """Used by the engine thread only. A wrong guess costs time, never a token of the text."""

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        """For each ask, at most k token ids that may come next; () where there is no good guess."""
        ...

    def forget(self, reply: int) -> None:
        """The reply has ended; an unknown one is fine."""
        ...

    def forget_call(self, call: str) -> None:
        """The call is over: nothing computed for it alone may stay."""
        ...
