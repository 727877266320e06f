"""Chooses one implementation of an operation for a device, once, and says which.

An operation is a folder here; its `reference.py` is plain PyTorch and always works. A faster module
is listed below with the condition under which it can be used.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


def _always(device: str) -> bool:
    return True


def _cpu_with_fbgemm(device: str) -> bool:
    import torch

    return device == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


_CANDIDATES: dict[str, tuple[tuple[str, Callable[[str], bool]], ...]] = {
    "linear_w8": (("fbgemm", _cpu_with_fbgemm), ("reference", _always)),
    "paged_attention": (("reference", _always),),
    "rms_norm": (("reference", _always),),
    "rope": (("reference", _always),),
    "silu_mul": (("reference", _always),),
}


def operations() -> tuple[str, ...]:
    """Names of every operation."""
    return tuple(_CANDIDATES)


@cache
def resolve(op: str, device: str = "cpu") -> Any:
    """The callable (named like the operation) to use for `op` on `device` ("cpu", "cuda").

    Raises KeyError for an unknown operation.
    """
    for name, usable in _CANDIDATES[op]:
        if usable(device):
            module: ModuleType = importlib.import_module(f"kernels.{op}.{name}")
            log.info("kernel %s on %s: %s", op, device, name)
            return getattr(module, op)
    raise AssertionError(f"{op} has no reference")
