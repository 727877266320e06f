"""A full-duplex voice agent server, and the names a program of one's own needs (docs/LIBRARY.md).

They are loaded when they are first used: importing `voice_agent` loads nothing else.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voice_agent.library.agent import Agent as Agent
    from voice_agent.library.call import Call as Call
    from voice_agent.library.protocols import Recognizer as Recognizer
    from voice_agent.library.protocols import Thinker as Thinker
    from voice_agent.library.protocols import Voice as Voice
    from voice_agent.library.server import serve as serve
    from voice_agent.tools.base import ToolFailed as ToolFailed
    from voice_agent.tools.python import tool as tool

# ONNX Runtime reports its use to its maker unless told otherwise before it is loaded
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Agent": "library.agent",
    "Call": "library.call",
    "Recognizer": "library.protocols",
    "Thinker": "library.protocols",
    "ToolFailed": "tools.base",
    "Voice": "library.protocols",
    "serve": "library.server",
    "tool": "tools.python",
}
__all__ = ["Agent", "Call", "Recognizer", "Thinker", "ToolFailed", "Voice", "serve", "tool"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
