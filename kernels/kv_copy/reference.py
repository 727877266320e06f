"""Copying rows between blocks of a paged cache, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor

from kernels.kv_copy.spec import check


def kv_copy(
    cache: Tensor, src: Tensor, dst: Tensor, n_rows: Tensor, scales: Tensor | None = None
) -> None:
    """Copies the first n_rows[i] positions of block src[i] to dst[i], all layers. See spec.py."""
    check(cache, src, dst, n_rows, scales)
    for source, target, n in zip(src.tolist(), dst.tolist(), n_rows.tolist(), strict=True):
        cache[:, :, target, :, :n] = cache[:, :, source, :, :n]
        if scales is not None:
            scales[:, :, target, :, :n] = scales[:, :, source, :, :n]
