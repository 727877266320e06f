"""Counts the kernels that this process compiles, so that one compiled under a live call is seen.

Whatever compiles, or captures a graph, calls `note`. Triton compiles where nobody sees it, at a
kernel's first call with other types or constants: from `arm` on its own hook calls `note`.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

log = logging.getLogger(__name__)

_lock = threading.Lock()
_noted: list[str] = []
_armed = False


def note(what: str) -> None:
    """`what` was compiled, just now. After `arm` that is a fault, and logged as one."""
    with _lock:
        _noted.append(what)
    log.log(logging.WARNING if _armed else logging.INFO, "compiled: %s", what)


def total() -> int:
    """So many since the process began."""
    return len(_noted)


def arm() -> int:
    """Everything is warm: nothing should be compiled from now on. Returns `total`."""
    global _armed
    with _lock:
        if not _armed and "triton" in sys.modules:
            _watch(sys.modules["triton"])
        _armed = True
    return total()


def _watch(triton: Any) -> None:
    runtime = triton.knobs.runtime
    before = runtime.jit_post_compile_hook

    def compiled(*args: Any, **kwargs: Any) -> Any:
        note(f"Triton kernel {kwargs.get('repr', '?')}")
        return before(*args, **kwargs) if before is not None else None

    runtime.jit_post_compile_hook = compiled
