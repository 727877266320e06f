"""Decode attention over a paged cache in CUDA C++ (cuda.cu): fp16 and bf16, one launch a batch.

A row's context is cut into splits of a fixed length that depends on the width of the block table
alone, so a row's result is bit-identical alone and in any batch. One block takes a split, a key
head and up to eight of its query heads; of a row's blocks the one that comes last joins their
results, so there is no second launch. Blocks of a shorter row's unused splits end at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import cuda_build
from kernels.cuda_build import KINDS, Kernels
from kernels.paged_attention_decode.spec import HEAD_DIMS, check

TILE = 16
HEADS = 8
SPLIT = 256
"""Positions of a split: 16 tiles, four for each warp of a block."""
MAX_SPLITS = 64
COUNTERS = 1 << 14
"""Words at the start of a workspace that count a row's blocks; zero between launches."""


def takes(dtype: torch.dtype, head_dim: int, kv_int8: bool = False) -> bool:
    """Whether these kernels are made for such queries; `paged_attention_decode` names the rest."""
    return dtype in (torch.float16, torch.bfloat16) and head_dim in HEAD_DIMS and not kv_int8


def decode_workspace(q: Tensor, cache: Tensor, tables: Tensor, window: int = 0) -> Tensor:
    """Room for the splits of any call with up to q's rows on this cache: fp32.

    One call at a time may use it: calls on one stream, or a graph's.
    """
    _tiles, splits = _split(tables, cache, window)
    _pairs, shares = _shares(q, cache, splits)
    size = COUNTERS + shares * (q.shape[2] + 2)
    work = torch.empty(size, dtype=torch.float32, device=q.device)
    work[:COUNTERS] = 0
    return work


def paged_attention_decode(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    seen: Tensor,
    *,
    scale: float,
    window: int = 0,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
    scales: Tensor | None = None,
    kernels: Kernels | None = None,
) -> Tensor:
    """-> [b, heads, d] of q's dtype, in `out` if given. See spec.py.

    workspace: `decode_workspace` for at least this many rows; None allocates one. Raises ValueError
    for what these kernels don't take (fp32, int8 caches, other head sizes, blocks that are no
    multiple of 16, addresses and strides that are no multiple of 16 bytes),
    cuda_build.CudaUnavailable, cuda_build.LaunchError.
    """
    if scales is not None:
        raise ValueError("an int8 cache is not for the CUDA C++ kernels: Triton's take it")
    kernels = kernels or cuda_build.library()
    check(q, cache, tables, seen)
    (b, heads, d), (kv_heads, block_size) = q.shape, cache.shape[2:4]
    out = torch.empty(b, heads, d, dtype=q.dtype, device=q.device) if out is None else out
    _check(q, cache, tables, seen, out)
    tiles, splits = _split(tables, cache, window)
    work = decode_workspace(q, cache, tables, window) if workspace is None else workspace
    pairs, shares = _shares(q, cache, splits)
    if pairs > COUNTERS or work.numel() < COUNTERS + shares * (d + 2):
        raise ValueError(f"{b} rows need a larger workspace than {work.numel()}")
    kernels.check(q, cache, tables, seen, out, work)
    partial = work[COUNTERS:]
    if b:
        kernels.launch(
            "paged_attention_decode_run", q, q.stride(0), q.stride(1), cache, cache.stride(0),
            cache.stride(1), cache.stride(2), tables, tables.stride(0), seen, b, heads, kv_heads, d,
            block_size, window, tiles, splits, float(scale), KINDS[q.dtype], out, out.stride(0),
            out.stride(1), work, partial, partial[shares * d :],
        )  # fmt: skip
    return out


def _split(tables: Tensor, cache: Tensor, window: int) -> tuple[int, int]:
    """Tiles of a split, and most splits of a row."""
    positions = tables.shape[1] * cache.shape[3]
    if window:
        positions = min(positions, window + TILE)  # the first tile may be a part
    tiles = max(1, -(-positions // TILE))
    per_split = max(SPLIT // TILE, -(-tiles // MAX_SPLITS))
    return per_split, -(-tiles // per_split)


def _shares(q: Tensor, cache: Tensor, splits: int) -> tuple[int, int]:
    """Blocks of one split, and heads of all splits whose results must be kept."""
    group = q.shape[1] // cache.shape[2]
    pairs = q.shape[0] * cache.shape[2] * -(-group // HEADS)
    return pairs, pairs * min(group, HEADS) * splits if splits > 1 else 0


def _check(q: Tensor, cache: Tensor, tables: Tensor, seen: Tensor, out: Tensor) -> None:
    d, block_size = cache.shape[4], cache.shape[3]
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"fp16 or bf16 is needed, not {q.dtype}")
    if d not in HEAD_DIMS:
        raise ValueError(f"head size {d} is none of {HEAD_DIMS}")
    if block_size % TILE or cache.stride(3) != d:
        raise ValueError(f"blocks need a multiple of {TILE} positions, dense; not {block_size}")
    if tables.dtype != torch.int32 or seen.dtype != torch.int32 or not seen.is_contiguous():
        raise ValueError("tables and seen must be int32, seen contiguous")
    if out.shape != q.shape or out.dtype != q.dtype or out.stride(2) != 1:
        raise ValueError("out must be as q is, its last dimension dense")
    strides = (*q.stride()[:2], *cache.stride()[:3])
    if any(stride % 8 for stride in strides) or q.data_ptr() % 16 or cache.data_ptr() % 16:
        raise ValueError("queries and cache must begin, row by row, at multiples of 16 bytes")
