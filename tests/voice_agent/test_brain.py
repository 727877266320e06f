"""What the configuration makes of engine and endpoints; a history without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakes import FakeChat, FakeTokenizer
from voice_agent import brain as brains
from voice_agent.clock import ManualClock
from voice_agent.config import Config
from voice_agent.context import Conversation, Role
from voice_agent.fallback import FallbackThinker
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.think import EngineThinker

pytestmark = pytest.mark.unit

REMOTE = {"backend": "openai", "base_url": "http://far/v1", "model": "m", "context_tokens": 1000}


def load(monkeypatch: pytest.MonkeyPatch, **llm: Any) -> tuple[brains.Brain, list[Path]]:
    loaded: list[Path] = []
    engine = SimpleNamespace(chat=FakeChat(), tokenizer=FakeTokenizer(), max_model_len=2048)

    def load_engine(config: Config, path: Path, clock: object) -> Any:
        loaded.append(path)
        return engine

    monkeypatch.setattr(brains, "load_engine", load_engine)
    config = Config.model_validate({"llm": llm})
    path = Path("model") if config.llm.needs_engine else None
    return brains.load_brain(config, path, ManualClock()), loaded


def test_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    brain, loaded = load(monkeypatch)
    assert isinstance(brain.thinker, EngineThinker)
    assert (brain.max_context, brain.unit, loaded) == (2048, "tokens", [Path("model")])


def test_an_endpoint_loads_no_model_here(monkeypatch: pytest.MonkeyPatch) -> None:
    brain, loaded = load(monkeypatch, **REMOTE)
    assert isinstance(brain.thinker, FallbackThinker)
    assert (brain.engine, loaded) == (None, [])
    assert (brain.max_context, brain.unit) == (3000, "characters")


def test_the_engine_behind_an_endpoint_keeps_the_history_in_both_contexts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brain, loaded = load(monkeypatch, **REMOTE, fallback="embedded")
    assert loaded == [Path("model")]
    assert (brain.max_context, brain.unit) == (1000, "tokens")
    roomy, _ = load(monkeypatch, **{**REMOTE, "context_tokens": 9000}, fallback="embedded")
    assert roomy.max_context == 2048


@given(st.text(min_size=1, max_size=60), st.integers(0, 80))
def test_without_a_tokenizer_a_cut_is_exact(text: str, heard: int) -> None:
    c = Conversation(PlainChat(), PlainTokenizer(), "Be brief.", 10_000)
    c.add_user("hello")
    kept = c.add_assistant([], text, heard)
    assert kept == (text[:heard] if text[:heard].strip() else "")
    again = c.truncate_last(heard // 2)
    assert again == (kept[: heard // 2] if kept[: heard // 2].strip() else "")
    prompt = c.prompt("more")
    assert prompt.messages[-1] == (Role.USER, "more")
    assert PlainTokenizer().decode(prompt.ids) == "".join(t for _, t in prompt.messages)
