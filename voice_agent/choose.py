"""Which models this machine can carry: a pure function of its measured speeds.

    voice-to-voice = silence wait + rest of the transcript + prefill and decode up to the first
                     clause + first audio,   times a queueing factor when several calls share it

The largest language model that meets the target wins, then the better recogniser, then the better
voice. The smallest model is for tests: it is chosen only where nothing larger stays within twice
the target or fits the memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product

from voice_agent.errors import CapacityError

WAIT_MS = 288.0
"""The shortest end-of-turn silence of the balanced preset."""
PAUSE_MS = 120.0
"""Silence after which the tail is transcribed, so that the final overlaps the wait."""
PROMPT_TOKENS = 16
"""New tokens of a turn that are not yet prefilled at commit."""
CLAUSE_TOKENS = 6
REPLY_TOKENS = 30
REPLY_S = 6.0
"""Speech of one reply, for the load that a call makes."""
CYCLE_S = 12.0
"""Caller's turn and reply together."""
PASSES_PER_TURN = 3.0
"""Recogniser passes: the final and at most 2.5 partials, most of them shorter."""
LAYER_MS = 0.4
NATIVE_LAYER_MS = 0.03
"""Norms, rotary positions, attention over a short context and the calls themselves, a layer of a
step: 0.4 to 0.6 ms in PyTorch on two busy Zen cores, 0.02 to 0.03 in the native step. A recorded
step on a GPU is taken to cost as much as the latter: some eight small kernels, not measured."""
MAX_LOAD = 0.85
_FULL = 0.98
MAX_VOICE_RTF = 0.5
BASE_MEMORY_MB = 1800
"""Interpreter, libraries, recogniser and voice."""
TARGET_CPU_MS, TARGET_GPU_MS = 600, 300


@dataclass(frozen=True, slots=True)
class LlmSpec:
    """params: weights read per decoded token; body_params: those of a prefilled one (no head)."""

    name: str
    params: int
    body_params: int
    layers: int
    memory_mb: int
    rank: int
    for_tests: bool = False


LLMS: tuple[LlmSpec, ...] = (
    LlmSpec("smollm2-135m", 134_515_008, 106_203_456, 30, 400, 0, for_tests=True),
    LlmSpec("qwen2.5-0.5b", 494_032_768, 357_897_216, 24, 1200, 1),
    LlmSpec("qwen2.5-1.5b", 1_543_714_304, 1_310_340_608, 28, 3300, 2),
)
REMOTE = LlmSpec("remote", 0, 0, 0, 0, 0)
"""A language model elsewhere costs this machine nothing; its time is not predicted."""
STT_RANK: Mapping[str, int] = {"whisper-tiny.en": 0, "whisper-base": 1}
LIGHT_VOICE, KOKORO = "piper-joe", "kokoro-int8"
VOICE_RANK: Mapping[str, int] = {LIGHT_VOICE: 0, KOKORO: 1}


@dataclass(frozen=True, slots=True)
class VoiceSpeed:
    """first_ms: sound of a short first clause. rtf: seconds of work per second of sound."""

    first_ms: float
    rtf: float


@dataclass(frozen=True, slots=True)
class Speeds:
    """What was measured here. decode_gb_s: int8 weights read per second by one-row products;
    prefill_gflops: of 128-row products. stt_ms: final transcript of a 3 s utterance, by model.
    layer_ms: what a step costs beside its products, a layer. cores: 1 for a GPU, shared by all."""

    device: str
    cores: int
    decode_gb_s: float
    prefill_gflops: float
    stt_ms: Mapping[str, float]
    voice: Mapping[str, VoiceSpeed]
    layer_ms: float = LAYER_MS


@dataclass(frozen=True, slots=True)
class Need:
    """What the operator asked for. want_*: `auto` or a name. present: models on this machine;
    fetchable: those that may be downloaded. memory_mb: free memory."""

    calls: int
    target_ms: float
    memory_mb: float
    present: Collection[str]
    fetchable: Collection[str] = ()
    want_llm: str = "auto"
    want_stt: str = "auto"
    want_voice: str = "auto"


