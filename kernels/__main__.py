"""`python -m kernels` compiles the native kernels: for this processor, and for NVIDIA GPUs."""

from __future__ import annotations

import sys

from kernels import build, cuda_build


def main() -> int:
    """Prints the objects' paths, or what is missing: a missing compiler is no failure."""
    failed = False
    try:
        levels = build.usable_levels()
        print(build.build(levels[0]) if levels else "NOT BUILT: CPU kernels: no AVX2 here")
    except build.NativeUnavailable as reason:
        print(f"NOT BUILT: CPU kernels: {reason}")
        failed = "install g++" not in str(reason)
    try:
        print(cuda_build.build())
    except cuda_build.CudaUnavailable as reason:
        print(f"NOT BUILT: CUDA kernels: {reason}")
        failed = failed or cuda_build.nvcc() is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
