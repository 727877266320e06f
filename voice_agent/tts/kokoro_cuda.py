"""Kokoro's second half on a GPU: a few padded widths, each captured once as a CUDA graph.

It is some two thousand small kernels a phrase, so launching them one by one, not computing them,
would take the time, and the interpreter's lock from the engine.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import compile_watch

from .kokoro_decoder import FRAME
from .kokoro_model import STYLE, WIDTH, KokoroModel

WIDTHS = (32, 64, 96, 128, 192, 256, 384)
"""Frames of 25 ms. A longer phrase runs kernel by kernel."""
PRIORITY = -2
"""Above both of the engine's streams (engine/device.py): a phrase is short, and somebody waits."""


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph and its buffers: rhythm, asr [1, 512, width], style [1, 256], n int64 []."""

    graph: torch.cuda.CUDAGraph | None
    rhythm: Tensor
    asr: Tensor
    style: Tensor
    n: Tensor
    sound: Tensor


class FrameGraphs:
    """One graph a width. `capture` and calls belong to one thread at a time.

    graphs False computes the same padded widths without capturing, on any device.
    """

    def __init__(
        self, model: KokoroModel, widths: tuple[int, ...] = WIDTHS, *, graphs: bool = True
    ) -> None:
        self._model = model
        self._widths = widths
        self._graphs = graphs
        self._captured: dict[int, _Captured] = {}
        self.stream: Any = new_stream(PRIORITY) if graphs else None

    def capture(self) -> None:
        """Blocking; every width once, the largest first, in one memory pool."""
        pool: Any = None
        with torch.inference_mode():
            for width in reversed(self._widths):
                done = self._captured[width] = self._capture(width, pool)
                pool = done.graph.pool() if done.graph else None

    def longest_ms(self) -> float:
        """Milliseconds of the widest graph, copies included: nobody waits longer for a phrase."""
        device = next(self._model.parameters()).device
        wide = torch.zeros(1, WIDTH, self._widths[-1], device=device)
        style = torch.zeros(1, 2 * STYLE, device=device)
        with torch.inference_mode():
            self(wide, wide, style).cpu()
            start = time.perf_counter()
            self(wide, wide, style).cpu()
            return 1000.0 * (time.perf_counter() - start)

    def _capture(self, width: int, pool: Any) -> _Captured:
        device = next(self._model.parameters()).device
        rhythm, asr = (torch.zeros(1, WIDTH, width, device=device) for _ in range(2))
        style = torch.zeros(1, 2 * STYLE, device=device)
        n = torch.tensor(width, device=device)
        args = (rhythm, asr, style, n)
        if not self._graphs:
            return _Captured(None, *args, torch.empty(0))
        stream = self.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose their algorithms outside the capture
                self._model.sound(*args)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            sound = self._model.sound(*args)
        compile_watch.note(f"CUDA graph of the voice, {width} frames")
        return _Captured(graph, *args, sound)

    def __call__(self, rhythm: Tensor, asr: Tensor, style: Tensor) -> Tensor:
        """rhythm, asr fp32 [1, 512, frames], style fp32 [1, 256] -> fp32 [600 frames].

        A phrase that no captured width holds runs kernel by kernel. The result is overwritten by
        the next call.
        """
        frames = asr.shape[2]
        width = next((w for w in self._widths if w >= frames), 0)
        kept = self._captured.get(width)
        if kept is None:
            return self._model.sound(rhythm, asr, style)
        spare = width - frames
        kept.rhythm.copy_(F.pad(rhythm, (0, spare)))
        kept.asr.copy_(F.pad(asr, (0, spare)))
        kept.style.copy_(style)
        kept.n.fill_(frames)
        if kept.graph is None:
            sound = self._model.sound(kept.rhythm, kept.asr, kept.style, kept.n)
        else:
            kept.graph.replay()
            sound = kept.sound
        return sound[: frames * FRAME]


def new_stream(priority: int) -> Any:
    """A CUDA stream; the lower its number, the sooner its kernels get processors."""
    make: Any = torch.cuda.Stream
    return make(priority=priority)
