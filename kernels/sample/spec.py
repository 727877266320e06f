"""Settings of sample: one token per row of logits, chosen on the device.

The order: penalties (repetition, then presence and frequency), biases, then greedy or, with a
temperature, top-k, top-p, min-p and one draw. The same rules, and the same random numbers, as
`engine.choice` on the CPU: Philox 4x64-10 (Salmon et al. 2011) keyed (seed, position).

Random choice goes down the row from the likeliest token, equal ones by id, until the draw's share
of the kept mass is passed. Shares are integers, multiples of 2^-44 of the likeliest: sums are exact
in any order, so a row's token is the same alone and in any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4096
"""Logits that one program looks at first."""
CANDIDATES = 2048
"""Candidates of a row kept aside; a row with more is searched as a whole, several times slower."""
FAR, MOST = 9.0, 256
"""As engine.choice's first candidates: e^-9 of the likeliest or more, so many at most. A draw
without filters that goes beyond them, like one with min-p alone that keeps more, goes by id."""
MAX_VOCAB = 2**19
"""Shares of a row add up to less than 2^63."""
SHAPES = ((1, 33), (3, 1000), (4, 4099), (2, 9000))
"""(rows, vocabulary)."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of b rows, on the device; a row with 1, 0, 0 is left as it is.

    repetition, frequency fp32 [b], presence fp64 [b]. seen int32 [b, m]: each token of prompt and
    output once, negative where unused. said fp32 [b, m]: how often the output has it.
    """

    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    seen: Tensor
    said: Tensor


@dataclass(frozen=True, slots=True)
class Biases:
    """tokens int32 [b, m], each once per row, negative where unused; values fp32 [b, m]."""

    tokens: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """Of b rows, on the device.

    temperature fp32 [b], 0 for the largest logit (of equals the lowest id); top_k int32 [b], 0 off;
    top_p fp32 [b], 1 off; min_p fp32 [b], 0 off; seeds int64 [b], the bits of an unsigned number;
    positions int64 [b]: index in its sequence of the token to be chosen.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    penalties: Penalties | None = None
    biases: Biases | None = None


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of one sample at a time, for up to b rows."""

    peaks: Tensor
    places: Tensor
    masses: Tensor
    n_near: Tensor
    near_mass: Tensor
    near: Tensor
    near_tokens: Tensor
    tokens: Tensor


def sample_workspace(b: int, vocab: int, device: torch.device | str) -> Workspace:
    """For b rows of `vocab` logits. Raises ValueError beyond MAX_VOCAB."""
    if vocab > MAX_VOCAB:
        raise ValueError(f"sample handles at most {MAX_VOCAB} logits a row, not {vocab}")
    chunks = -(-vocab // CHUNK)

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Workspace(
        peaks=empty(torch.float32, b, chunks),
        places=empty(torch.int32, b, chunks),
        masses=empty(torch.int64, b, chunks),
        n_near=empty(torch.int32, b),
        near_mass=empty(torch.int64, b),
        near=empty(torch.float32, b, CANDIDATES),
        near_tokens=empty(torch.int32, b, CANDIDATES),
        tokens=empty(torch.int64, b),
    )


def bytes_moved(b: int, vocab: int, item: int = 4) -> int:
    """Logits read once by greedy rows; twice with a temperature."""
    return b * vocab * item
