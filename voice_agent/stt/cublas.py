"""The matrix library that CTranslate2 asks for on a GPU: CUDA 12's, whatever PyTorch brings."""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

NAME = "libcublas.so.12"
PACKAGE = "nvidia-cublas-cu12"


def load_cublas() -> str:
    """Load it, so that CTranslate2 finds it by name. Returns "" or why it can't be had."""
    problem = ""
    for name in (*_installed(), NAME):
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
            return ""
        except OSError as error:
            problem = problem or str(error)
    return f"recognition needs {NAME} ({problem}); install {PACKAGE}"


def why_not_cuda() -> str:
    """Why CTranslate2 can't recognise on a GPU here, or ""."""
    import ctranslate2

    if not ctranslate2.get_cuda_device_count():
        return "CTranslate2 sees no GPU that its CUDA 12 can use"
    return load_cublas()


def _installed() -> list[str]:
    """The library in the installed package, by path."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    files = [Path(folder) / "cublas" / "lib" / NAME for folder in folders or ()]
    return [str(file) for file in files if file.exists()]
