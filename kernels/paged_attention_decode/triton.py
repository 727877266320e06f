"""Decode attention over a paged cache in Triton, positions of a request split over programs.

One program takes a request, a key head with up to M query heads that read it, and a share of the
positions; a second kernel joins the shares (flash decoding). The grid depends on shapes only, so a
call can be recorded in a CUDA graph and replayed with other tables and lengths. The number of
shares is no constant of the kernel: every batch size runs the same one.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import tuning
from kernels.call import KernelCall, power_of_two
from kernels.paged_attention.tile import fold, scale_arguments, shape_class
from kernels.paged_attention_decode.spec import check

MAX_SPLITS = 64
M = 16
"""Query heads of a program: the rows of a tensor core's smallest product."""
_OP = "paged_attention_decode"


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
) -> Tensor:
    """-> [b, heads, d] of q's dtype, in `out` if given. See spec.py.

    workspace: `decode_workspace` for at least this many rows; None allocates one.
    """
    check(q, cache, tables, seen, scales)
    if out is None:
        out = torch.empty_like(q)
    if workspace is None:
        workspace = decode_workspace(q, cache, tables, window)
    launches = calls(
        q, cache, tables, seen, out, workspace, scale=scale, window=window, scales=scales
    )
    for call in launches:
        call.run()
    return out


def decode_workspace(q: Tensor, cache: Tensor, tables: Tensor, window: int = 0) -> Tensor:
    """Room for the shares of any call with up to q's rows on this cache: fp32, uninitialised."""
    b, heads, d = q.shape
    most = max((n * _splits(n, q, cache, tables, window) for n in range(1, b + 1)), default=0)
    return torch.empty(most * heads * (d + 1), dtype=torch.float32, device=q.device)


