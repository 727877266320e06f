from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.interp

triton = pytest.importorskip("triton", reason="NOT RUN: needs triton")
ROOT = Path(__file__).parents[2]


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@pytest.mark.skipif(
    version(triton.__version__) < (3, 7) and version(np.__version__) >= (2, 4),
    reason="NOT RUN: triton 3.6 interprets no loop of unknown length with numpy 2.4 or newer",
)
@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_all_in_a_process_of_its_own(which: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which,
         "tests/kernels/interpreted"],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout, ran.stdout
