"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import RealServer
from tests.support.real_server import real_server as start_real_server

os.environ["VOICE_AGENT__HISTORY__ENABLED"] = "false"  # no test's call in the user's own history


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    from voice_agent.models import ModelStore

    return ModelStore().path("smollm2-135m")


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    """The GGUF file of the 0.5B Qwen."""
    from voice_agent.models import ModelStore

    store = ModelStore()
    if not store.present("qwen2.5-0.5b"):
        pytest.skip("NOT RUN: needs qwen2.5-0.5b (voice-agent models fetch qwen2.5-0.5b)")
    return store.path("qwen2.5-0.5b")


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`voice-agent up` with the small real models and a storytelling agent, one for the session."""
    with start_real_server(tmp_path_factory.mktemp("server")) as server:
        yield server
