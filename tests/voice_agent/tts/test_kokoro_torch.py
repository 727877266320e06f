"""PyTorch weights rebuilt from the export give the export's durations and a like sound."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from voice_agent.models import ModelStore
from voice_agent.speakable import speak_words
from voice_agent.tts.base import AudioPiece, Clause, Voice
from voice_agent.tts.kokoro_model import KokoroModel
from voice_agent.tts.kokoro_onnx import KokoroOnnxVoice
from voice_agent.tts.kokoro_text import SYMBOLS, Styles
from voice_agent.tts.kokoro_torch import KokoroTorchVoice
from voice_agent.tts.kokoro_weights import load_into, module_path
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.slow

PUBLISHED: dict[str, Any] = {
    "dropout": 0.2, "hidden_dim": 512, "max_dur": 50, "n_layer": 3, "n_mels": 80, "n_token": 178,
    "style_dim": 128, "text_encoder_kernel_size": 5,
    "istftnet": {
        "upsample_kernel_sizes": [20, 12], "upsample_rates": [10, 6], "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20, "resblock_dilation_sizes": [[1, 3, 5]] * 3,
        "resblock_kernel_sizes": [3, 7, 11], "upsample_initial_channel": 512,
    },
    "plbert": {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048,
        "max_position_embeddings": 512, "num_hidden_layers": 12, "dropout": 0.1,
    },
    "vocab": SYMBOLS,
}  # fmt: skip


@pytest.fixture(scope="module")
def store() -> ModelStore:
    found = ModelStore()
    if not (found.present("kokoro-int8") and found.present("kokoro-voices")):
        pytest.skip("kokoro-int8 and kokoro-voices are not in the store")
    return found


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


def test_same_words_same_sound_as_the_export(store: ModelStore) -> None:
    files = store.path("kokoro-int8"), store.path("kokoro-voices")
    ours = speak(KokoroTorchVoice(*files), "Hello there, my friend.")
    export = speak(KokoroOnnxVoice(*files), "Hello there, my friend.")
    for a, b in zip(ours.words, export.words, strict=True):
        assert abs(a.start - b.start) <= OUT_RATE // 20
        assert abs(a.end - b.end) <= OUT_RATE // 20
    x, y = spectrum(ours), spectrum(export)
    n = min(len(x), len(y))
    assert np.corrcoef(x[:n].ravel(), y[:n].ravel())[0, 1] > 0.85


def test_the_same_function_as_the_published_package(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same weights, same noise: the same durations and, up to rounding, the same samples."""
    ours = KokoroModel().eval()
    load_into(ours, store.path("kokoro-int8"))
    theirs = published(ours)
    noise = torch.randn(200_000, 9, generator=torch.Generator().manual_seed(1))

    def same_noise(x: torch.Tensor) -> torch.Tensor:
        n = max(x.shape)
        return noise[:n].unsqueeze(0) if x.shape[2] == 9 else noise[:n].T.unsqueeze(0)

    monkeypatch.setattr(torch, "randn_like", lambda x: same_noise(x) if 9 in x.shape else x)
    ids = torch.tensor([[0, 50, 83, 54, 156, 31, 16, 83, 123, 43, 46, 4, 0]])
    style = torch.from_numpy(Styles(store.path("kokoro-voices")).load("af_heart"))[ids.shape[1] - 3]
    with torch.inference_mode():
        expected, durations = theirs.forward_with_tokens(ids, style, 1.0)
        made = ours.features(ids, style, 1.0)
        sound = ours.sound(made.rhythm, made.asr, style)
    assert made.durations.tolist() == durations.tolist()
    assert expected.abs().max() > 0.1
    # A phase near the half turn may fall to either side.
    assert (sound - expected).abs().max() < 0.02 * expected.abs().max()


def published(ours: KokoroModel) -> Any:
    """kokoro.KModel with our weights; its matrices are scale times direction, row by row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's older weight-norm interface
        from kokoro.model import KModel

        nothing = io.BytesIO()
        torch.save({}, nothing)
        nothing.seek(0)
        model = KModel(repo_id="hexgrad/Kokoro-82M", config=dict(PUBLISHED), model=nothing)
    state, filled = model.state_dict(), {}
    for name, value in ours.state_dict().items():
        if name in state:
            filled[name] = value
        else:
            norm = value.flatten(1).norm(dim=1).view(-1, 1, 1)
            filled[f"{name}_g"] = norm
            filled[f"{name}_v"] = torch.where(norm == 0, torch.ones_like(value), value)
    assert set(filled) <= set(state)
    model.load_state_dict(filled, strict=False)
    return model.eval()
