"""Where models run: the CPU, and a GPU asked for is refused with the reason."""

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
