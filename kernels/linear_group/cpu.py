"""A weight packed for the native CPU kernel."""

from __future__ import annotations

import ctypes
import threading
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
    """y = x @ W.T. Owns its copy of the weight, in an arena; calling it uses one thread."""

    def __init__(self, codes: Codes, arena: Arena | None = None) -> None:
        """arena: shared by a model's weights; None makes one. Raises build.NativeUnavailable,
        MemoryError; ValueError if n_in is no multiple of 32."""
        self.n_out, self.n_in = codes.codes.shape
        if self.n_in % GROUP:
            raise ValueError(f"n_in must be a multiple of {GROUP}, it is {self.n_in}")
        packed = pack(codes)
        self.n_bytes = packed.numel()
        self._arena = arena or Arena(build.library(), self.n_bytes)
        self._library = self._arena.library
        address = self._arena.take(self.n_bytes)
        ctypes.memmove(address, packed.data_ptr(), self.n_bytes)
        self.weight = Weight(address, self.n_in, self.n_out, codes.bits, codes.shift is not None)

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x fp32 [n, n_in], bias fp32 [n_out] -> fp32 [n, n_out]."""
        x = x.contiguous()
        y = torch.empty(x.shape[0], self.n_out)
        self._library.linear_group_run(
            ctypes.byref(self.weight), ctypes.c_void_p(x.data_ptr()), x.shape[0],
            ctypes.c_void_p(None if bias is None else bias.data_ptr()),
            ctypes.c_void_p(y.data_ptr()), None,
        )  # fmt: skip
        return y


class Arena:
    """Memory for weights in huge pages where the system gives them; freed with the object.

    Small matrices side by side share huge pages, and reading past one prefetches the next.
    """

    def __init__(self, library: ctypes.CDLL, chunk_bytes: int = 32 << 20) -> None:
        """chunk_bytes: how much is asked of the system at once."""
        self.library = library
        library.native_alloc.restype = ctypes.c_void_p
        self._free: Any = library.native_free
        self._chunk_bytes = chunk_bytes
        self._chunks: list[int] = []
        self._lock = threading.Lock()
        self._at = self._end = 0

    def take(self, n_bytes: int) -> int:
        """The address of n_bytes on a 64-byte boundary; any thread. Raises MemoryError."""
        n_bytes = -(-n_bytes // 64) * 64
        with self._lock:
            if self._at + n_bytes > self._end:
                size = max(n_bytes, self._chunk_bytes)
                address: int | None = self.library.native_alloc(ctypes.c_int64(size))
                if address is None:
                    raise MemoryError(f"no memory for {size} bytes of weights")
                self._chunks.append(address)
                self._at, self._end = address, address + size
            address, self._at = self._at, self._at + n_bytes
        return address

    def __del__(self) -> None:
        for address in getattr(self, "_chunks", ()):
            self._free(ctypes.c_void_p(address))
