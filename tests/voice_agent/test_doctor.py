"""The doctor on faked machines, and the guard against a foreign `kernels`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from voice_agent import doctor, measure
from voice_agent.choose import Speeds, VoiceSpeed
from voice_agent.config import Config, ModelsConfig
from voice_agent.doctor import Finding, Verdict, check_kernels, examine, worst
from voice_agent.errors import UsageError
from voice_agent.llm_section import RemoteSection
from voice_agent.machine import Gpu, Machine, find_gpu
from voice_agent.models import ModelStore
from voice_agent.remote_check import RemoteState

pytestmark = pytest.mark.unit

GOOD = Machine(
    cpu="A processor",
    cores=4,
    features=frozenset({"avx2", "fma"}),
    memory_mb=16_000,
    free_mb=12_000,
    gpu=None,
)


def look(
    tmp_path: Path,
    machine: Machine = GOOD,
    config: Config | None = None,
    python: tuple[int, ...] = (3, 11, 7),
    port: str = "",
) -> dict[str, Finding]:
    store = ModelStore(tmp_path)
    found = examine(
        config or Config(), machine, store, python=python, port_error=lambda host, number: port
    )
    return {f.what: f for f in found}


def test_a_good_machine(tmp_path: Path) -> None:
    found = look(tmp_path)
    assert found["python"].verdict is Verdict.OK
    assert found["cpu"].verdict is Verdict.OK
    assert "avx2" in found["cpu"].detail
    assert found["kernels"].verdict is Verdict.OK
    assert found["model silero-vad"].verdict is Verdict.OK


def test_missing_models_warn_and_fail_when_they_cannot_be_fetched(tmp_path: Path) -> None:
    assert look(tmp_path)["models"].verdict is Verdict.WARN
    assert "voice-agent models fetch" in look(tmp_path)["models"].detail
    offline = Config(models=ModelsConfig(fetch=False))
    assert look(tmp_path, config=offline)["models"].verdict is Verdict.FAIL


def test_old_python(tmp_path: Path) -> None:
    assert look(tmp_path, python=(3, 10, 1))["python"].verdict is Verdict.FAIL


def test_a_weak_processor_warns(tmp_path: Path) -> None:
    assert look(tmp_path, replace(GOOD, cores=1))["cpu"].verdict is Verdict.WARN
    assert look(tmp_path, replace(GOOD, features=frozenset()))["cpu"].verdict is Verdict.WARN
    assert look(tmp_path, replace(GOOD, free_mb=500))["memory"].verdict is Verdict.WARN


def test_a_busy_port_fails(tmp_path: Path) -> None:
    assert look(tmp_path, port="in use")["port"].verdict is Verdict.FAIL


def test_a_port_that_listens_is_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        assert doctor.why_port_unusable("127.0.0.1", busy.getsockname()[1])
    assert doctor.why_port_unusable("127.0.0.1", 0) == ""


@pytest.mark.parametrize(
    ("gpu", "profile", "verdict"),
    [
        (None, "auto", Verdict.OK),
        (None, "gpu", Verdict.FAIL),
        (Gpu("G", 80_000, True), "gpu", Verdict.OK),
        (Gpu("G", 80_000, False, "built without CUDA"), "auto", Verdict.WARN),
        (Gpu("G", 80_000, False, "built without CUDA"), "gpu", Verdict.FAIL),
    ],
)
def test_gpus(tmp_path: Path, gpu: Gpu | None, profile: str, verdict: Verdict) -> None:
    config = Config.model_validate({"profile": profile})
    assert look(tmp_path, replace(GOOD, gpu=gpu), config)["gpu"].verdict is verdict


def test_a_gpu_that_is_not_asked_for_is_named(tmp_path: Path) -> None:
    machine = replace(GOOD, gpu=Gpu("G", 80_000, True))
    assert 'profile = "gpu"' in look(tmp_path, machine)["gpu"].detail
    asked = look(tmp_path, machine, Config(profile="gpu"))["gpu"].detail
    assert "run here" in asked


def test_a_driver_without_libraries_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA Test, 24564'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("torch.version.cuda", None)
    gpu = find_gpu()
    assert gpu == Gpu("NVIDIA Test", 24_564, False, "this PyTorch was built without CUDA "
                      "(make install DEVICE=cuda)")  # fmt: skip
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "CUDA 13.0" in str(find_gpu())
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (7, 5))
    assert "8.0 or newer" in str(find_gpu())
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 0)
    assert "CTranslate2 sees no GPU" in str(find_gpu())
    monkeypatch.setattr("ctranslate2.get_cuda_device_count", lambda: 1)
    monkeypatch.setattr("voice_agent.stt.cublas.load_cublas", lambda: "")
    assert find_gpu() == Gpu("NVIDIA Test", 24_564, True)


@pytest.mark.parametrize(
    ("fallback", "states", "verdicts"),
    [
        ("none", ("ANSWERS",), [Verdict.OK]),
        ("none", ("EXPOSED",), [Verdict.WARN]),
        ("none", ("SILENT",), [Verdict.FAIL]),
        ("embedded", ("SILENT",), [Verdict.WARN]),
        ("second", ("SILENT", "ANSWERS"), [Verdict.WARN, Verdict.OK]),
        ("second", ("SILENT", "SILENT"), [Verdict.FAIL, Verdict.FAIL]),
    ],
)
def test_remote_models(
    tmp_path: Path, fallback: str, states: tuple[str, ...], verdicts: list[Verdict]
) -> None:
    llm = {
        "backend": "openai", "base_url": "http://a/v1", "model": "m", "fallback": fallback,
        "second": {"base_url": "http://b/v1", "model": "n"},
    }  # fmt: skip
    config = Config.model_validate({"llm": llm, "models": {"fetch": False}})
    left = list(states)

    def ask(name: str, remote: RemoteSection) -> tuple[RemoteState, str]:
        return RemoteState[left.pop(0)], f"{remote.model} said so"

    found = list(examine(config, GOOD, ModelStore(tmp_path), port_error=lambda *_: "", ask=ask))
    asked = [f for f in found if f.what.startswith("language model")]
    assert [f.verdict for f in asked] == verdicts
    assert asked[0].detail == "m said so"
    missing = [f.detail for f in found if f.what == "models"]
    assert any("a language model is missing" in m for m in missing) == (fallback == "embedded")


def test_the_worst_decides() -> None:
    ok, warn, fail = (Finding("x", v, "") for v in (Verdict.OK, Verdict.WARN, Verdict.FAIL))
    assert worst([]) is Verdict.OK
    assert worst([ok, warn, ok]) is Verdict.WARN
    assert worst([fail, warn]) is Verdict.FAIL


def test_our_own_kernels_pass() -> None:
    check_kernels()
    assert doctor.foreign_kernels() == ""


def test_a_foreign_kernels_package_is_named(tmp_path: Path) -> None:
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    info = tmp_path / "foreign_kernels-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-kernels\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("kernels\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from voice_agent.doctor import check_kernels\n"
        "from voice_agent.errors import UsageError\n"
        "try:\n    check_kernels()\nexcept UsageError as e:\n    print(e)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert out.startswith("VA471")
    assert "pip uninstall foreign-kernels" in out


SPEEDS = Speeds(
    "cpu", 4, 20.0, 300.0, {"whisper-tiny.en": 150.0}, {"piper-joe": VoiceSpeed(80, 0.1)}
)


def test_speeds_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "speeds.json"
    measure.write_speeds(path, SPEEDS)
    assert measure.read_speeds(path) == SPEEDS


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 0}', "not json"])
def test_a_useless_cache_is_no_cache(tmp_path: Path, text: str) -> None:
    path = tmp_path / "speeds.json"
    path.write_text(text)
    assert measure.read_speeds(path) is None


def test_only_what_is_unknown_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "linear_speed", lambda device, threads: (10.0, 100.0))
    monkeypatch.setattr(measure, "foreign_load", lambda: 0.0)
    cache = tmp_path / "speeds.json"
    store = ModelStore(tmp_path / "empty")
    first = measure.measure(store, GOOD, cache=cache)
    assert (first.decode_gb_s, first.stt_ms) == (10.0, {})
    measure.write_speeds(cache, SPEEDS)
    assert measure.measure(store, GOOD, cache=cache) == SPEEDS


def test_a_busy_machine_keeps_no_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "linear_speed", lambda device, threads: (1.0, 1.0))
    monkeypatch.setattr(measure, "foreign_load", lambda: 0.9)
    cache = tmp_path / "speeds.json"
    measure.measure(ModelStore(tmp_path / "empty"), GOOD, cache=cache)
    assert not cache.exists()


def test_another_processor_has_another_cache() -> None:
    assert GOOD.key != replace(GOOD, cores=8).key
    assert json.dumps(GOOD.key)


def test_kernels_error_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "foreign_kernels", lambda: "kernels")
    with pytest.raises(UsageError, match="VA471"):
        check_kernels()