def calls(
    q: Tensor,
    cache: Tensor,
    tables: Tensor,
    seen: Tensor,
    out: Tensor,
    workspace: Tensor,
    *,
    scale: float,
    window: int = 0,
    scales: Tensor | None = None,
) -> tuple[KernelCall, ...]:
    """The launches of one call, in order. ValueError if the workspace is too small."""
    (b, heads, d), kv_heads = q.shape, cache.shape[2]
    tiles = _tiles(q, cache)
    splits = _splits(b, q, cache, tables, window)
    n_shares = b * heads * splits
    if splits > 1 and workspace.numel() < n_shares * (d + 1):
        raise ValueError(f"the workspace holds {workspace.numel()}, {n_shares * (d + 1)} needed")
    group = heads // kv_heads
    parts = -(-group // M)
    common: dict[str, object] = {
        "seen": seen,
        "out": out,
        "mixes": workspace,
        "sums": workspace[n_shares * d :],
        "out_row": out.stride(0),
        "out_head": out.stride(1),
        "HEADS": heads,
        "D": d,
        "D_PAD": power_of_two(d),
        "WINDOW": window,
        "splits": splits,
        "TILE": tiles["TILE"],
        "MIN_TILES": tiles["MIN_TILES"],
    }
    options = {name: tiles[name] for name in ("num_warps", "num_stages")}
    attend = KernelCall(
        _attend,
        (b, kv_heads * parts, splits),
        {
            **common,
            "q": q,
            "cache": cache,
            "tables": tables,
            "scale": scale * math.log2(math.e),
            "q_row": q.stride(0),
            "q_head": q.stride(1),
            "side_stride": cache.stride(0),
            "block_stride": cache.stride(1),
            "head_stride": cache.stride(2),
            "slot_stride": cache.stride(3),
            **scale_arguments(scales),
            "table_row": tables.stride(0),
            "SHARED": splits > 1,
            "GROUP": group,
            "PARTS": parts,
            "M": M,
            "BLOCK_SIZE": cache.shape[3],
        },
        options,
    )
    if splits == 1:
        return (attend,)
    joined = {**common, "SPLITS_PAD": power_of_two(splits)}
    return attend, KernelCall(_join, (b, heads), joined, {"num_warps": 4, "num_stages": 1})


def _tiles(q: Tensor, cache: Tensor) -> tuning.Launch:
    """TILE: positions at a time. WAVES: programs per multiprocessor to aim at. MIN_TILES: a share's
    least tiles, so that joining stays small beside reading."""
    d, wide = cache.shape[4], q.element_size() > 2
    int8 = cache.element_size() == 1
    tile = (16 if int8 and d > 64 else 32) if wide else 128 if d <= 64 else 64
    default = {"TILE": tile, "WAVES": 4, "MIN_TILES": 256 // tile}
    default |= {"num_warps": 8 if wide or d <= 64 else 4, "num_stages": 2}
    return tuning.launch(_OP, shape_class(q, cache), cache.device, default)


def _splits(b: int, q: Tensor, cache: Tensor, tables: Tensor, window: int) -> int:
    """Shares per request: enough programs for the device, each with work if contexts are long."""
    tiles = _tiles(q, cache)
    positions = tables.shape[1] * cache.shape[3]
    if window:
        positions = min(positions, window + tiles["TILE"])
    most = -(-positions // (tiles["TILE"] * tiles["MIN_TILES"]))
    programs = tiles["WAVES"] * _multiprocessors(cache.device)
    wanted = -(-programs // (max(b, 1) * cache.shape[2]))
    return max(1, min(most, wanted, MAX_SPLITS))


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1  # the interpreter
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _shares(
    n_seen, splits, WINDOW: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr
):  # fmt: skip
    """-> first position seen, first position of its tile, tiles, tiles of one share."""
    low = tl.maximum(n_seen - WINDOW, 0) if WINDOW else n_seen * 0
    start = low // TILE * TILE
    tiles = tl.cdiv(n_seen - start, TILE)
    return low, start, tiles, tl.maximum(tl.cdiv(tiles, splits), MIN_TILES)


@triton.jit(do_not_specialize=["splits"])
def _attend(
    q, cache, tables, seen, out, mixes, sums, splits, scale, q_row, q_head, out_row, out_head,
    side_stride, block_stride, head_stride, slot_stride,
    scales, s_side, s_block, s_head, s_slot, table_row,
    GROUP: tl.constexpr, PARTS: tl.constexpr, M: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SHARED: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    head, part = tl.program_id(1) // PARTS, tl.program_id(1) % PARTS
    n_seen = tl.load(seen + row)
    low, start, tiles, share = _shares(n_seen, splits, WINDOW, TILE, MIN_TILES)
    if SHARED and split * share >= tiles:
        return
    member, column = part * M + tl.arange(0, M), tl.arange(0, D_PAD)
    mine = head * GROUP + member
    kept = (member < GROUP)[:, None] & (column < D)[None, :]
    place = q + row * q_row + mine[:, None] * q_head + column[None, :]
    query = tl.load(place, kept, other=0.0)
    until = tl.zeros([M], tl.int32) + n_seen
    mixed = tl.zeros([M, D_PAD], tl.float32)
    top = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    keys = cache + head.to(tl.int64) * head_stride
    own = scales
    if scales is not None:
        own = scales + head.to(tl.int64) * s_head
    first = start + split * share * TILE
    for at in range(first, tl.minimum(first + share * TILE, n_seen), TILE):
        mixed, top, total = fold(
            mixed, top, total, query, keys, side_stride, tables + row * table_row, at, low, n_seen,
            until, block_stride, slot_stride, own, s_side, s_block, s_slot, scale,
            D, D_PAD, BLOCK_SIZE, TILE, WINDOW,
        )  # fmt: skip
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    if not SHARED:
        place = out + row * out_row + mine[:, None] * out_head + column[None, :]
        tl.store(place, mixed.to(out.dtype.element_ty), kept)
    else:
        which = (row * HEADS + mine) * splits + split
        tl.store(mixes + which[:, None] * D + column[None, :], mixed, kept)
        tl.store(sums + which, top + tl.log2(total), member < GROUP)


@triton.jit(do_not_specialize=["splits"])
def _join(
    seen, out, mixes, sums, splits, out_row, out_head,
    HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, WINDOW: tl.constexpr,
    SPLITS_PAD: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr,
):  # fmt: skip
    """Shares weighted by the sums of their exponentials (given as logarithms to base 2)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _low, _start, tiles, share = _shares(tl.load(seen + row), splits, WINDOW, TILE, MIN_TILES)
    split, column = tl.arange(0, SPLITS_PAD), tl.arange(0, D_PAD)
    used = split * share < tiles
    which = (row * HEADS + head) * splits + split
    share_sum = tl.load(sums + which, used, other=float("-inf"))
    top = tl.max(share_sum, 0)
    weight = tl.exp2(share_sum - tl.where(tiles == 0, 0.0, top))
    kept = used[:, None] & (column < D)[None, :]
    mixed = tl.load(mixes + which[:, None] * D + column[None, :], kept, other=0.0)
    total = tl.sum(weight, 0)
    mixed = tl.sum(mixed * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    place = out + row * out_row + head * out_head + column
    tl.store(place, mixed.to(out.dtype.element_ty), column < D)
