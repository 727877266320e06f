"""What the configuration makes of engine and endpoints; a history without a tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client import Engine
from engine.config import EngineConfig
from tests.support.fakes import FakeChat, FakeTokenizer
from voice_agent import brain as brains
from voice_agent import machine
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

    def load_engine(config: Config, path: Path, clock: object, device: str) -> Any:
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
    if kept:
        left = c.truncate(c.messages[-1], heard // 2)
        again = left.text if left is not None else ""
        assert again == (kept[: heard // 2] if kept[: heard // 2].strip() else "")
    prompt = c.prompt("more")
    assert prompt.messages[-1] == (Role.USER, "more")
    assert PlainTokenizer().decode(prompt.ids) == "".join(t for _, t in prompt.messages)


@pytest.mark.parametrize(
    ("section", "share", "kv_mb"),
    [({}, 0.8, 512), ({"gpu_memory_utilization": 0.5}, 0.5, None), ({"kv_mb": 64}, 0.0, 64)],
)
def test_an_engine_on_a_gpu_shares_it(
    monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], share: float, kv_mb: int | None
) -> None:
    given: list[EngineConfig] = []
    monkeypatch.setattr(Engine, "load", lambda config, clock: given.append(config))
    config = Config.model_validate({"engine": {"quant": "bf16", **section}})
    brains.load_engine(config, Path("model"), ManualClock(), "cuda")
    (engine,) = given
    assert (engine.device, engine.quant, engine.gpu_memory_utilization) == ("cuda", "bf16", share)
    assert engine.max_step_ms == engine.idle_step_ms == 30.0
    assert kv_mb is None or engine.kv_bytes == kv_mb << 20


def test_the_engine_gets_what_its_section_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[EngineConfig] = []
    monkeypatch.setattr(Engine, "load", lambda config, clock: given.append(config))
    section = {
        "kv_mb": 32, "kv_cache": "int8", "block_size": 32, "max_model_len": 512, "max_num_seqs": 3,
        "max_num_batched_tokens": 96, "scheduling_policy": "fcfs", "enable_prefix_caching": False,
        "speculation": "draft", "speculation_tokens": 3, "speculation_max_seqs": 2,
        "draft_model_path": "small",
    }  # fmt: skip
    config = Config.model_validate({"engine": section, "server": {"max_calls": 400}})
    brains.load_engine(config, Path("model"), ManualClock())
    assert given == [
        EngineConfig(
            Path("model"),
            quant="auto",
            threads=1,
            kv_cache="int8",
            kv_bytes=32 << 20,
            block_size=32,
            max_model_len=512,
            max_num_seqs=3,
            max_requests=256 + 2 * 400,  # every call keeps its prompt open
            max_num_batched_tokens=96,
            scheduling_policy="fcfs",
            prefix_cache="none",
            speculation="draft",
            speculation_tokens=3,
            speculation_max_seqs=2,
            draft_model_path=Path("small"),
        )
    ]


def test_a_containers_limit_counts_as_its_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "CGROUP_LIMIT", limit)
    whole = machine.usable_memory_mb()
    limit.write_text("max\n")
    assert machine.usable_memory_mb() == whole
    limit.write_text(f"{64 << 20}\n")
    assert machine.usable_memory_mb() == 64
