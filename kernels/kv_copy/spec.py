"""Shapes, layout and bytes of kv_copy: the first rows of blocks into other blocks, in all layers.

cache [layers, 2, n_blocks, kv_heads, block_size, d], last dimension dense; src, dst, n_rows int64
[m]: positions 0 .. n_rows[i] - 1 of block src[i], keys and values, go to block dst[i]. Reuses what
a partly matching block has computed. No dst is another pair's src or dst. n_rows 0 copies nothing.
An int8 cache's scales fp32 [layers, 2, n_blocks, kv_heads, block_size], any strides, go with them.
"""

from __future__ import annotations

from torch import Tensor

from kernels.kv_write.spec import check_scales


def check(
    cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor, scales: Tensor | None = None
) -> None:
    """Raises ValueError for shapes or strides that the kernels do not take."""
    if not src.shape == dst.shape == n_rows.shape:
        raise ValueError(
            f"{src.shape[0]} sources, {dst.shape[0]} targets, {n_rows.shape[0]} lengths"
        )
    if cache.stride(5) != 1:
        raise ValueError("the last dimension of the cache must be dense")
    check_scales(cache, scales)


def bytes_moved(
    n_rows: int, layers: int, kv_heads: int, d: int, itemsize: int, *, int8: bool = False
) -> int:
    """Bytes of one pair: keys and values read and written once."""
    return 2 * 2 * layers * n_rows * kv_heads * (d + 4 if int8 else d * itemsize)
