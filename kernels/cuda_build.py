"""Compiles the CUDA C++ kernels and loads them; says why when it can't.

`*/cuda.cu` become one shared object with a plain C interface: pointers and streams are integers, so
no torch headers are needed and one object serves every version of torch. It holds machine code for
every architecture in ARCHS, loads without a GPU or a driver, and is kept in the user's cache under
a hash of its sources, its compiler's version and its flags.

`emulated` compiles the same sources with the C++ compiler alone: each thread of a block becomes a
coroutine on the processor (native/emulate.cuh), for tests where there is no GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from kernels import compile_watch

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
ARCHS = ("80", "89", "90", "120")
"""A100, 4090, H100 and H200, 5090. The PTX comes along, for other cards from sm_80 on."""
_FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC,-Wall", "--cudart=static")
HOST_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wno-unknown-pragmas")
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""How the kernels name the types of values."""
NO_DRIVER = 35
"""cudaErrorInsufficientDriver: what a launch returns on a machine without a driver."""
_REASONS = {
    NO_DRIVER: "no NVIDIA driver here, or one older than the CUDA runtime",
    209: "no machine code for this GPU in the object",
    700: "illegal address",
    719: "the launch failed",
}


class CudaUnavailable(Exception):
    """The CUDA C++ kernels can't be built or loaded; the message says why and what would help."""


class LaunchError(RuntimeError):
    """A kernel was not launched. `code` is a cudaError_t."""

    def __init__(self, name: str, code: int, why: str) -> None:
        super().__init__(f"{name}: CUDA error {code}: {why}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Kernels:
    """A loaded object: the GPU's ("cuda") or the emulated one ("cpu")."""

    loaded: ctypes.CDLL
    device_type: str

    def launch(self, name: str, *given: Tensor | int | float | None) -> None:
        """Calls a function of the object: tensors as pointers, the current stream last.

        Tensors must be of this object's kind of device. Raises LaunchError.
        """
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
        code = getattr(self.loaded, name)(*map(_argument, given), ctypes.c_void_p(stream))
        if code:
            raise LaunchError(name, code, self._reason(code))

    def check(self, *given: Tensor | None) -> None:
        """Raises ValueError for a tensor on another kind of device."""
        for tensor in given:
            if tensor is not None and tensor.device.type != self.device_type:
                raise ValueError(f"needs tensors on {self.device_type}, got {tensor.device}")

    def _reason(self, code: int) -> str:
        if self.device_type == "cpu":
            self.loaded.emulate_error.restype = ctypes.c_char_p
            said: bytes = self.loaded.emulate_error()
            return said.decode()
        return _REASONS.get(code, "see cudaError_t")


def _argument(
    value: Tensor | int | float | None,
) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.c_float:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_int64(value)


@cache
def library() -> Kernels:
    """The compiled kernels for all ARCHS; builds them on first use. Raises CudaUnavailable."""
    return Kernels(_load(build()), "cuda")


@cache
def emulated() -> Kernels:
    """The same kernels on the processor, thousands of times slower. Raises CudaUnavailable."""
    return Kernels(_load(build_emulated()), "cpu")


@contextmanager
def emulated_order(kernels: Kernels, order: int) -> Iterator[None]:
    """Inside, emulated threads and blocks run first to last (0) or last to first (1)."""
    setting = ctypes.c_int64.in_dll(kernels.loaded, "EMULATE_ORDER")
    setting.value = order
    try:
        yield
    finally:
        setting.value = 0


def sources() -> tuple[Path, ...]:
    """The kernels' files, one per operation."""
    return tuple(sorted(_HERE.glob("*/cuda.cu")))


def build() -> Path:
    """Compiles for all ARCHS, or finds what was compiled before. Raises CudaUnavailable.

    VOICE_AGENT_CUDA_OBJECT names an object built elsewhere: for machines without nvcc.
    """
    given = os.environ.get("VOICE_AGENT_CUDA_OBJECT")
    if given:
        return Path(given)
    compiler = nvcc()
    if compiler is None:
        raise CudaUnavailable(
            "no nvcc found: put CUDA 12.8 or newer on PATH or in CUDA_HOME, or name an object "
            "built elsewhere with VOICE_AGENT_CUDA_OBJECT"
        )
    # The kernels ask for nothing that sm_80 lacks: one pass makes the PTX that all are made of.
    codes = ",".join(f"sm_{arch}" for arch in ARCHS)
    target = f"-gencode=arch=compute_{ARCHS[0]},code=[{codes},compute_{ARCHS[0]}]"
    return _compiled("cuda", compiler, (*_FLAGS, target, "--threads=0"))


def build_emulated() -> Path:
    """Compiles the emulated kernels, or finds them. Raises CudaUnavailable.

    VOICE_AGENT_NATIVE_FLAGS adds compiler flags (the sanitizers, in tests).
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise CudaUnavailable("no C++ compiler found: install g++ (or set CXX)")
    extra = os.environ.get("VOICE_AGENT_NATIVE_FLAGS", "").split()
    return _compiled("cuda-emulated", compiler, (*HOST_FLAGS, *extra, "-x", "c++"))


def _compiled(name: str, compiler: str, flags: Sequence[str]) -> Path:
    key = hashlib.sha256(" ".join(flags).encode())
    try:
        key.update(subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout)
        for source in (*sources(), *sorted((_HERE / "native").glob("*.cuh"))):
            key.update(source.read_bytes())
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "voice-agent"
        path = folder / f"{name}-{key.hexdigest()[:16]}.so"
        if path.exists():
            return path
        log.info("compiling the CUDA kernels: %s", name)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            made = Path(work) / "kernels.so"
            command = [compiler, *flags, "-o", str(made), *map(str, sources())]
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
            if done.returncode:
                said = (done.stderr + done.stdout).strip()[-2000:]
                raise CudaUnavailable(f"{compiler} failed: {said}")
            made.replace(path)  # whole or not at all, also when two processes build
        compile_watch.note(f"CUDA kernels: {name}")
    except (OSError, subprocess.SubprocessError) as error:
        raise CudaUnavailable(f"the CUDA kernels can't be built: {error}") from None
    return path


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CudaUnavailable(f"the CUDA kernels can't be loaded: {error}") from None


def nvcc() -> str | None:
    """The compiler's path: on PATH, or in CUDA_HOME."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return shutil.which("nvcc") or (shutil.which("nvcc", path=f"{home}/bin") if home else None)
