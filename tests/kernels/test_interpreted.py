from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interp

pytest.importorskip("triton", reason="NOT RUN: needs triton")
ROOT = Path(__file__).parents[2]


def test_all_in_a_process_of_its_own() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow",
         "tests/kernels/interpreted"],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " passed" in ran.stdout, ran.stdout
