"""The model choice: a pure function with properties that hold on any machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.choose import LLMS, REMOTE, Need, Speeds, VoiceSpeed, choose, predict
from voice_agent.errors import CapacityError

pytestmark = pytest.mark.unit

ALL = ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "whisper-tiny.en", "whisper-base",
       "piper-joe", "kokoro-int8")  # fmt: skip

TWO_CORES = Speeds(
    device="cpu",
    cores=2,
    decode_gb_s=16.0,
    prefill_gflops=230.0,
    stt_ms={"whisper-tiny.en": 190.0, "whisper-base": 400.0},
    voice={"piper-joe": VoiceSpeed(90.0, 0.13), "kokoro-int8": VoiceSpeed(1000.0, 0.85)},
)
FAST = Speeds(
    device="cuda",
    cores=16,
    decode_gb_s=900.0,
    prefill_gflops=60_000.0,
    stt_ms={"whisper-tiny.en": 20.0, "whisper-base": 30.0},
    voice={"piper-joe": VoiceSpeed(15.0, 0.02), "kokoro-int8": VoiceSpeed(30.0, 0.05)},
)
NEED = Need(calls=2, target_ms=600.0, memory_mb=20_000.0, present=ALL)


def test_two_cores_get_the_half_billion_model_and_the_light_voice() -> None:
    choice = choose(TWO_CORES, NEED)
    assert (choice.llm, choice.stt, choice.voice) == (
        "qwen2.5-0.5b", "whisper-tiny.en", "piper-joe",
    )  # fmt: skip
    assert "within twice" in choice.why
    assert len(choice.predictions) == 6


def test_a_fast_machine_gets_the_best_of_everything() -> None:
    choice = choose(FAST, NEED)
    assert (choice.llm, choice.stt, choice.voice) == (
        "qwen2.5-1.5b", "whisper-base", "kokoro-int8",
    )  # fmt: skip
    assert "meets" in choice.why


def test_the_large_model_counts_only_when_present() -> None:
    some = tuple(n for n in ALL if n != "qwen2.5-1.5b")
    assert choose(FAST, replace(NEED, present=some)).llm == "qwen2.5-0.5b"


def test_the_test_model_only_when_nothing_else_will_do() -> None:
    slow = replace(TWO_CORES, decode_gb_s=2.0, prefill_gflops=20.0)
    choice = choose(slow, NEED)
    assert choice.llm == "smollm2-135m"
    assert "slow" in choice.why
    small = replace(NEED, memory_mb=2500.0)
    assert choose(FAST, small).llm == "smollm2-135m"


def test_a_remote_model_leaves_the_machine_to_recogniser_and_voice() -> None:
    need = replace(NEED, want_llm=REMOTE.name, calls=1)
    choice = choose(TWO_CORES, need)
    assert (choice.llm, choice.stt, choice.voice) == (REMOTE.name, "whisper-tiny.en", "piper-joe")
    local = choose(TWO_CORES, replace(need, want_llm="qwen2.5-0.5b"))
    assert choice.predictions[0].voice_to_voice_ms < local.predictions[0].voice_to_voice_ms
    assert "remote model's time" in choice.why
    assert choose(FAST, need).voice == "kokoro-int8"


def test_no_memory_at_all() -> None:
    with pytest.raises(CapacityError, match="VA203"):
        choose(FAST, replace(NEED, memory_mb=500.0))


def test_a_voice_slower_than_half_real_time_is_not_chosen() -> None:
    slow_voice = replace(FAST, voice={**FAST.voice, "kokoro-int8": VoiceSpeed(30.0, 0.55)})
    assert choose(slow_voice, NEED).voice == "piper-joe"


def test_what_is_named_is_taken() -> None:
    need = replace(NEED, want_llm="smollm2-135m", want_voice="kokoro-int8", want_stt="whisper-base")
    choice = choose(TWO_CORES, need)
    assert (choice.llm, choice.stt, choice.voice) == (
        "smollm2-135m", "whisper-base", "kokoro-int8",
    )  # fmt: skip
    assert "as configured" in choice.why


def test_a_model_of_ones_own() -> None:
    choice = choose(TWO_CORES, replace(NEED, want_llm="/models/own.gguf"))
    assert choice.llm == "/models/own.gguf"
    assert choice.predictions == ()


speeds = st.builds(
    Speeds,
    device=st.just("cpu"),
    cores=st.integers(1, 64),
    decode_gb_s=st.floats(0.5, 2000),
    prefill_gflops=st.floats(5, 500_000),
    stt_ms=st.fixed_dictionaries(
        {"whisper-tiny.en": st.floats(5, 2000), "whisper-base": st.floats(5, 4000)}
    ),
    voice=st.fixed_dictionaries(
        {
            "piper-joe": st.builds(VoiceSpeed, st.floats(5, 1000), st.floats(0.01, 2)),
            "kokoro-int8": st.builds(VoiceSpeed, st.floats(5, 3000), st.floats(0.01, 3)),
        }
    ),
)
needs = st.builds(
    Need,
    calls=st.integers(1, 32),
    target_ms=st.sampled_from([300.0, 600.0, 1000.0]),
    memory_mb=st.floats(2300, 64_000),
    present=st.sets(st.sampled_from(ALL)).map(lambda s: {*s, "smollm2-135m"}),
)


@given(speeds, needs)
def test_only_usable_models_are_chosen(s: Speeds, need: Need) -> None:
    choice = choose(s, need)
    assert choice.llm in need.present
    assert choice.stt in need.present or choice.stt == "whisper-tiny.en"
    assert choice.voice in need.present or choice.voice == "piper-joe"
    best = next(
        p
        for p in choice.predictions
        if (p.llm, p.stt, p.voice) == (choice.llm, choice.stt, choice.voice)
    )
    assert best.memory_mb <= need.memory_mb


@given(speeds, needs)
def test_nothing_larger_would_have_met_the_target(s: Speeds, need: Need) -> None:
    choice = choose(s, need)
    rank = {spec.name: spec.rank for spec in LLMS}
    for p in choice.predictions:
        if rank[p.llm] > rank[choice.llm]:
            assert not p.meets(need)


@given(speeds, st.integers(1, 16))
def test_more_calls_never_predict_less(s: Speeds, calls: int) -> None:
    def total(n: int) -> float:
        p = predict(s, LLMS[1], "whisper-tiny.en", "piper-joe", n)
        return p.voice_to_voice_ms

    assert total(calls + 1) >= total(calls)


@given(speeds)
def test_a_larger_model_is_never_faster_where_memory_decides(s: Speeds) -> None:
    s = replace(s, decode_gb_s=min(s.decode_gb_s, 50.0))
    times = [predict(s, spec, "whisper-tiny.en", "piper-joe", 1).voice_to_voice_ms for spec in LLMS]
    assert times == sorted(times)


def test_a_disturbed_measurement_does_not_make_the_larger_recogniser_faster() -> None:
    odd = replace(TWO_CORES, stt_ms={"whisper-tiny.en": 300.0, "whisper-base": 200.0})
    assert choose(odd, NEED).stt == "whisper-tiny.en"


def test_on_a_gpu_near_the_target_the_largest_is_taken() -> None:
    fast = {"whisper-tiny.en": 30.0, "whisper-base": 40.0}
    voices = {"piper-joe": VoiceSpeed(40.0, 0.05), "kokoro-int8": VoiceSpeed(45.0, 0.02)}
    everything = (*fast, *voices, "qwen2.5-0.5b", "qwen2.5-1.5b")
    need = Need(4, 300, 80_000, everything)
    gpu = Speeds("cuda", 1, 1500.0, 500_000.0, fast, voices, 0.03)
    best = choose(gpu, need)
    assert (best.llm, best.stt, best.voice) == ("qwen2.5-1.5b", "whisper-base", "kokoro-int8")
    cpu = choose(replace(gpu, device="cpu"), need)
    assert (cpu.llm, cpu.stt, cpu.voice) == ("qwen2.5-0.5b", "whisper-tiny.en", "piper-joe")
