"""Compiles a Triton kernel for GPUs that aren't there: no GPU, no driver, about a second a kernel.

Not in a process that has TRITON_INTERPRET set: `@triton.jit` then makes something else.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED_LIMIT = {
    "sm_80": 163 * 1024,
    "sm_89": 99 * 1024,
    "sm_90": 227 * 1024,
    "sm_120": 99 * 1024,
}
"""Bytes of shared memory one block may have, by architecture: every one that must compile."""

_BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What one thread (registers, stack, local bytes) and one block (shared bytes) use."""

    registers: int
    stack: int
    local: int
    shared: int
    ptx: str


def compile_for(fn: Any, arguments: Mapping[str, object], arch: str, **options: int) -> Usage:
    """Compiles as a launch with these arguments would be, for arch ("sm_90").

    fn: the `@triton.jit` function. arguments: every parameter by name: a tensor (only its dtype is
    looked at, so one on the meta device will do; 16-byte alignment is taken for granted), an int,
    a float, a bool or None, or the value of a constexpr. options: num_warps, num_stages, maxnreg.
    """
    assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0"), "this process interprets"
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], object] = {}
    hints: dict[tuple[int, ...], list[list[object]]] = {}
    for param in fn.params:
        value, at = arguments[param.name], (param.num,)
        kind = "constexpr" if param.is_constexpr else _kind(value, param.do_not_specialize)
        signature[param.name] = kind
        if kind == "constexpr":
            constants[at] = value
        elif isinstance(value, torch.Tensor) or (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value % 16 == 0
            and not (param.do_not_specialize or param.do_not_specialize_on_alignment)
        ):
            hints[at] = [["tt.divisibility", 16]]
    extra = sorted(set(arguments) - set(signature))
    assert not extra, f"the kernel has no parameter {extra}"
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=hints)
    capability = int(arch.removeprefix("sm_"))
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack, local = _resources(kernel.asm["cubin"])
    return Usage(registers, stack, local, kernel.metadata.shared, kernel.asm["ptx"])


def assert_fits(
    fn: Any,
    arguments: Mapping[str, object],
    archs: Iterable[str] = tuple(SHARED_LIMIT),
    **options: int,
) -> None:
    """Compiles for every arch: nothing may spill, and shared memory must fit in one block's."""
    for arch in archs:
        usage = compile_for(fn, arguments, arch, **options)
        where = f"{fn.__name__} on {arch}: {usage.registers} registers"
        assert (usage.stack, usage.local) == (0, 0), f"{where}, stack and local {usage.stack}"
        assert usage.shared <= SHARED_LIMIT[arch], f"{where}, {usage.shared} shared bytes"


def _kind(value: object, plain: bool) -> str:
    """Triton's name of an argument's type, as its launcher specialises it."""
    if value is None:
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        if value == 1 and not plain:
            return "constexpr"
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"a kernel takes no {type(value).__name__}")


def _resources(cubin: bytes) -> tuple[int, int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_BIN / "cuobjdump"), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, f"cuobjdump says nothing of registers:\n{text}"
    registers, stack, local = (int(number) for number in found.groups())
    return registers, stack, local
