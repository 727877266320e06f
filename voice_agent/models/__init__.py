"""Models by name: what they are, where they come from, and the verified files on this machine."""

from __future__ import annotations

from .registry import LLM_SIZES, REGISTRY
from .spec import Model, ModelFile
from .store import ModelState, ModelStore, Progress, data_dir, default_root

__all__ = [
    "LLM_SIZES",
    "REGISTRY",
    "Model",
    "ModelFile",
    "ModelState",
    "ModelStore",
    "Progress",
    "data_dir",
    "default_root",
]
