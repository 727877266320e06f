"""The voice activity network against ONNX Runtime on the same file."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from voice_agent.audio import read_wav, to_float
from voice_agent.errors import InternalError
from voice_agent.silero import CONTEXT, ROWS, WINDOW, SileroVad, State

pytestmark = pytest.mark.unit

CLIPS = Path(__file__).parents[1] / "data" / "clips"
FILE = Path(str(resources.files("silero_vad").joinpath("data/silero_vad_16k_op15.onnx")))


@pytest.fixture(scope="module")
def model() -> SileroVad:
    return SileroVad()


@pytest.fixture(scope="module")
def windows() -> NDArray[np.float32]:
    """Of speech, in order: [n, 576]."""
    pcm = to_float(read_wav(CLIPS / "ps_austen_0880.wav").pcm)
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), pcm])
    n = len(pcm) // WINDOW
    return np.stack([padded[i * WINDOW : (i + 1) * WINDOW + CONTEXT] for i in range(n)])


@cache
def session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(FILE), options, providers=["CPUExecutionProvider"])


def by_onnx(windows: NDArray[np.float32], states: State) -> tuple[NDArray[np.float32], State]:
    feeds = {"input": windows, "state": states, "sr": np.array(16_000, np.int64)}
    probs, after = session().run(None, feeds)
    return probs[:, 0], after


@pytest.mark.parametrize("n", [1, 3, ROWS + 5])
@pytest.mark.parametrize("gain", [1e-4, 1.0, 30.0])
def test_as_onnx_runtime_has_it(
    model: SileroVad, windows: NDArray[np.float32], n: int, gain: float
) -> None:
    rows = np.resize(windows, (n, CONTEXT + WINDOW)) * np.float32(gain)
    states = np.random.default_rng(n).standard_normal((2, n, 128)).astype(np.float32)
    probs, after = model.score(rows, states)
    expected, next_states = by_onnx(rows, states)
    assert np.abs(probs - expected).max() < 1e-5
    assert np.abs(after - next_states).max() < 1e-4
    assert probs.dtype == after.dtype == np.float32


def test_a_recording_as_window_after_window(model: SileroVad, windows: NDArray[np.float32]) -> None:
    pcm = windows[:, CONTEXT:].reshape(-1)
    state, expected = np.zeros((2, 1, 128), np.float32), []
    for row in windows:
        prob, state = by_onnx(row[None], state)
        expected.append(prob[0])
    assert max(expected) > 0.9
    assert np.abs(model.probabilities(pcm) - expected).max() < 1e-4
    assert len(model.probabilities(pcm[: WINDOW - 1])) == 0


def test_input_stays_as_it_was(model: SileroVad, windows: NDArray[np.float32]) -> None:
    rows, states = windows[:2].copy(), np.ones((2, 2, 128), np.float32)
    model.score(rows, states)
    assert np.array_equal(rows, windows[:2])
    assert np.all(states == 1)


@pytest.mark.parametrize("body", [b"", b"not a model", FILE.read_bytes()[:100_000]])
def test_a_file_that_is_none_is_named(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "vad.onnx"
    path.write_bytes(body)
    with pytest.raises(InternalError, match=r"vad\.onnx"):
        SileroVad(path)
    with pytest.raises(InternalError, match="missing"):
        SileroVad(tmp_path / "missing")
