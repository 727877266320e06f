"""What one step is made of: records from the scheduler to the runner, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.counts import TokenCounts
from engine.grammar.constraint import Constraint
from engine.sampling import SamplingParams

PENDING = -1
"""In place of a token id: what the step launched before chose for this row's slot."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How to choose the token that follows a row.

    position: index in the whole sequence of the token to be chosen; with `seed` it keys the random
    draw, so neither the batch's composition nor a preemption changes it.
    history: token ids of prompt and output so far, live, and read only when a penalty is on.
    """

    params: SamplingParams
    position: int
    seed: int
    history: Sequence[int] = ()
    n_prompt: int = 0
    """Leading ids of `history` that are the prompt; presence and frequency count only the rest."""
    counts: TokenCounts | None = None
    """The request's own count of `history`, so that a step need not count it anew."""
    constraint: Constraint | None = None
    """The request's grammar: what the token must not be."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request in one step.

    token_ids: ids to compute now, at least one. start: position of the first; the keys and values
    of [0, start) are already in the cache. blocks: block table of [0, start + len(token_ids)).
    sample: None for a chunk that does not reach the end of what is known. n_proposed: so many of
    the last token_ids are guesses (speculation); `sample` is then about the first guess's place.
    slot: the request's place in the runner's table of chosen tokens, 0..max_num_seqs-1, the same
    while it runs; -1 for a row that is nobody's. token_ids may be (PENDING,) where the runner
    overlaps steps.
    """

    token_ids: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    sample: SampleRow | None
    n_proposed: int = 0
    slot: int = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token.

    logprob: natural, under the model, before any setting; None unless asked for. top: the likeliest
    tokens and theirs, best first, as many as were asked for. beyond: what each of the row's guesses
    is followed by, chosen in the same way, if that guess and all before it are right.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    beyond: tuple[int, ...] = ()
