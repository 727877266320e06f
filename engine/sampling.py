"""How the next token is chosen: a request's settings, and the choice for a batch of rows.

Random draws come from a counter generator keyed (seed, position), so neither the batch a row is in nor
a preemption changes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.inputs import SampleRow

_FIRST = 256
"""Candidates taken before a full sort is considered."""
_F64: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """A request's sampling settings, checked on construction (UsageError names the bad one).

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 are off. repetition_penalty divides the
    logits of every token seen (prompt and output; CTRL, arXiv 1909.05858); presence_penalty and
    frequency_penalty subtract for tokens of the output only. seed None: the engine draws one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        ):
            if not math.isfinite(getattr(self, name)):
                raise UsageError(f"{name} must be a finite number")
        _check(0.0 <= self.temperature <= 5.0, "temperature must be within 0 and 5")
        _check(self.top_k >= 0, "top_k must be 0 (off) or more")
        _check(0.0 < self.top_p <= 1.0, "top_p must be within (0, 1]")
        _check(0.0 <= self.min_p <= 1.0, "min_p must be within 0 and 1")
        _check(0.0 < self.repetition_penalty <= 10.0, "repetition_penalty must be within (0, 10]")
        _check(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty must be within -2 and 2")
        _check(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty must be within -2 and 2")
        _check(self.max_tokens >= 1, "max_tokens must be at least 1")
        _check(
            0 <= self.min_tokens <= self.max_tokens, "min_tokens must be within 0 and max_tokens"
        )
        _check(len(self.stop) <= 16, "at most 16 stop strings are allowed")
        _check(all(self.stop), "a stop string must not be empty")
        _check(
            all(t >= 0 and math.isfinite(b) for t, b in self.logit_bias),
            "logit_bias must map token ids to finite numbers",
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True when the choice depends on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def shaped(self) -> bool:
        """True when the model's logits are changed before the choice."""
        return self.penalised or bool(self.logit_bias)


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise UsageError(message)


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
