"""Chooses the next token of every row of a batch.

Random draws come from a counter generator keyed (seed, position), so neither the batch a row is in
nor a preemption changes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import UsageError
from engine.inputs import SampleRow
from engine.sampling import SamplingParams

_FIRST = 256
"""Candidates taken before a full sort is considered."""
_F64: TypeAlias = NDArray[np.float64]


def choose(logits: Tensor, rows: Sequence[SampleRow]) -> list[tuple[int, float]]:
    """(token, log probability) per row. logits fp32 [n, vocab], may be changed in place; n rows.

    The log probability is the model's own, before any setting. UsageError if a bias names a token
    outside the vocabulary.
    """
    total = torch.logsumexp(logits, -1)
    raw = logits
    if any(row.params.shaped for row in rows):
        raw = logits.clone()
        for scores, row in zip(logits, rows, strict=True):
            _shape(scores, row)
    best = logits.argmax(-1)
    drawn = [i for i, row in enumerate(rows) if not row.params.greedy]
    if drawn:
        best[drawn] = torch.tensor(_draw(logits[drawn], [rows[i] for i in drawn]))
    logprobs = raw.gather(-1, best[:, None]).squeeze(-1).sub_(total)
    return list(zip(best.tolist(), logprobs.tolist(), strict=True))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its two arguments only (Philox, Salmon et al. 2011)."""
    bits = np.random.Philox(key=seed & (2**64 - 1), counter=position)
    return float(np.random.Generator(bits).random())


def _shape(scores: Tensor, row: SampleRow) -> None:
    """Applies penalties and biases to one row of logits, fp32 [vocab], in place."""
    p = row.params
    if p.repetition_penalty != 1.0 and row.history:
        seen = torch.tensor(sorted(set(row.history)))
        value = scores[seen]
        scores[seen] = torch.where(
            value > 0, value / p.repetition_penalty, value * p.repetition_penalty
        )
    if p.presence_penalty or p.frequency_penalty:
        counts = Counter(row.history[row.n_prompt :])
        if counts:
            times = torch.tensor(list(counts.values()), dtype=torch.float32)
            scores[list(counts)] -= p.presence_penalty + p.frequency_penalty * times
    for token, bias in p.logit_bias:
        if token >= scores.shape[0]:
            raise UsageError(f"logit_bias names token {token}; the vocabulary has {len(scores)}")
        scores[token] += bias


def _draw(logits: Tensor, rows: Sequence[SampleRow]) -> list[int]:
    """One random token per row of logits fp32 [n, vocab]."""
    temperature = torch.tensor([[row.params.temperature] for row in rows])
    scaled = (logits - logits.amax(-1, True)) / temperature
    total = torch.logsumexp(scaled, -1, True)
    top = torch.topk(scaled, min(_FIRST, logits.shape[-1]))
    first = (top.values - total).double().exp().numpy()
    ids = top.indices.numpy()
    tokens = []
    for i, row in enumerate(rows):
        shares, names = first[i], ids[i]
        if not _enough(shares, row.params, logits.shape[-1]):
            ordered = torch.sort(scaled[i], descending=True, stable=True)
            shares = (ordered.values - total[i]).double().exp().numpy()
            names = ordered.indices.numpy()
        kept = _filtered(shares, row.params)
        edges = np.cumsum(kept)
        at = np.searchsorted(edges, uniform(row.seed, row.position) * edges[-1], side="right")
        tokens.append(int(names[min(int(at), len(kept) - 1)]))
    return tokens


def _enough(shares: _F64, params: SamplingParams, vocab: int) -> bool:
    """Whether the filters certainly keep none beyond these likeliest candidates."""
    return (
        len(shares) == vocab
        or 0 < params.top_k <= len(shares)
        or shares.sum() >= params.top_p
        or shares[-1] < params.min_p * shares[0]
    )


def _filtered(shares: _F64, params: SamplingParams) -> _F64:
    """The shares that top-k, then top-p, then min-p keep; descending, at least one."""
    if params.top_k:
        shares = shares[: params.top_k]
    if params.top_p < 1.0:
        before = np.cumsum(shares) - shares
        limit = params.top_p * (shares.sum() if params.top_k else 1.0)
        shares = shares[: max(1, int(np.count_nonzero(before < limit)))]
    if params.min_p:
        shares = shares[shares >= params.min_p * shares[0]]
    return shares
