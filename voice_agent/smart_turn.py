"""Did that sound finished? Smart Turn v3.2: P(turn complete) from the last 8 s of the caller's
voice.

An audio model (a Whisper tiny encoder with a small head): it hears intonation, not words. Its
answer scales the silence time-out and is never the only gate.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime

from .errors import InternalError, UsageError
from .mel import FRAMES_PER_S, RATE, whisper_features
from .types import PcmF32

SECONDS = 8
MAX_WAITING = 64


class SmartTurn:
    """Owns the model and its one worker thread; shared by all calls."""

    def __init__(self, model: Path, threads: int = 1) -> None:
        if not model.is_file():
            raise UsageError(f"the end-of-turn model {model} does not exist", code="VA124")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                str(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise InternalError(
                f"the end-of-turn model {model} cannot be loaded: {error}"
            ) from error
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="smart-turn")
        self._waiting = 0

    def predict(self, pcm: PcmF32) -> float:
        """P(complete) in [0, 1]. pcm: float32 [n] at 16 kHz, ending in the pause; blocking.

        Uses the last 8 s; shorter audio is padded with silence in front, then the whole is brought
        to zero mean and unit variance, as in the model's training.
        """
        n = SECONDS * RATE
        window = np.zeros(n, np.float32)
        tail = pcm[-n:]
        if len(tail):
            window[n - len(tail) :] = tail
        window -= window.mean()
        window /= np.sqrt(window.var() + np.float32(1e-7))
        features = whisper_features(window, SECONDS * FRAMES_PER_S)
        (prob,) = self._session.run(None, {"input_features": features[None]})
        return float(np.clip(prob[0, 0], 0.0, 1.0))

    async def score(self, pcm: PcmF32) -> float | None:
        """`predict` on the worker thread. None when 64 scores already wait: the time-out then keeps
        its prior, which is what an overloaded estimate is worth.
        """
        if self._waiting >= MAX_WAITING:
            return None
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, self.predict, pcm)
        finally:
            self._waiting -= 1

    def warm(self) -> None:
        """Blocking."""
        self.predict(np.zeros(RATE, np.float32))

    def close(self) -> None:
        self._worker.shutdown(wait=True, cancel_futures=True)
