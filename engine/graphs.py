"""Decode steps as CUDA graphs: one launch for a whole step, recorded once per batch size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from engine.device import Device
from engine.gpu_choice import DeviceChoice
from engine.models.gpu import DeviceKv, GpuLlama
from engine.step_inputs import StepInputs
from kernels.resolve import module_for

_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 80, 96)
_STRIDE = 32


def decode_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes to record for up to `most` rows, ascending; `most` itself is the last."""
    beyond = range(_SIZES[-1] + _STRIDE, most, _STRIDE)
    return (*(size for size in (*_SIZES, *beyond) if size < most), most)


class DecodeGraphs:
    """A step in which every row computes one token, greedily: from `inputs` to `chosen`.

    Padding rows see nothing, store nothing and choose for the dummy lane. All memory is fixed, so
    what a graph recorded stays true: `logits` [most, vocab], `chosen` int64 [most], and `tokens`,
    the table of every lane's last choice.
    """

    def __init__(
        self,
        device: Device,
        model: GpuLlama,
        cache: DeviceKv,
        inputs: StepInputs,
        tokens: Tensor,
        choice: DeviceChoice,
    ) -> None:
        most = inputs.limits.n_rows
        self.sizes = decode_sizes(most)
        self.logits = torch.zeros(
            most, model.config.vocab_size, dtype=model.dtype, device=model.device
        )
        self._device = device
        self._model = model
        self._cache = cache
        self._inputs = inputs.fields
        self._tokens = tokens
        self._choice = choice
        self.chosen = torch.zeros(most, dtype=torch.int64, device=model.device)
        c = model.config
        attention = module_for(
            "paged_attention_decode",
            device.name,
            dtype=model.dtype,
            head_dim=c.head_dim,
            kv_int8=cache.scales is not None,
        )
        self._attention = attention.paged_attention_decode
        queries = torch.empty(most, c.heads, c.head_dim, dtype=model.dtype, device=model.device)
        self._room = attention.decode_workspace(
            queries, cache.data[0], inputs.fields.tables, c.window
        )
        self._recorded: dict[int, Callable[[], None]] = {}

    def capture(self) -> None:
        """Record every size, the largest first: the others fit into its memory."""
        for size in reversed(self.sizes):
            self._recorded[size] = self._device.capture(
                partial(self._compute, size), f"a decode step of {size} rows"
            )

    def size_for(self, n_rows: int) -> int:
        """The smallest size that holds so many rows (`n_rows` at most the largest)."""
        return next(size for size in self.sizes if size >= n_rows)

    def run(self, size: int) -> None:
        """One step; eagerly if nothing was recorded. Called inside the device's `work`."""
        recorded = self._recorded.get(size)
        if recorded is None:
            self._compute(size)
        else:
            recorded()

    def _compute(self, size: int) -> None:
        model, given = self._model, self._inputs
        tables, seen = given.tables[:size], given.seen[:size]

        def attend(q: Tensor, kept: Tensor, scales: Tensor | None) -> Tensor:
            out: Tensor = self._attention(
                q, kept, tables, seen, scale=model.scale, window=model.config.window,
                workspace=self._room, scales=scales,
            )  # fmt: skip
            return out

        ids = resolve_pending(given.ids[:size], given.sources[:size], self._tokens)
        hidden = model.hidden(ids, given.positions[:size], given.slots[:size], self._cache, attend)
        logits, chosen = self.logits[:size], self.chosen[:size]
        model.head.into(logits, hidden)
        chosen.copy_(self._choice.likeliest(logits))
        self._tokens.index_copy_(0, given.lanes[:size], chosen)


def resolve_pending(ids: Tensor, sources: Tensor, tokens: Tensor) -> Tensor:
    """ids int64 [n] with every PENDING replaced by `tokens[sources]`."""
    return torch.where(ids < 0, tokens.index_select(0, sources), ids)
