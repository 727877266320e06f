"""A weight packed for the native CPU kernel."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from kernels import build
from kernels.linear_group.spec import GROUP, Codes, pack


class Weight(ctypes.Structure):
    """The C struct of cpu.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("n_in", ctypes.c_int32),
        ("n_out", ctypes.c_int32),
        ("bits", ctypes.c_int32),
        ("shifted", ctypes.c_int32),
    ]


class PackedLinear:
    """y = x @ W.T. Owns its copy of the weight, in huge pages; calling it uses one thread."""

    def __init__(self, codes: Codes, library: ctypes.CDLL | None = None) -> None:
        """Raises build.NativeUnavailable; ValueError if n_in is no multiple of 32."""
        self.n_out, self.n_in = codes.codes.shape
        if self.n_in % GROUP:
            raise ValueError(f"n_in must be a multiple of {GROUP}, it is {self.n_in}")
        self._library = library or build.library()
        packed = pack(codes)
        self._memory = Memory(self._library, packed.numel())
        ctypes.memmove(self._memory.address, packed.data_ptr(), packed.numel())
        self.weight = Weight(
            self._memory.address, self.n_in, self.n_out, codes.bits, codes.shift is not None
        )
        self.n_bytes = packed.numel()

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out]."""
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.n_out)
        self._library.linear_group_run(
            ctypes.byref(self.weight), ctypes.c_void_p(x.data_ptr()), x.shape[0],
            ctypes.c_void_p(None if bias is None else bias.data_ptr()),
            ctypes.c_void_p(y.data_ptr()),
        )  # fmt: skip
        return y


class Memory:
    """Zeroed bytes in huge pages where the system gives them, freed with the object."""

    def __init__(self, library: ctypes.CDLL, n_bytes: int) -> None:
        """Raises MemoryError."""
        library.native_alloc.restype = ctypes.c_void_p
        self.n_bytes = max(1, n_bytes)
        address: int | None = library.native_alloc(ctypes.c_int64(self.n_bytes))
        if address is None:
            raise MemoryError(f"no memory for {n_bytes} bytes of weights")
        self.address = address
        self._free: Any = library.native_free

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._free(ctypes.c_void_p(self.address), ctypes.c_int64(self.n_bytes))
