"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    from voice_agent.models import ModelStore

    return ModelStore().path("smollm2-135m")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """The GGUF file of the 0.5B Qwen."""
    from voice_agent.models import ModelStore

    return ModelStore().path("qwen2.5-0.5b")
