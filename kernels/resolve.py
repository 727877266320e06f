"""Chooses one implementation of an operation for a device, once, and says which.

An operation is a folder here; its `reference.py` is plain PyTorch and always works. Faster modules
are listed before it with the condition under which they can be used.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import torch

log = logging.getLogger(__name__)

_Usable: TypeAlias = Callable[[str], bool]
_chosen: dict[tuple[str, str], str] = {}


def _always(device: str) -> bool:
    return True


def _cpu_with_fbgemm(device: str) -> bool:
    return device == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def _triton(device: str) -> bool:
    """On an NVIDIA GPU; on the CPU only where Triton was told to interpret its kernels."""
    if device == "cpu":
        return interpreting() and importlib.util.find_spec("triton") is not None
    return device == "cuda" and not _no_triton()


@cache
def _no_triton() -> str:
    """Why Triton can't be used on a GPU here, logged once; empty if it can."""
    why = ""
    if importlib.util.find_spec("triton") is None:
        why = "triton is not installed (pip install triton)"
    elif not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        why = "triton needs a C compiler for its launchers: install gcc (or set CC)"
    if why:
        log.warning("%s: GPU kernels fall back to plain PyTorch, many times slower", why)
    return why


_REFERENCE: tuple[str, _Usable] = ("reference", _always)
_GPU: tuple[tuple[str, _Usable], ...] = (("triton", _triton), _REFERENCE)

_CANDIDATES: dict[str, tuple[tuple[str, _Usable], ...]] = {
    "kv_copy": _GPU,
    "kv_write": _GPU,
    "linear_group": _GPU,
    "linear_w8": (("fbgemm", _cpu_with_fbgemm), _REFERENCE),
    "logits_mask": _GPU,
    "paged_attention": (_REFERENCE,),
    "paged_attention_decode": _GPU,
    "paged_attention_prefill": _GPU,
    "rms_norm": _GPU,
    "rms_norm_add": _GPU,
    "rope": (_REFERENCE,),
    "rope_at": _GPU,
    "sample": _GPU,
    "silu_mul": _GPU,
}
"""Operation -> (module in its folder, when it can be used), the best first."""

_FOLDERS = {"rms_norm_add": "rms_norm", "rope_at": "rope"}
"""Operations that live in another's folder."""


def operations() -> tuple[str, ...]:
    """Names of every operation."""
    return tuple(_CANDIDATES)


def interpreting() -> bool:
    """Whether Triton's kernels run as Python on the CPU: for tests and dry runs."""
    return os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def resolve(op: str, device: str | torch.device = "cpu") -> Any:
    """The callable (named like the operation) to use for `op` on `device` ("cpu", "cuda").

    Raises KeyError for an unknown operation.
    """
    return _resolve(op, torch.device(device).type)


def chosen() -> dict[tuple[str, str], str]:
    """What was resolved so far: (operation, device) -> the module's name ("triton")."""
    return dict(_chosen)


@cache
def _resolve(op: str, device: str) -> Any:
    for name, usable in _CANDIDATES[op]:
        if usable(device):
            module = importlib.import_module(f"kernels.{_FOLDERS.get(op, op)}.{name}")
            log.info("kernel %s on %s: %s", op, device, name)
            _chosen[op, device] = name
            return getattr(module, op)
    raise AssertionError(f"{op} has no reference")
