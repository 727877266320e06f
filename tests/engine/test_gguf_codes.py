"""GGUF's blocks as codes stand for the same numbers as the `gguf` package's own dequantisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from engine.models.gguf_codes import KINDS, codes

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_format(kind: Kind) -> None:
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(0, 256, (24, 512 // block, size), np.uint8)
    for at in (0, 2):  # the scales: finite, and of different signs
        halves = np.random.default_rng(at).normal(0, 0.02, raw.shape[:2]).astype(np.float16)
        raw[:, :, at : at + 2] = halves[:, :, None].view(np.uint8)
    want = torch.from_numpy(dequantize(raw.reshape(24, -1), kind).copy())
    got = codes(raw.reshape(-1), kind, (24, 512)).dense()
    # K-blocks multiply two scales, and the product rounds to fp16
    relative = 2**-10 if kind in (Kind.Q4_K, Kind.Q5_K) else 0.0
    assert (got - want).abs().max() <= relative * want.abs().max()
