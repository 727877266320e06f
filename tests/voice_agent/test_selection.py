"""What a configuration asks of the model choice, and real timings with the small models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from voice_agent import measure, selection
from voice_agent.choose import VoiceSpeed, choose
from voice_agent.config import Config, ModelsConfig
from voice_agent.errors import UsageError
from voice_agent.machine import Gpu, Machine, inspect, own_names
from voice_agent.models import ModelStore

pytestmark = pytest.mark.model

CPU = Machine("cpu", 2, frozenset({"avx2"}), 8000, 6000, None)


def test_targets() -> None:
    assert selection.target_ms(Config(), "cpu") == 600
    assert selection.target_ms(Config(), "cuda") == 300
    assert selection.target_ms(Config(target_ms=450), "cpu") == 450


GPUS = [None, Gpu("H200", 140_000, True), Gpu("old", 1, False, "too old")]


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_is_used_only_when_asked_for(gpu: Gpu | None) -> None:
    machine = Machine("cpu", 2, frozenset(), 8000, 6000, gpu)
    assert selection.pick_device(Config(), machine) == "cpu"
    assert selection.pick_device(Config(profile="cpu"), machine) == "cpu"


def test_the_gpu_profile_takes_a_usable_gpu(tmp_path: Path) -> None:
    machine = Machine("cpu", 2, frozenset(), 8000, 6000, GPUS[1])
    assert selection.pick_device(Config(profile="gpu"), machine) == "cuda"
    store = ModelStore(tmp_path)
    assert selection.need_of(Config(), store, machine, "cuda").memory_mb == 140_000
    assert selection.need_of(Config(), store, machine, "cpu").memory_mb == 6000


def test_a_gpu_speaks_with_kokoro_unless_told_otherwise() -> None:
    kokoro = {"kokoro-int8", "kokoro-voices"}
    assert kokoro <= selection.wanted_first(Config(), "cuda")
    assert not kokoro & selection.wanted_first(Config(), "cpu")
    piper = Config(models=ModelsConfig(voice="piper-joe"))
    assert not kokoro & selection.wanted_first(piper, "cuda")
    asked = Config(models=ModelsConfig(voice="kokoro-int8", stt="/own/model"))
    assert selection.wanted_first(asked, "cpu") == {*selection.BASIC, *kokoro}
    assert selection.voice_device("kokoro-int8", "cuda") == "cuda"
    assert selection.voice_device("piper-joe", "cuda") == "cpu"


@pytest.mark.parametrize(("gpu", "why"), [(GPUS[0], "no NVIDIA"), (GPUS[2], "too old")])
def test_the_gpu_profile_is_refused(gpu: Gpu | None, why: str) -> None:
    machine = Machine("cpu", 2, frozenset(), 8000, 6000, gpu)
    with pytest.raises(UsageError, match=why) as refused:
        selection.pick_device(Config(profile="gpu"), machine)
    assert refused.value.code == "VA476"


def test_kokoro_counts_only_with_its_voices(tmp_path: Path) -> None:
    own = tmp_path / "kokoro.onnx"
    own.touch()
    alone = ModelStore(tmp_path, sources={"kokoro-int8": str(own)})
    need = selection.need_of(Config(), alone, CPU, "cpu")
    assert "kokoro-int8" not in need.present
    assert need.fetchable == selection.FETCHABLE_LLMS
    both = ModelStore(tmp_path, sources={"kokoro-int8": str(own), "kokoro-voices": str(tmp_path)})
    assert "kokoro-int8" in selection.need_of(Config(), both, CPU, "cpu").present
    offline = Config(models=ModelsConfig(fetch=False))
    assert selection.need_of(offline, both, CPU, "cpu").fetchable == ()


def test_a_remote_model_is_not_chosen_here(tmp_path: Path) -> None:
    llm = {"backend": "openai", "base_url": "http://far/v1", "model": "m"}
    store = ModelStore(tmp_path)
    remote = Config.model_validate({"llm": llm})
    assert selection.need_of(remote, store, CPU, "cpu").want_llm == "remote"
    behind = Config.model_validate({"llm": llm | {"fallback": "embedded"}})
    assert selection.need_of(behind, store, CPU, "cpu").want_llm == "auto"


def test_ensure_without_fetching_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"VA411.*fetch piper-joe"):
        selection.ensure(ModelStore(tmp_path), ["piper-joe"], fetch=False)


def test_this_machine() -> None:
    machine = inspect(gpu=False)
    assert machine.cores >= 1
    assert 0 < machine.free_mb <= machine.memory_mb
    assert "127.0.0.1" in own_names()


def test_small_models_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "linear_speed", lambda device, threads: (20.0, 300.0))
    monkeypatch.setattr(measure, "foreign_load", lambda: 0.0)
    store = ModelStore()
    monkeypatch.setattr(store, "present", lambda name: name in ("piper-joe", "whisper-tiny.en"))
    stages: list[str] = []
    cache = tmp_path / "speeds.json"
    speeds = measure.measure(store, CPU, stage=stages.append, cache=cache)
    assert stages == ["linear layers", "piper-joe", "whisper-tiny.en"]
    assert speeds.stt_ms["whisper-tiny.en"] > 0
    assert speeds.voice["piper-joe"].first_ms > 0
    assert measure.measure(store, CPU, stage=stages.append, cache=cache) == speeds
    assert len(stages) == 3


def test_a_gpu_is_measured_by_what_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ModelStore()
    have = {"kokoro-int8", "kokoro-voices", "whisper-tiny.en"}
    monkeypatch.setattr(store, "present", have.__contains__)
    used: list[str] = []

    def load_voice(store: ModelStore, name: str, threads: int, *, device: str) -> str:
        used.append(f"{name} {device}")
        return name

    async def stt_ms(store: ModelStore, name: str, pcm: object, device: str) -> float:
        used.append(f"{name} {device}")
        return 20.0

    monkeypatch.setattr(measure, "linear_speed", lambda device, threads: (900.0, 9e5))
    monkeypatch.setattr(measure, "foreign_load", lambda: 0.0)
    monkeypatch.setattr(measure, "load_voice", load_voice)
    monkeypatch.setattr(
        measure, "voice_speed", lambda voice: (VoiceSpeed(30.0, 0.02), np.zeros(9, np.int16))
    )
    monkeypatch.setattr(measure, "_stt_ms", stt_ms)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: used.append("given back"))
    gpu = Machine("cpu", 8, frozenset(), 8000, 6000, GPUS[1])
    speeds = measure.measure(store, gpu, device="cuda", cache=tmp_path / "speeds.json")
    assert used == ["kokoro-int8 cuda", "whisper-tiny.en cuda", "given back"]
    need = selection.need_of(Config(), store, gpu, "cuda")
    chosen = choose(speeds, need)
    assert (chosen.stt, chosen.voice) == ("whisper-tiny.en", "kokoro-int8")
