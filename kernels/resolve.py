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
from types import ModuleType
from typing import Any, TypeAlias

import torch

from kernels import cuda_build, tuning

log = logging.getLogger(__name__)

_Usable: TypeAlias = Callable[[str, str], bool]
"""(device, class of shapes or "") -> whether it can be used."""
_chosen: dict[tuple[str, str], str] = {}


def _always(device: str, shape: str) -> bool:
    return True


def _cpu_with_fbgemm(device: str, shape: str) -> bool:
    return device == "cpu" and "fbgemm" in torch.backends.quantized.supported_engines


def _triton(device: str, shape: str) -> bool:
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


def _cuda_for(op: str) -> _Usable:
    """CUDA C++ for an operation: where the device's tuning file says that it won, and it loads."""

    def usable(device: str, shape: str) -> bool:
        if device != "cuda" or not torch.cuda.is_available():
            return False
        if tuning.implementation(op, torch.device(device), shape) != "cuda":
            return False
        try:
            cuda_build.library()
        except cuda_build.CudaUnavailable as why:
            place = tuning.place(op, shape)
            log.warning("kernel %s: CUDA C++ is faster here but not to be had: %s", place, why)
            return False
        return True

    return usable


_REFERENCE: tuple[str, _Usable] = ("reference", _always)
_GPU: tuple[tuple[str, _Usable], ...] = (("triton", _triton), _REFERENCE)

_CANDIDATES: dict[str, tuple[tuple[str, _Usable], ...]] = {
    "kv_copy": _GPU,
    "kv_write": _GPU,
    "linear_group": (("cuda", _cuda_for("linear_group")), *_GPU),
    "linear_w8": (("fbgemm", _cpu_with_fbgemm), _REFERENCE),
    "logits_mask": _GPU,
    "paged_attention": (_REFERENCE,),
    "paged_attention_decode": (("cuda", _cuda_for("paged_attention_decode")), *_GPU),
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
    return getattr(module_for(op, device), op)


def module_for(
    op: str, device: str | torch.device = "cpu", shape: str = "", **given: Any
) -> ModuleType:
    """Where that callable is, with what belongs to it (`decode_workspace`).

    shape: a class of shapes (as in `kernels.tuning`) for operations that choose for each of them.
    given: what it will be called with, if the caller knows: a module whose `takes` refuses that is
    passed over.
    """
    return _module(op, torch.device(device).type, shape, tuple(sorted(given.items())))


def chosen() -> dict[tuple[str, str], str]:
    """What was resolved so far: (operation, or operation and class of shapes, device) -> the
    module's name ("triton")."""
    return dict(_chosen)


@cache
def _module(op: str, device: str, shape: str, given: tuple[tuple[str, Any], ...]) -> ModuleType:
    place = tuning.place(op, shape)
    for name, usable in _CANDIDATES[op]:
        if usable(device, shape):
            module = importlib.import_module(f"kernels.{_FOLDERS.get(op, op)}.{name}")
            if given and hasattr(module, "takes") and not module.takes(**dict(given)):
                asked = ", ".join(f"{key} {value}" for key, value in given)
                log.info("kernel %s on %s: %s does not take %s", place, device, name, asked)
                continue
            log.info("kernel %s on %s: %s", place, device, name)
            _chosen[place, device] = name
            return module
    raise AssertionError(f"{op} has no reference")
