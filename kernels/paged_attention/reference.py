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
    """Stores kv fp32 [n, 2 * kv_heads, d] in one layer's cache; where: Plan.write."""
    d = cache.shape[-1]
    cache.view(-1, d).index_copy_(0, where, kv.reshape(-1, d))


def paged_attention(q: Tensor, cache: Tensor, plan: Plan) -> Tensor:
    """q fp32 [n, heads, d], already scaled; cache: one layer's -> fp32 [n, heads * d]."""
    group = plan.decode
    if group is not None and group.tokens is None and not plan.prefills:
        return _decode_rows(q, cache, group)
    n, heads, d = q.shape
    out = q.new_empty(n, heads * d)
    if group is not None:
        if group.tokens is None:
            out[: group.n] = _decode_rows(q[: group.n], cache, group)
        else:
            rows = _decode_rows(q.index_select(0, group.tokens), cache, group)
            out.index_copy_(0, group.tokens, rows)
    for chunk in plan.prefills:
        part = slice(chunk.first, chunk.first + chunk.n)
        out[part] = _prefill_rows(q[part], cache, chunk)
    return out


def _decode_rows(q: Tensor, cache: Tensor, group: Decode) -> Tensor:
    """q [b, heads, d], one query per request -> [b, heads * d]."""
    b, heads, d = q.shape
    kv_heads = cache.shape[2]
    share = heads // kv_heads
    query = q.reshape(b * kv_heads, share, d)
    if share < MIN_ROWS:
        thin, query = query, q.new_zeros(b * kv_heads, MIN_ROWS, d)
        query[:, :share] = thin
    keys, values = _gather(cache, group)
    scores = torch.bmm(query, keys.transpose(1, 2))
    scores.view(b, -1, group.padded).add_(group.mask)
    return _mix(scores, values)[:, :share].reshape(b, heads * d)


def _prefill_rows(q: Tensor, cache: Tensor, chunk: Prefill) -> Tensor:
    """q [n, heads, d] of consecutive positions of one request -> [n, heads * d]."""
    n, heads, d = q.shape
    kv_heads = cache.shape[2]
    share = heads // kv_heads
    wide = chunk.mask.shape[0]
    query = q.new_zeros(kv_heads, wide, share, d)
    query[:, :n] = q.reshape(n, kv_heads, share, d).transpose(0, 1)
    keys, values = _gather(cache, chunk)
    scores = torch.bmm(query.view(kv_heads, wide * share, d), keys.transpose(1, 2))
    scores.view(kv_heads, wide, share, -1).add_(chunk.mask)
    mixed = _mix(scores, values).view(kv_heads, wide, share, d)
    return mixed[:, :n].transpose(0, 1).reshape(n, heads * d)


def _gather(cache: Tensor, group: Decode | Prefill) -> tuple[Tensor, Tensor]:
    """Keys and values, each [requests * kv_heads, padded, d]."""
    block, d = cache.shape[3:]
    rows = cache.view(-1, block * d).index_select(0, group.gather)
    keys, values = rows.view(2, -1, group.padded, d).unbind(0)
    return keys, values


def _mix(scores: Tensor, values: Tensor) -> Tensor:
    """scores [r, rows, padded], values [r, padded, d] -> [r, rows, d], summed tile by tile."""
    weights = torch.softmax(scores, -1)
    mixed = torch.bmm(weights[:, :, :TILE], values[:, :TILE])
    for start in range(TILE, scores.shape[-1], TILE):
        tile = slice(start, start + TILE)
        mixed.baddbmm_(weights[:, :, tile], values[:, tile])
    return mixed


def plan(
    spans: Sequence[tuple[int, int, Sequence[int]]],
    *,
    kv_heads: int,
    block_size: int,
    n_blocks: int,
    window: int = 0,
) -> Plan:
    """Index tensors of a step. spans: (start, n tokens, block table) per row, in token order.

    window: positions that a query sees, its own included; 0 for all before it.
    """
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
            prefills += _prefills(token, start, n, table, kv_heads, block_size, n_blocks, window)
        token += n
    side = np.arange(2)[:, None] * (n_blocks * kv_heads * block_size)
    head = np.arange(kv_heads) * block_size
    rows = np.concatenate(write)[:, None, None] + (side + head)
    return Plan(
        write=torch.from_numpy(rows.reshape(-1)),
        decode=_decode(singles, kv_heads, block_size, n_blocks, window) if singles else None,
        prefills=tuple(prefills),
    )


def _padded(n_seen: int) -> int:
    return -(-n_seen // PAD) * PAD


def _pairs(tables: NDArray[np.int64], kv_heads: int, n_blocks: int) -> Tensor:
    """Block tables [b, blocks] -> flat (block, kv head) numbers of the keys, then of the values.

    In the order (keys and values, b, kv head, block).
    """
    keys = (tables[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]).reshape(-1)
    return torch.from_numpy(np.concatenate((keys, keys + n_blocks * kv_heads)))


def _decode(
    singles: list[tuple[int, int, NDArray[np.int64]]],
    kv_heads: int,
    block_size: int,
    n_blocks: int,
    window: int,
) -> Decode:
    padded = _padded(max(n_seen for _, n_seen, _ in singles))
    tables = np.zeros((len(singles), padded // block_size), np.int64)
    lengths = np.empty(len(singles), np.int64)
    for i, (_, n_seen, table) in enumerate(singles):
        used = -(-n_seen // block_size)
        tables[i, :used] = table[:used]
        tables[i, used:] = table[0]  # any block of its own: masked, and never another caller's
        lengths[i] = n_seen
    tokens = np.fromiter((token for token, _, _ in singles), np.int64, len(singles))
    in_place = bool((tokens == np.arange(len(tokens))).all())
    return Decode(
        tokens=None if in_place else torch.from_numpy(tokens),
        n=len(singles),
        gather=_pairs(tables, kv_heads, n_blocks),
        mask=_mask(lengths, padded, window),
        padded=padded,
    )


def _mask(seen: NDArray[np.int64], padded: int, window: int) -> Tensor:
    """seen int64 [n] -> fp32 [n, 1, padded]: 0 where a query attends, elsewhere -inf."""
    at = np.arange(padded)
    visible = at < seen[:, None]
    if window:
        visible &= at >= seen[:, None] - window
    mask = np.where(visible, np.float32(0), np.float32(-np.inf))
    return torch.from_numpy(mask)[:, None, :]


def _prefills(
    token: int,
    start: int,
    n: int,
    table: NDArray[np.int64],
    kv_heads: int,
    block_size: int,
    n_blocks: int,
    window: int,
) -> list[Prefill]:
    chunks = []
    for offset in range(0, n, CHUNK):
        size = min(CHUNK, n - offset)
        first = start + offset
        padded = _padded(first + size)
        used = -(-(first + size) // block_size)
        blocks = np.full((1, padded // block_size), table[0], np.int64)
        blocks[0, :used] = table[:used]
        seen = np.arange(first + 1, first + max(size, MIN_ROWS) + 1)
        chunks.append(
            Prefill(
                first=token + offset,
                n=size,
                gather=_pairs(blocks, kv_heads, n_blocks),
                mask=_mask(seen, padded, window),
                padded=padded,
            )
        )
    return chunks
