"""Loads a model in the form that its weights and this machine allow."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from engine.errors import UsageError
from engine.models.batch import Model
from engine.models.layers import Quant
from engine.models.llama import Llama
from engine.models.native import NativeLlama
from kernels.build import NativeUnavailable

log = logging.getLogger(__name__)


def load_model(
    path: Path,
    quant: Quant | Literal["auto"],
    *,
    max_len: int | None,
    threads: int,
    block_size: int,
    kv_int8: bool = False,
) -> Model:
    """Reads a GGUF file or safetensors folder; "auto" is "native" where that runs, else "int8".

    max_len None: the model's own limit. kv_int8: a cache in 8 bits, which only "native" has. Raises
    ModelError for an unusable file, UsageError for "native" where it can't be.
    """
    if quant in ("auto", "native"):
        try:
            return NativeLlama.load(
                path, max_len=max_len, threads=threads, block_size=block_size, kv_int8=kv_int8
            )
        except NativeUnavailable as reason:
            if quant == "native":
                raise UsageError(f"quant = native: {reason}") from None
            log.warning("slower int8 kernels of PyTorch are used: %s", reason)
    if kv_int8:
        log.warning("kv_cache = int8 needs the native kernels on a CPU: the cache is fp32")
    kind: Quant = "fp32" if quant == "fp32" else "int8"
    return Llama.load(path, quant=kind, max_len=max_len, threads=threads)
