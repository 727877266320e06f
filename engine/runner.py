"""Runs the model: one mixed batch of decode and prefill rows per call, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.choice import choose
from engine.config import KvPrecision
from engine.errors import UsageError
from engine.inputs import Row, Sampled, SampleRow
from engine.launch import AtOnce, StepRunner
from engine.models.batch import Model, make_batch
from engine.models.layers import Quant
from engine.models.load import load_model
from kernels.paged_attention.spec import PAD


class ModelRunner(StepRunner, Protocol):
    """What a loaded model offers, on whatever device."""

    @property
    def model(self) -> Any:
        """The weights, in the device's form."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        ...

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Computes every row; the logits after each row's last token, fp32 [n_rows, vocab]."""
        ...


class Runner(AtOnce):
    """Owns the weights and the KV storage. Used by one thread at a time.

    Storage: n_blocks blocks, each as the model keeps it.
    """

    def __init__(self, model: Model, n_blocks: int, block_size: int = 16) -> None:
        """Raises UsageError for an impossible block size or a cache without room for two blocks."""
        _check_block_size(block_size)
        if n_blocks < 2:
            raise UsageError(f"the KV cache has room for {n_blocks} blocks; 2 or more are needed")
        self.model = model
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.max_model_len = model.max_len
        self.vocab_size = model.config.vocab_size
        # NumPy asks for huge pages before the first touch, PyTorch does not. All are touched here:
        # what the cache may take is there before the first call, and no step waits for a page.
        cache = np.empty(n_blocks * model.block_bytes(block_size), np.uint8)
        cache.fill(0)
        self._forward = model.over(torch.from_numpy(cache), n_blocks, block_size)

    @classmethod
    def load(
        cls,
        model_path: Path,
        *,
        n_blocks: int | None = None,
        kv_bytes: int | None = None,
        block_size: int = 16,
        threads: int = 2,
        quant: Quant | Literal["auto"] = "auto",
        max_model_len: int | None = None,
        kv_cache: KvPrecision = "auto",
    ) -> Runner:
        """Reads a GGUF file or safetensors folder and allocates the cache; blocking.

        n_blocks or kv_bytes sizes the cache. threads: of the step, and of PyTorch process-wide.
        quant "auto": "native" where its kernels run, else "int8". kv_cache "int8": keys and values
        in 8 bits, which only the native kernels have; "auto" is "full". Raises ModelError for an
        unusable model, UsageError for "native" where it can't be.
        """
        _check_block_size(block_size)
        torch.set_num_threads(threads)
        model = load_model(
            model_path,
            quant,
            max_len=max_model_len,
            threads=threads,
            block_size=block_size,
            kv_int8=kv_cache == "int8",
        )
        if n_blocks is None:
            if kv_bytes is None:
                raise UsageError("n_blocks or kv_bytes must be given")
            n_blocks = kv_bytes // model.block_bytes(block_size)
        return cls(model, n_blocks, block_size)

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return self.model.block_bytes(self.block_size)

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        """Computes every row and chooses a token for those that sample, in the rows' order.

        A row with guesses also chooses what follows each of them: engine/speculate/__init__.py.
        """
        results: list[Sampled | None] = [None] * len(rows)
        picks = [i for i, row in enumerate(rows) if row.sample is not None]
        logits = self._forward(make_batch(rows, picks))
        if picks:
            with torch.inference_mode():
                chosen = iter(choose(logits, [s for i in picks for s in _samples(rows[i])]))
            for i in picks:
                first, more = next(chosen), rows[i].n_proposed
                beyond = tuple(s.token for s in islice(chosen, more))
                results[i] = replace(first, beyond=beyond) if more else first
        return results

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Computes every row; the logits after each row's last token, fp32 [n_rows, vocab]."""
        return self._forward(make_batch(rows, range(len(rows))))

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer."""
        self._forward.copy_block(src, dst, n_rows)


def _samples(row: Row) -> Iterator[SampleRow]:
    """How to choose the token at the place of the row's first guess, and after each guess."""
    assert row.sample is not None
    yield row.sample
    for n in range(1, row.n_proposed + 1):
        yield replace(row.sample, position=row.sample.position + n)


def _check_block_size(block_size: int) -> None:
    if block_size < 1 or PAD % block_size:
        raise UsageError(f"block_size must divide {PAD}; it is {block_size}")