@dataclass(frozen=True, slots=True)
class Prediction:
    """One combination; milliseconds. load: share of all cores that the calls keep busy."""

    llm: str
    stt: str
    voice: str
    step_ms: float
    prefill_ms: float
    transcript_ms: float
    first_clause_ms: float
    first_audio_ms: float
    voice_to_voice_ms: float
    load: float
    memory_mb: float

    def meets(self, need: Need, slack: float = 1.0) -> bool:
        return (
            self.voice_to_voice_ms <= slack * need.target_ms
            and self.load <= MAX_LOAD
            and self.memory_mb <= need.memory_mb
        )

    def __str__(self) -> str:
        return (
            f"{self.llm} + {self.stt} + {self.voice}: {self.voice_to_voice_ms:.0f} ms "
            f"(wait {WAIT_MS:.0f}, transcript {self.transcript_ms:.0f}, first clause "
            f"{self.first_clause_ms:.0f}, first audio {self.first_audio_ms:.0f}), "
            f"load {100 * self.load:.0f} %"
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """The models to load; why, in one sentence; every prediction that was compared."""

    llm: str
    stt: str
    voice: str
    why: str
    predictions: tuple[Prediction, ...]


def predict(speeds: Speeds, llm: LlmSpec, stt: str, voice: str, calls: int) -> Prediction:
    """Voice-to-voice of one combination. An unmeasured recogniser or voice counts as infinite."""
    step_ms = llm.params / (speeds.decode_gb_s * 1e6) + speeds.layer_ms * llm.layers
    prefill_ms = 2.0 * llm.body_params * PROMPT_TOKENS / (speeds.prefill_gflops * 1e6)
    stt_ms = _final_ms(speeds, stt)
    tts = speeds.voice.get(voice, VoiceSpeed(float("inf"), float("inf")))
    transcript_ms = max(0.0, PAUSE_MS + stt_ms - WAIT_MS)
    clause_ms = prefill_ms + CLAUSE_TOKENS * step_ms
    work_s = (
        PASSES_PER_TURN * stt_ms + prefill_ms + REPLY_TOKENS * step_ms
    ) / 1000.0 + tts.rtf * REPLY_S
    load = calls * work_s / (CYCLE_S * speeds.cores)
    # Mean wait of a queue whose service times vary little, as a factor on the service itself.
    share = min(load, _FULL)
    factor = 1.0 + share / (2.0 * (1.0 - share))
    if calls == 1:
        factor = 1.0
    parts = [transcript_ms * factor, clause_ms * factor, tts.first_ms * factor]
    return Prediction(
        llm=llm.name,
        stt=stt,
        voice=voice,
        step_ms=step_ms,
        prefill_ms=prefill_ms,
        transcript_ms=parts[0],
        first_clause_ms=parts[1],
        first_audio_ms=parts[2],
        voice_to_voice_ms=WAIT_MS + sum(parts),
        load=load,
        memory_mb=BASE_MEMORY_MB + llm.memory_mb,
    )


def _final_ms(speeds: Speeds, stt: str) -> float:
    """A recogniser's final; never less than a smaller one's, whatever disturbed the measuring."""
    rank = STT_RANK.get(stt, 0)
    smaller = [ms for name, ms in speeds.stt_ms.items() if STT_RANK.get(name, 0) < rank]
    return max([speeds.stt_ms.get(stt, float("inf")), *smaller])


def choose(speeds: Speeds, need: Need) -> Choice:
    """Pick what to load. Named models are taken as they are; only `auto` is decided.

    Raises CapacityError VA203 when not even the smallest model fits the memory.
    """
    stts = _options(need.want_stt, STT_RANK, need)
    voices = _options(need.want_voice, VOICE_RANK, need)
    if need.want_voice == "auto":
        voices = [v for v in voices if v == LIGHT_VOICE or _keeps_up(speeds, v)] or [LIGHT_VOICE]
    llms = _llms(need)
    if not llms:
        return Choice(need.want_llm, stts[0], voices[0], "as configured", ())
    table = tuple(
        predict(speeds, llm, stt, voice, need.calls)
        for llm, stt, voice in product(llms, stts, voices)
    )
    best, why = _best(table, need, on_gpu=speeds.device != "cpu")
    if need.want_llm != "auto":
        why = f"as configured; predicted {best.voice_to_voice_ms:.0f} ms"
    if need.want_llm == REMOTE.name:
        why = f"predicted {best.voice_to_voice_ms:.0f} ms and the remote model's time"
    return Choice(best.llm, best.stt, best.voice, why, table)


def _best(table: tuple[Prediction, ...], need: Need, *, on_gpu: bool) -> tuple[Prediction, str]:
    rank = {spec.name: spec.rank for spec in (*LLMS, REMOTE)}
    tests = {spec.name for spec in LLMS if spec.for_tests}

    def order(p: Prediction) -> tuple[int, int, int]:
        return rank[p.llm], STT_RANK.get(p.stt, 0), VOICE_RANK.get(p.voice, 0)

    target = f"{need.target_ms:.0f} ms with {need.calls} call{'s' if need.calls > 1 else ''}"
    real = [p for p in table if p.llm not in tests or p.llm == need.want_llm]
    if good := [p for p in real if p.meets(need)]:
        best = max(good, key=order)
        return best, f"the largest that meets {target}: predicted {best.voice_to_voice_ms:.0f} ms"
    if near := [p for p in real if p.meets(need, 2.0)]:
        best = max(near, key=order)
        if not on_gpu:  # there the wait for the end of the turn is nearly all of it
            best = min(near, key=lambda p: (p.voice_to_voice_ms, order(p)))
        return best, (
            f"nothing meets {target}; this is within twice that: predicted "
            f"{best.voice_to_voice_ms:.0f} ms"
        )
    fits = [p for p in table if p.memory_mb <= need.memory_mb]
    if not fits:
        raise CapacityError(
            f"{need.memory_mb:.0f} MB of memory are free; the smallest set of models needs "
            f"{min(p.memory_mb for p in table):.0f} MB",
            code="VA203",
        )
    best = min(fits, key=lambda p: (p.voice_to_voice_ms, p.memory_mb))
    return best, f"no larger model comes within twice {target} here: expect slow, simple answers"


def _llms(need: Need) -> list[LlmSpec]:
    """Candidates, smallest first; empty for a model of the operator's own."""
    if need.want_llm != "auto":
        return [spec for spec in (*LLMS, REMOTE) if spec.name == need.want_llm]
    usable = {*need.present, *need.fetchable}
    return [spec for spec in LLMS if spec.name in usable]


def _options(want: str, ranks: Mapping[str, int], need: Need) -> list[str]:
    if want != "auto":
        return [want]
    usable = {*need.present, *need.fetchable}
    found = [name for name in ranks if name in usable]
    return found or [min(ranks, key=lambda n: ranks[n])]


def _keeps_up(speeds: Speeds, voice: str) -> bool:
    speed = speeds.voice.get(voice)
    return speed is not None and speed.rtf < MAX_VOICE_RTF
