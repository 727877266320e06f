"""What `up` says of the models: who does what, and where."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from voice_agent import loading
from voice_agent.choose import Choice as Models
from voice_agent.config import Config
from voice_agent.loading import explained
from voice_agent.machine import Gpu, Machine

pytestmark = pytest.mark.unit


def test_who_answers_and_who_takes_over_is_said() -> None:
    llm = {"backend": "openai", "base_url": "http://far/v1", "model": "m", "fallback": "embedded"}
    models = Models("qwen2.5-0.5b", "whisper-tiny.en", "piper-joe", "as configured", ())

    def said(**settings: object) -> list[tuple[str, str, str]]:
        config = Config.model_validate(settings)
        choices = explained(config, models, "cpu")
        return [
            (c.job, c.model, c.device) for c in choices if c.job not in ("recognition", "voice")
        ]

    assert said() == [("language model", "qwen2.5-0.5b", "cpu")]
    assert said(llm=llm) == [
        ("language model", "m", "http://far/v1"), ("its fallback", "qwen2.5-0.5b", "cpu"),
    ]  # fmt: skip
    assert said(llm=llm | {"fallback": "none"}) == [("language model", "m", "http://far/v1")]


def test_on_a_gpu_only_kokoro_speaks_there() -> None:
    def devices(voice: str) -> dict[str, str]:
        models = Models("qwen2.5-0.5b", "whisper-base", voice, "as configured", ())
        return {c.job: c.device for c in explained(Config(profile="gpu"), models, "cuda")}

    assert set(devices("kokoro-int8").values()) == {"cuda"}
    assert devices("piper-joe") == {
        "recognition": "cuda", "language model": "cuda", "voice": "cpu",
    }  # fmt: skip


def test_the_gpu_profile_reaches_every_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything in place but the device: the calls that would reach it name it."""
    asked: dict[str, Any] = {}

    def stage(name: str, made: Any) -> Any:
        def load(*args: Any, **options: Any) -> Any:
            asked[name] = options.get("device", args[-1])
            return made

        return load

    part = SimpleNamespace(
        warm=lambda: None, close=lambda: None, learn=lambda pcm: None, name="kokoro:af_heart"
    )
    brain = SimpleNamespace(
        engine=None, thinker=None, chat=None, tokenizer=None, max_context=4096, unit="tokens"
    )
    gpu = Machine("cpu", 8, frozenset(), 8000, 6000, Gpu("H200", 140_000, True))
    monkeypatch.setattr(loading, "inspect", lambda: gpu)
    monkeypatch.setattr(loading, "ensure", lambda *args, **options: None)
    monkeypatch.setattr(loading.ModelStore, "path", lambda self, name: Path(name))
    for name in ("VadService", "SmartTurn", "VoiceService"):
        monkeypatch.setattr(loading, name, lambda *args, **options: part)
    monkeypatch.setattr(loading, "WhisperRecognizer", stage("recognition", part))
    monkeypatch.setattr(loading, "load_voice", stage("voice", part))
    monkeypatch.setattr(loading, "spoken_sample", lambda voice: None)
    monkeypatch.setattr(loading, "load_brain", stage("engine", brain))
    models = {"stt": "whisper-base", "llm": "qwen2.5-0.5b", "voice": "kokoro-int8"}
    config = Config.model_validate({"profile": "gpu", "models": models})
    stack = loading._load(config, lambda what, share: None, loading.Parts())
    assert asked == {"recognition": "cuda", "voice": "cuda", "engine": "cuda"}
    assert (stack.target_s, stack.answer_within_s) == (0.3, 3.0)
    assert {choice.device for choice in stack.choices} == {"cuda"}
