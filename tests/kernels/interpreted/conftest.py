"""Triton kernels on CPU tensors. Triton decides once per process whether it interprets.

`tests/kernels/test_interpreted.py` runs this folder in a process of its own; by hand:
`TRITON_INTERPRET=1 pytest tests/kernels/interpreted`.
"""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.support import triton_bf16

    triton_bf16.install()
else:
    collect_ignore_glob = ["test_*.py"]
