"""PyTorch weights rebuilt from the export give the export's durations and a like sound."""

from __future__ import annotations

import numpy as np
import pytest

from voice_agent.models import ModelStore
from voice_agent.speakable import speak_words
from voice_agent.tts.base import AudioPiece, Clause, Voice
from voice_agent.tts.kokoro_onnx import KokoroOnnxVoice
from voice_agent.tts.kokoro_torch import KokoroTorchVoice
from voice_agent.tts.kokoro_weights import module_path
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.slow


def test_module_paths() -> None:
    assert module_path("/encoder/F0.0/conv1/Conv") == "predictor.F0.0.conv1"
    assert module_path("/encoder/text_encoder/lstm/LSTM") == "text_encoder.lstm"
    assert (
        module_path("/decoder/decoder/generator/ups.0/ConvTranspose") == "decoder.generator.ups.0"
    )
    assert module_path("/a/b/b.1/Conv") == "a.b.1"
    assert module_path("/x/albert_layers.0/q_7/MatMul") == "x.albert_layers.0.q"


def speak(voice: Voice, text: str) -> AudioPiece:
    clause = Clause(0, text, (0, len(text)), speak_words(text, 0))
    (piece,) = voice.synthesize(clause, speed=1.0, cancelled=lambda: False)
    return piece


def spectrum(piece: AudioPiece) -> np.ndarray:
    frames = piece.pcm[: len(piece.pcm) // 600 * 600].reshape(-1, 600).astype(float)
    return np.log1p(np.abs(np.fft.rfft(frames * np.hanning(600), axis=1)))


def test_same_words_same_sound_as_the_export() -> None:
    store = ModelStore()
    if not (store.present("kokoro-int8") and store.present("kokoro-voices")):
        pytest.skip("kokoro-int8 and kokoro-voices are not in the store")
    files = store.path("kokoro-int8"), store.path("kokoro-voices")
    ours = speak(KokoroTorchVoice(*files), "Hello there, my friend.")
    export = speak(KokoroOnnxVoice(*files), "Hello there, my friend.")
    for a, b in zip(ours.words, export.words, strict=True):
        assert abs(a.start - b.start) <= OUT_RATE // 20
        assert abs(a.end - b.end) <= OUT_RATE // 20
    x, y = spectrum(ours), spectrum(export)
    n = min(len(x), len(y))
    assert np.corrcoef(x[:n].ravel(), y[:n].ravel())[0, 1] > 0.85
