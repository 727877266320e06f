"""sample in plain PyTorch: sorts every row, and waits for the device."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from kernels.sample.spec import FAR, MOST, Biases, Penalties, Settings, Workspace


def sample(
    logits: Tensor, settings: Settings | None = None, workspace: Workspace | None = None
) -> Tensor:
    """logits float [b, v] -> int64 [b]. Rows with penalties or biases are changed in place.

    settings None: every row greedy. workspace is not used.
    """
    if settings is not None and settings.penalties is not None:
        _penalise(logits, settings.penalties)
    if settings is not None and settings.biases is not None:
        _add(logits, settings.biases)
    v = logits.shape[1]
    ids = torch.arange(v, device=logits.device)
    best = torch.where(logits == logits.amax(-1, True), ids, v - 1).amin(-1)
    if settings is None:
        return best
    for row, temperature in enumerate(settings.temperature.tolist()):
        if temperature > 0:
            best[row] = _draw(logits[row].float(), settings, row)
    return best


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on its two arguments only."""
    bits = np.random.Philox(key=seed & (2**64 - 1), counter=position)
    return float(np.random.Generator(bits).random())


def _penalise(logits: Tensor, p: Penalties) -> None:
    for row, scores in enumerate(logits):
        used = (p.seen[row] >= 0) & (p.seen[row] < len(scores))
        seen, said = p.seen[row][used].long(), p.said[row][used].float()
        value = scores[seen].float()
        value = torch.where(value > 0, value / p.repetition[row], value * p.repetition[row])
        value = value.double() - p.presence[row] * (said > 0) - p.frequency[row] * said
        scores[seen] = value.to(scores.dtype)


def _add(logits: Tensor, biases: Biases) -> None:
    for row, scores in enumerate(logits):
        used = (biases.tokens[row] >= 0) & (biases.tokens[row] < len(scores))
        tokens = biases.tokens[row][used].long()
        scores[tokens] = (scores[tokens].float() + biases.values[row][used]).to(scores.dtype)


def _draw(scores: Tensor, settings: Settings, row: int) -> int:
    """One random token of scores fp32 [v]."""
    top_k, top_p = int(settings.top_k[row]), float(settings.top_p[row])
    min_p = float(settings.min_p[row])
    at = uniform(int(settings.seeds[row]), int(settings.positions[row]))
    scaled = (scores - scores.max()) / settings.temperature[row]
    shares = torch.softmax(scaled.double(), 0)
    order = torch.argsort(-scaled, stable=True)
    n_near = min(int((scaled > -FAR).sum()), MOST)
    if top_k == 0 and top_p == 1.0:
        near = order[:n_near]
        if min_p:
            beyond = float(scaled[near[-1]]) if n_near == MOST else -FAR
            if n_near < len(scores) and beyond >= math.log(min_p):
                kept = torch.where(shares >= min_p * shares[near[0]], shares, 0.0)
                return _place(kept, at)
        elif at >= (covered := float(shares[near].sum())) and n_near < len(scores):
            rest = shares.index_fill(0, near, 0.0)
            return _place(rest, (at - covered) / (1.0 - covered))
    return int(order[_place(_filtered(shares[order], top_k, top_p, min_p), at)])


def _filtered(shares: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """The shares that top-k, then top-p, then min-p keep; descending, at least one."""
    if top_k:
        shares = shares[:top_k]
    if top_p < 1.0:
        before = shares.cumsum(0) - shares
        shares = shares[: max(1, int((before < top_p * shares.sum()).sum()))]
    if min_p:
        shares = shares[shares >= min_p * shares[0]]
    return shares


def _place(shares: Tensor, at: float) -> int:
    """The index that `at` of 0..1 falls on when every index is as wide as its share."""
    edges = shares.cumsum(0)
    place = int(torch.searchsorted(edges, at * edges[-1], right=True))
    return min(place, int(shares.nonzero()[-1]))
