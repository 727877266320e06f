"""Silero VAD v6's network, in NumPy: float32 products of matrices over all windows of a batch.

The weights are those of the package's ONNX file. Its graph takes three times as long in ONNX
Runtime, which runs some sixty small nodes for a window, and five times as long when other models
have had the caches in between. Results differ by 1e-5 at most.

    reflected to 640 samples, four frames of 256 -> spectrum's magnitude [4, 129]
    -> three convolutions of width 3 in time (4, 2, 1 frames) and one of width 1, each with ReLU
    -> LSTM cell of 128 -> ReLU -> one number -> sigmoid
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import InternalError
from .tts.onnx_graph import OnnxGraph
from .types import PcmF32

WINDOW = 512
CONTEXT = 64
ROWS = 64  # windows of one product: more do not fit the second-level cache

State: TypeAlias = NDArray[np.float32]

_HOP, _FFT, _BINS, _UNITS = 128, 256, 129, 128
_ROW = CONTEXT + WINDOW


class SileroVad:
    """The bare model: batches in, probabilities out. Deterministic; on the calling thread."""

    def __init__(self, model: Path | None = None) -> None:
        """Raises InternalError when the file is none or not this network."""
        path = model or Path(
            str(resources.files("silero_vad").joinpath("data/silero_vad_16k_op15.onnx"))
        )
        try:
            self._take_weights(OnnxGraph(path))
        except (KeyError, ValueError, OSError, InternalError) as error:
            raise InternalError(
                f"the voice activity model {path} cannot be loaded: {error}"
            ) from error

    def _take_weights(self, graph: OnnxGraph) -> None:
        """Each as the right-hand matrix of a product: [time * channels in, channels out]."""

        def conv(i: int, first: int = 0, last: int = 3) -> tuple[PcmF32, PcmF32]:
            name = f"model.encoder.{i}.reparam_conv"
            taps = graph.weight(f"{name}.weight").transpose(2, 1, 0)[first:last]
            return _rows(taps.reshape(-1, taps.shape[2])), graph.weight(f"{name}.bias")

        self._basis = _rows(graph.weight("model.stft.forward_basis_buffer")[:, 0].T)
        self._first, self._second = conv(0), conv(1)
        self._third = conv(2, first=1)  # before its first frame there is nothing but zeros
        self._fourth = conv(3, first=1, last=2)  # nor beside the only one
        rnn = "model.decoder.rnn"
        gates = np.r_[0:256, 384:512, 256:384]  # input, forget, output: one sigmoid for the three
        both = [graph.weight(f"{rnn}.weight_ih"), graph.weight(f"{rnn}.weight_hh")]
        self._cell = _rows(np.concatenate(both, axis=1)[gates].T)
        bias = graph.weight(f"{rnn}.bias_ih") + graph.weight(f"{rnn}.bias_hh")
        self._cell_bias = bias[gates]
        self._out = graph.weight("model.decoder.decoder.2.weight")[0, :, 0]
        self._out_bias = graph.weight("model.decoder.decoder.2.bias")[0]

    def score(
        self, windows: NDArray[np.float32], states: State
    ) -> tuple[NDArray[np.float32], State]:
        """windows [N, 576], states [2, N, 128] -> probabilities [N], next states [2, N, 128]."""
        n = len(windows)
        probs, after = np.empty(n, np.float32), np.empty((2, n, _UNITS), np.float32)
        for at in range(0, n, ROWS):
            some = slice(at, min(n, at + ROWS))
            features = self._features(windows[some])
            probs[some] = self._step(features, states[:, some], after[:, some])
        return probs, after

    def _features(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n, 576] -> [n, 128]."""
        n = len(windows)
        padded = np.empty((n, _ROW + CONTEXT), np.float32)
        padded[:, :_ROW] = windows
        padded[:, _ROW:] = windows[:, -2 : -2 - CONTEXT : -1]
        spectrum = _frames(padded, 4, _FFT, _HOP) @ self._basis
        np.square(spectrum, out=spectrum)
        parts = spectrum.reshape(n, 4, 2 * _BINS)
        power = np.zeros((n, 6, _BINS), np.float32)  # a frame of zeros before and after
        inner = power[:, 1:5]
        np.add(parts[..., :_BINS], parts[..., _BINS:], out=inner)
        np.sqrt(inner, out=inner)
        first = np.zeros((n, 5, 128), np.float32)  # a frame of zeros before
        heard = _frames(power, 4, 3 * _BINS, _BINS) @ self._first[0]
        heard += self._first[1]
        np.maximum(heard.reshape(n, 4, 128), 0, out=first[:, 1:])
        second = _relu(_frames(first, 2, 3 * 128, 2 * 128), self._second)
        return _relu(_relu(second.reshape(n, 128), self._third), self._fourth)

    def _step(self, features: NDArray[np.float32], states: State, after: State) -> PcmF32:
        """Probabilities [n]; the next states go to `after`."""
        gates = np.concatenate([features, states[0]], axis=1) @ self._cell
        gates += self._cell_bias
        let, new = gates[:, : 3 * _UNITS], gates[:, 3 * _UNITS :]
        _sigmoid(let)
        np.tanh(new, out=new)
        new *= let[:, :_UNITS]
        hidden, cell = after
        np.multiply(let[:, _UNITS : 2 * _UNITS], states[1], out=cell)
        cell += new
        np.tanh(cell, out=hidden)
        hidden *= let[:, 2 * _UNITS :]
        probs: PcmF32 = np.maximum(hidden, 0) @ self._out
        probs += self._out_bias
        return _sigmoid(probs)

    def probabilities(self, pcm: PcmF32) -> NDArray[np.float32]:
        """One probability per whole window of a recording, from a fresh state; float32 [n //
        512]."""
        n = len(pcm) // WINDOW
        if n == 0:
            return np.zeros(0, np.float32)
        padded = np.concatenate([np.zeros(CONTEXT, np.float32), pcm])
        shape, strides = (n, _ROW), (WINDOW * 4, 4)
        features = self._all_features(np.ndarray(shape, np.float32, padded, 0, strides))
        state, out = np.zeros((2, 1, _UNITS), np.float32), np.zeros(n, np.float32)
        for i in range(n):
            after = np.empty_like(state)
            out[i] = self._step(features[i : i + 1], state, after)[0]
            state = after
        return out

    def _all_features(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        parts = [self._features(windows[at : at + ROWS]) for at in range(0, len(windows), ROWS)]
        return np.concatenate(parts)


def _rows(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ascontiguousarray(matrix, np.float32)


def _frames(rows: NDArray[np.float32], n: int, size: int, hop: int) -> NDArray[np.float32]:
    """`n` stretches of `size` numbers, `hop` on each, of every row: [rows * n, size]."""
    strides = (rows.strides[0], hop * 4, 4)
    return np.ndarray((len(rows), n, size), np.float32, rows, 0, strides).reshape(-1, size)


def _relu(x: NDArray[np.float32], layer: tuple[PcmF32, PcmF32]) -> NDArray[np.float32]:
    out: NDArray[np.float32] = x @ layer[0]
    out += layer[1]
    return np.maximum(out, 0, out=out)


def _sigmoid(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """In place, by a function that can't overflow."""
    x *= 0.5
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5
    return x
