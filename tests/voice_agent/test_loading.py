"""What `up` says of the models: who does what, and where."""

from __future__ import annotations

import pytest

from voice_agent.choose import Choice as Models
from voice_agent.config import Config
from voice_agent.loading import explained

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
