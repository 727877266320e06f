"""Where models run: the CPU, and a GPU asked for is refused with the reason."""

from __future__ import annotations

import pytest

from voice_agent.choose import Choice as Models
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.loading import explained, runs_on
from voice_agent.machine import Gpu, Machine

pytestmark = pytest.mark.unit


def machine(gpu: Gpu | None) -> Machine:
    return Machine("cpu", 2, frozenset(), 24_000, 20_000, gpu)


@pytest.mark.parametrize("gpu", [None, Gpu("H200", 140_000, True), Gpu("old", 1, False, "old")])
def test_auto_runs_on_the_cpu_whatever_is_there(gpu: Gpu | None) -> None:
    assert runs_on(Config(), machine(gpu)) == "cpu"


@pytest.mark.parametrize("gpu", [None, Gpu("H200", 140_000, True)])
def test_the_gpu_profile_is_refused(gpu: Gpu | None) -> None:
    with pytest.raises(UsageError, match="VA476"):
        runs_on(Config(profile="gpu"), machine(gpu))


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
