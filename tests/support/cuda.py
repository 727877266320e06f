"""Tests of the CUDA C++ kernels run where they can be built."""

from __future__ import annotations

import pytest
import torch

from kernels import cuda_build
from kernels.cuda_build import Kernels

ON = ("emulated", pytest.param("cuda", marks=pytest.mark.gpu))
"""Parameters of a fixture that gives `kernels(...)`."""


def kernels(on: str) -> Kernels:
    """The kernels on the processor ("emulated") or on the GPU ("cuda"); skips, saying why."""
    try:
        if on == "emulated":
            return cuda_build.emulated()
        if not torch.cuda.is_available():
            pytest.skip("NOT RUN: needs an NVIDIA GPU")
        return cuda_build.library()
    except cuda_build.CudaUnavailable as reason:
        pytest.skip(f"NOT RUN: needs {'nvcc' if on == 'cuda' else 'g++'}: {reason}")
