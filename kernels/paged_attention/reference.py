"""Paged attention (arXiv 2309.06180) in plain PyTorch: gather blocks, then dense products.

Also builds the index tensors of a step (`plan`), once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.paged_attention.spec import CHUNK, MIN_ROWS, PAD, TILE, Decode, Plan, Prefill


def write_kv(cache: Tensor, kv: Tensor, where: Tensor) -> None:
    """Stores keys and values. cache: one layer's; kv fp32 [n, 2 * kv_heads, d]; where: Plan.write."""
    d = cache.shape[-1]
    cache.view(-1, d).index_copy_(0, where, kv.reshape(-1, d))


def paged_attention(q: Tensor, cache: Tensor, plan: Plan) -> Tensor:
    """q fp32 [n, heads, d], already scaled; cache: one layer's -> fp32 [n, heads * d]."""
    n, heads, d = q.shape
    out = torch.empty(n, heads * d)
    if plan.decode is not None:
        group = plan.decode
        rows = q[: group.n] if group.tokens is None else q.index_select(0, group.tokens)
        seen = _attend(rows.unsqueeze(1), cache, group)
        if group.tokens is None:
            out[: group.n] = seen
        else:
            out.index_copy_(0, group.tokens, seen)
    for chunk in plan.prefills:
        part = slice(chunk.first, chunk.first + chunk.n)
        out[part] = _attend(q[part].unsqueeze(0), cache, chunk)
    return out


def _attend(q: Tensor, cache: Tensor, group: Decode | Prefill) -> Tensor:
    """q [requests, tokens, heads, d] of requests that share one padded length -> [.., heads * d]."""
    b, n, heads, d = q.shape
    _, _, kv_heads, block, _ = cache.shape
    share = heads // kv_heads
    rows = n * share
    wide = max(MIN_ROWS, rows)
    length = group.padded
    pairs = cache.view(2, -1, block * d)
    keys = pairs[0].index_select(0, group.gather).view(b * kv_heads, length, d)
    values = pairs[1].index_select(0, group.gather).view(b * kv_heads, length, d)
    query = torch.zeros(b, kv_heads, wide, d) if wide > rows else torch.empty(b, kv_heads, rows, d)
    query[:, :, :rows].unflatten(2, (n, share)).copy_(
        q.view(b, n, kv_heads, share, d).transpose(1, 2)
    )
    scores = torch.bmm(query.view(b * kv_heads, wide, d), keys.transpose(1, 2))
    scores.view(b, kv_heads, wide, length)[:, :, :rows].unflatten(2, (n, share)).add_(
        group.mask.unsqueeze(1)
    )
    weights = torch.softmax(scores, -1)
    mixed = torch.bmm(weights[:, :, :TILE], values[:, :TILE])
    for start in range(TILE, length, TILE):
        tile = slice(start, start + TILE)
        mixed.baddbmm_(weights[:, :, tile], values[:, tile])
    mixed = mixed.view(b, kv_heads, wide, d)[:, :, :rows].unflatten(2, (n, share))
    return mixed.transpose(1, 2).reshape(b * n, heads * d)


def plan(
    spans: Sequence[tuple[int, int, Sequence[int]]],
    *,
    kv_heads: int,
    block_size: int,
    n_blocks: int,
) -> Plan:
    """Index tensors of a step. spans: (start, n tokens, block table) of each row, in token order."""
    write: list[NDArray[np.int64]] = []
    singles: list[tuple[int, int, NDArray[np.int64]]] = []
    prefills: list[Prefill] = []
    token = 0
    for start, n, blocks in spans:
        table = np.asarray(blocks, np.int64)
        positions = np.arange(start, start + n)
        write.append(
            table[positions // block_size] * (kv_heads * block_size) + positions % block_size
        )
        if n == 1:
            singles.append((token, start + 1, table))
        else:
            prefills += _prefills(token, start, n, table, kv_heads, block_size)
        token += n
    side = np.arange(2)[:, None] * (n_blocks * kv_heads * block_size)
    head = np.arange(kv_heads) * block_size
    rows = np.concatenate(write)[:, None, None] + (side + head)
    return Plan(
        write=torch.from_numpy(rows.reshape(-1)),
        decode=_decode(singles, kv_heads, block_size) if singles else None,
        prefills=tuple(prefills),
    )


def _padded(n_seen: int) -> int:
    return -(-n_seen // PAD) * PAD


def _pairs(tables: NDArray[np.int64], kv_heads: int) -> Tensor:
    """Block tables [b, blocks] -> flat (block, kv head) numbers in the order (b, kv head, block)."""
    pairs = tables[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]
    return torch.from_numpy(pairs.reshape(-1))


def _decode(
    singles: list[tuple[int, int, NDArray[np.int64]]], kv_heads: int, block_size: int
) -> Decode:
    padded = _padded(max(n_seen for _, n_seen, _ in singles))
    tables = np.zeros((len(singles), padded // block_size), np.int64)
    lengths = np.empty(len(singles), np.int64)
    for i, (_, n_seen, table) in enumerate(singles):
        used = -(-n_seen // block_size)
        tables[i, :used] = table[:used]
        tables[i, used:] = table[0]  # any block of its own: masked, and never another caller's
        lengths[i] = n_seen
    mask = np.where(np.arange(padded) < lengths[:, None], np.float32(0), np.float32(-np.inf))
    tokens = np.fromiter((token for token, _, _ in singles), np.int64, len(singles))
    in_place = bool((tokens == np.arange(len(tokens))).all())
    return Decode(
        tokens=None if in_place else torch.from_numpy(tokens),
        n=len(singles),
        gather=_pairs(tables, kv_heads),
        mask=torch.from_numpy(mask)[:, None, None, :],
        padded=padded,
    )


def _prefills(
    token: int, start: int, n: int, table: NDArray[np.int64], kv_heads: int, block_size: int
) -> list[Prefill]:
    chunks = []
    for offset in range(0, n, CHUNK):
        size = min(CHUNK, n - offset)
        first = start + offset
        padded = _padded(first + size)
        used = -(-(first + size) // block_size)
        blocks = np.full((1, padded // block_size), table[0], np.int64)
        blocks[0, :used] = table[:used]
        seen = np.arange(first + 1, first + size + 1)
        mask = np.where(np.arange(padded) < seen[:, None], np.float32(0), np.float32(-np.inf))
        chunks.append(
            Prefill(
                first=token + offset,
                n=size,
                gather=_pairs(blocks, kv_heads),
                mask=torch.from_numpy(mask)[None, :, None, :],
                padded=padded,
            )
        )
    return chunks
