"""Chooses the next token of every row of a batch.

Random draws come from a counter generator keyed (seed, position), so neither the batch a row is in
nor a preemption changes them. A row pays only for what it asks: greedy rows for one pass that finds
the largest logit, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.counts import TokenCounts
from engine.errors import UsageError
from engine.inputs import Sampled, SampleRow
from engine.sampling import SamplingParams

_FAR, _MOST = 9.0, 256
"""Candidates looked at first: e^-9 of the likeliest token's share or more, and so many at most."""
_F32: TypeAlias = NDArray[np.float32]
_F64: TypeAlias = NDArray[np.float64]


def choose(logits: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
    """One token per row. logits fp32 [n, vocab] on the CPU, left as they are; n rows.

    Waits for the masks of rows with a grammar. UsageError if a bias names a token outside the
    vocabulary.
    """
    raw: _F32 = logits.numpy()
    best = raw.argmax(-1)
    if all(_plain(row) for row in rows):
        return [Sampled(token) for token in best.tolist()]
    scores = [_shaped(raw[i], row) for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        if not row.params.greedy:
            best[i] = _draw(scores[i], row)
        elif scores[i] is not raw[i]:
            best[i] = scores[i].argmax()
    told = {i: _told(raw[i], int(best[i]), n) for i, row in enumerate(rows)
            if (n := row.params.logprobs) is not None}  # fmt: skip
    return [told.get(i) or Sampled(int(token)) for i, token in enumerate(best)]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its two arguments only (Philox, Salmon et al. 2011)."""
    bits = np.random.Philox(key=seed & (2**64 - 1), counter=position)
    return float(np.random.Generator(bits).random())


def _plain(row: SampleRow) -> bool:
    p = row.params
    return p.greedy and not p.shaped and row.constraint is None and p.logprobs is None


def _shaped(scores: _F32, row: SampleRow) -> _F32:
    """One row of logits fp32 [vocab] after penalties, biases and grammar; itself if there are none.

    The order matters: what the grammar rules out, no bias brings back.
    """
    p = row.params
    if not p.shaped and row.constraint is None:
        return scores
    scores = scores.copy()
    if p.penalised:
        _penalise(scores, row)
    for token, bias in p.logit_bias:
        if token >= len(scores):
            raise UsageError(f"logit_bias names token {token}; the vocabulary has {len(scores)}")
        scores[token] += bias
    if row.constraint is not None and (banned := row.constraint.banned()) is not None:
        np.copyto(scores[: len(banned)], -np.inf, where=banned)
        scores[len(banned) :] = -np.inf
    return scores


def _penalise(scores: _F32, row: SampleRow) -> None:
    p, counts = row.params, row.counts or TokenCounts()
    counts.catch_up(row.history, row.n_prompt)
    seen, said = counts.seen, counts.said
    value = scores[seen]
    if p.repetition_penalty != 1.0:
        value = np.where(value > 0, value / p.repetition_penalty, value * p.repetition_penalty)
    scores[seen] = value - p.presence_penalty * (said > 0) - p.frequency_penalty * said


def _told(scores: _F32, token: int, n_top: int) -> Sampled:
    """The token with the log probabilities asked for. scores: the model's own, fp32 [vocab]."""
    highest = scores.max()
    total = float(highest) + float(np.log(np.exp(scores - highest).sum(dtype=np.float64)))
    top = torch.topk(torch.from_numpy(scores), min(n_top, len(scores)))
    likeliest = zip(top.indices.tolist(), (top.values.double() - total).tolist(), strict=True)
    return Sampled(token, float(scores[token]) - total, tuple(likeliest))


def _draw(scores: _F32, row: SampleRow) -> int:
    """One random token of a row of scores fp32 [vocab], which is left as it is."""
    p, at = row.params, uniform(row.seed, row.position)
    scaled = (scores - scores.max()) / np.float32(p.temperature)
    total = float(np.log(np.exp(scaled).sum()))
    names, beyond = _likely(scaled)
    shares = _shares(scaled[names], total)
    if _enough(shares, beyond, p, len(scaled)):
        return int(names[_place(_filtered(shares, p), at)])
    covered = float(shares.sum())
    unfiltered = not (p.top_k or p.top_p < 1.0 or p.min_p)
    if unfiltered and at < covered:  # nearly always: the rest need not be looked at
        return int(names[_place(shares, at / covered)])
    whole = _shares(scaled, total)
    if p.top_k or p.top_p < 1.0:
        # those below this share hold less than 1 - top_p together: top-p keeps none of them
        least = 0.0 if p.top_k else (1.0 - p.top_p) / len(whole)
        some = np.flatnonzero(whole >= least)
        order = some[np.argsort(-whole[some], kind="stable")]
        return int(order[_place(_filtered(whole[order], p), at)])
    if p.min_p:
        return _place(np.where(whole >= p.min_p * shares[0], whole, 0.0), at)
    whole[names] = 0.0
    return _place(whole, (at - covered) / (1.0 - covered))


def _likely(scaled: _F32) -> tuple[NDArray[np.int64], float]:
    """(candidates, likeliest first; how likely any other is at most, as a share of the first).

    scaled: log-likelihoods relative to the largest, fp32 [vocab].
    """
    names = np.flatnonzero(scaled > -_FAR)
    if len(names) > _MOST:
        names = torch.topk(torch.from_numpy(scaled), _MOST, sorted=False).indices.numpy()
    names = names[np.argsort(-scaled[names], kind="stable")]
    last = scaled[names[-1]] if len(names) == _MOST else -_FAR
    return names, float(np.exp(np.float64(last)))


def _shares(scaled: _F32, total: float) -> _F64:
    return np.exp(scaled.astype(np.float64) - total)


def _place(shares: _F64, at: float) -> int:
    """The index that `at` of 0..1 falls on when every index is as wide as its share."""
    edges = np.cumsum(shares)
    place = int(np.searchsorted(edges, at * edges[-1], side="right"))
    return min(place, int(np.flatnonzero(shares)[-1]))


def _enough(shares: _F64, beyond: float, params: SamplingParams, vocab: int) -> bool:
    """Whether the filters certainly keep none beyond these likeliest candidates."""
    return (
        len(shares) == vocab
        or 0 < params.top_k <= len(shares)
        or (params.top_p < 1.0 and not params.top_k and shares.sum() >= params.top_p)
        # top-p is a share of what top-k keeps: all of that must be here
        or (beyond < params.min_p and not (params.top_k and params.top_p < 1.0))
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
