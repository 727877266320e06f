"""bfloat16 in Triton's interpreter, which keeps it as raw 16-bit integers.

`tl.dot` and arithmetic on them would silently be those of the integers. Here a product converts its
operands first, as tensor cores do; any other arithmetic raises: kernels compute in fp32.
Conversions round to nearest even, as a GPU's do; the interpreter's own cut off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_FLAG = "_bf16_products"


def install() -> None:
    """Once per process; again does nothing."""
    if hasattr(InterpreterBuilder, _FLAG):
        return
    dot, binary = InterpreterBuilder.create_dot, InterpreterBuilder.binary_op
    cast = InterpreterBuilder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), *rest)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        assert tl.bfloat16 not in (left.dtype.scalar, right.dtype.scalar), (
            f"{op.__name__} of bfloat16: the kernel must convert to fp32 first"
        )
        return binary(self, left, right, op)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        pair = source.dtype.scalar, target.scalar
        if pair == (tl.bfloat16, tl.float32):
            return _widened(source)
        if pair == (tl.float32, tl.bfloat16):
            return TensorHandle(_narrowed(np.asarray(source.data)), tl.bfloat16)
        assert tl.bfloat16 not in pair or pair[0] == pair[1], f"{pair}: convert through fp32"
        return cast(self, source, target)

    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.binary_op = binary_op
    InterpreterBuilder.cast_impl = cast_impl
    setattr(InterpreterBuilder, _FLAG, True)


def _widened(handle: Any) -> Any:
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    wide = (np.asarray(handle.data).astype(np.uint32) << 16).view(np.float32)
    return TensorHandle(wide, tl.float32)


def _narrowed(wide: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(wide).view(np.uint32)
    odd = (bits >> 16) & 1
    rounded = ((bits + (odd + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)
