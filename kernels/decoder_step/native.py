"""Runs the native step: C structs of cpu.cpp, and the records they are made from."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.linear_group.cpu import PackedLinear, Weight
from kernels.linear_group.spec import Codes


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms fp32 [hidden] and, for heads, [d]; biases fp32 [n_out]; None where there is none.

    Outputs of q and k (weights, biases, norms) are in the interleaved order of `kernels.rope`.
    """

    attn_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    q: PackedLinear
    k: PackedLinear
    v: PackedLinear
    o: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """embed: codes [vocab, hidden], contiguous. turns fp32 [positions, d]: cosine and sine by
    turns. scale: of the attention scores. window: positions that a token sees, its own included;
    0: all."""

    embed: Codes
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: PackedLinear
    turns: Tensor
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    scale: float
    window: int
    library: ctypes.CDLL


_P, _I = ctypes.c_void_p, ctypes.c_int32
_NO_TOKEN = 2
_NORMS = ("attn_norm", "mlp_norm", "q_norm", "k_norm", "q_bias", "k_bias", "v_bias")
_LINEARS = ("q", "k", "v", "o", "gate", "up", "down")


class _Layer(ctypes.Structure):
    _fields_ = [(n, _P) for n in _NORMS] + [(n, Weight) for n in _LINEARS]


class _Embedding(ctypes.Structure):
    _fields_ = [("codes", _P), ("scale", _P), ("shift", _P), ("bits", _I), ("vocab", _I)]


class _Model(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        *((n, _I) for n in ("n_layers", "hidden", "heads", "kv_heads", "d", "intermediate")),
        ("eps", ctypes.c_float), ("scale", ctypes.c_float),
        ("turns", _P), ("norm", _P), ("head", Weight), ("embed", _Embedding),
        ("cache", _P),
        ("n_blocks", _I), ("block_size", _I), ("kv_bits", _I), ("window", _I),
    ]  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = [
        ("n_tokens", _I), ("n_rows", _I), ("n_logits", _I),
        *((n, _P) for n in ("ids", "positions", "row_of", "tables", "table_at", "logits_of",
                            "logits")),
    ]  # fmt: skip


class Decoder:
    """A model over one cache with its own threads. Used by one thread at a time."""

    def __init__(
        self, weights: ModelWeights, cache: Tensor, block_size: int, kv_bits: int, threads: int
    ) -> None:
        """cache uint8 [layers, n_blocks, bytes of a block], contiguous: with kv_bits = 16 as in
        kernels/paged_attention/cpu.h, with 8 as in cpu_int8.h. block_size is a multiple of 16.
        Raises MemoryError."""
        w = weights
        layers = (_Layer * len(w.layers))(*map(_layer, w.layers))
        model = _Model(
            layers, len(w.layers), w.hidden, w.heads, w.kv_heads, w.head_dim, w.intermediate,
            w.norm_eps, w.scale, w.turns.data_ptr(), w.norm.data_ptr(), w.head.weight,
            _embedding(w.embed), cache.data_ptr(), cache.shape[1], block_size, kv_bits,
            w.window,
        )  # fmt: skip
        self._alive = (weights, cache, layers)
        self._library = w.library
        self._library.decoder_new.restype = _P
        self._vocab = w.head.n_out
        self._decoder: int | None = self._library.decoder_new(ctypes.byref(model), threads)
        if self._decoder is None:
            raise MemoryError("no memory for the decoder")

    def run(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        ends: Sequence[int],
        tables: Sequence[Sequence[int]],
        wanted: NDArray[np.int64],
    ) -> Tensor:
        """ids and positions [n_tokens]. ends: where each row's tokens end. tables: each row's
        blocks. wanted [n_logits]: numbers of tokens.

        Returns logits fp32 [n_logits, vocab]. Raises MemoryError, IndexError for an id that is no
        token's. No PyTorch in here: each of its operations lets another thread have the
        interpreter, which then keeps it for a switch interval.
        """
        counts = np.diff(ends, prepend=0)
        lengths = np.fromiter(map(len, tables), np.int32, len(tables))
        table_at = np.cumsum(lengths, dtype=np.int32) - lengths
        blocks = np.fromiter(chain.from_iterable(tables), np.int32, int(lengths.sum()))
        row_of = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
        which, where, of = (x.astype(np.int32) for x in (ids, positions, wanted))
        logits = np.empty((len(of), self._vocab), np.float32)
        step = _Step(
            len(where), len(tables), len(of), which.ctypes.data, where.ctypes.data,
            row_of.ctypes.data, blocks.ctypes.data, table_at.ctypes.data, of.ctypes.data,
            logits.ctypes.data,
        )  # fmt: skip
        failed = self._library.decoder_run(_P(self._decoder), ctypes.byref(step))
        if failed == _NO_TOKEN:
            raise IndexError(f"a token id is none of the vocabulary: {ids.min()} to {ids.max()}")
        if failed:
            raise MemoryError("no memory for a step's working buffers")
        return torch.from_numpy(logits)

    def __del__(self) -> None:
        if getattr(self, "_decoder", None) is not None:
            self._library.decoder_free(_P(self._decoder))


def _layer(layer: LayerWeights) -> _Layer:
    tensors = [getattr(layer, name) for name in _NORMS]
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    return _Layer(*pointers, *(getattr(layer, name).weight for name in _LINEARS))


def _embedding(codes: Codes) -> _Embedding:
    shift = None if codes.shift is None else codes.shift.data_ptr()
    return _Embedding(
        codes.codes.data_ptr(), codes.scale.data_ptr(), shift, codes.bits, codes.codes.shape[0]
    )
