"""What a graph could record: the same work on the same memory, whatever the step holds."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.gpu_runner import GpuRunner
from engine.graphs import decode_sizes, resolve_pending
from engine.inputs import PENDING, Row
from engine.models.config import ModelConfig
from engine.models.gpu import GpuLlama
from tests.support.gpu_rows import sample

pytestmark = pytest.mark.unit

CONFIG = ModelConfig("qwen3", 50, 64, 2, 4, 2, 16, 96, 1e-6, 10_000.0, 128)
WAITS = {
    "aten.item.default", "aten._local_scalar_dense.default", "aten.nonzero.default",
    "aten.masked_select.default",
    "aten._unique2.default", "aten.equal.default", "aten.is_nonzero.default",
}  # fmt: skip
"""Operations for which the host waits, or whose result's shape depends on the numbers."""


def test_sizes_end_with_the_most() -> None:
    assert decode_sizes(1) == (1,)
    assert decode_sizes(16) == (1, 2, 4, 8, 16)
    assert decode_sizes(74) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 74)
    assert decode_sizes(128)[-3:] == (80, 96, 128)
    assert decode_sizes(200)[-4:] == (128, 160, 192, 200)


def test_pending_ids_come_from_the_table() -> None:
    tokens = torch.tensor([7, 8, 9])
    ids, sources = torch.tensor([3, PENDING, 0, PENDING]), torch.tensor([0, 2, 1, 0])
    assert resolve_pending(ids, sources, tokens).tolist() == [3, 9, 0, 7]


class Recorder(TorchDispatchMode):
    """The operations of a step: names, shapes, and which of the fixed memory they touch."""

    def __init__(self, fixed: list[Tensor]) -> None:
        super().__init__()
        self._fixed = {tensor.untyped_storage().data_ptr() for tensor in fixed}
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [self._told(arg) for arg in (*args, *(kwargs or {}).values())]
        self.seen.append((str(func), given))
        return func(*args, **(kwargs or {}))

    def _told(self, arg: Any) -> Any:
        if not isinstance(arg, Tensor):
            return str(arg) if not isinstance(arg, list | tuple) else [self._told(a) for a in arg]
        at = arg.untyped_storage().data_ptr()
        place = (at, arg.storage_offset()) if at in self._fixed else None
        return tuple(arg.shape), arg.stride(), place


def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that do nothing: only what is around them is looked at."""
    made = {
        "rms_norm": lambda x, weight, eps: torch.empty_like(x),
        "rms_norm_add": lambda x, residual, weight, eps: torch.empty_like(x),
        "rope_at": lambda q, k, cos_sin, positions: None,
        "kv_write": lambda k, v, cache, slots, scales: None,
        "silu_mul": lambda x: torch.empty(x.shape[0], x.shape[1] // 2),
        "sample": lambda logits, settings, workspace: workspace.tokens[: len(logits)].fill_(5),
    }

    def attention(q: Tensor, *_: Any, **__: Any) -> Tensor:
        return torch.empty(q.shape)

    decode = types.SimpleNamespace(
        paged_attention_decode=attention, decode_workspace=lambda *_: torch.empty(3)
    )
    monkeypatch.setattr("engine.graphs.module_for", lambda *_, **__: decode)
    for module in ("models.gpu", "gpu_runner", "gpu_choice"):
        monkeypatch.setattr(f"engine.{module}.resolve", lambda op, _: made.get(op, attention))


def test_a_step_is_the_same_work_whatever_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes(monkeypatch)
    model = GpuLlama.random(CONFIG, device="cpu", dtype=torch.float32, max_len=64)
    runner = GpuRunner(model, 40, max_num_seqs=8)
    graphs = runner._graphs
    fixed = [runner._cache.data, runner._tokens, graphs.logits, graphs.chosen,
             runner._decode._buffer, graphs._room, runner._choice._workspace.tokens]  # fmt: skip
    steps = [
        [Row((3,), 0, (1,), sample(1), slot=0)] * 3,
        [Row((PENDING,), 40 + i, (4, 5, 6 + i), sample(41 + i), slot=7 - i) for i in range(4)],
    ]
    recorded = []
    for rows in steps:
        runner.run(rows)
        recorder = Recorder(fixed)
        with torch.inference_mode(), recorder:
            graphs.run(4)
        recorded.append(recorder.seen)
    assert recorded[0] == recorded[1]
    assert len(recorded[0]) > 20
    assert not {name for name, _ in recorded[0]} & WAITS


def test_the_attention_of_every_size_works_in_room_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes(monkeypatch)
    rooms: list[Any] = []

    def attention(q: Tensor, *_: Any, workspace: Tensor, **__: Any) -> Tensor:
        rooms.append(workspace)
        return torch.empty(q.shape)

    made: list[tuple[int, ...]] = []

    def room(q: Tensor, cache: Tensor, tables: Tensor, window: int) -> Tensor:
        made.append((*q.shape, *tables.shape, window))
        return torch.empty(3)

    decode = types.SimpleNamespace(paged_attention_decode=attention, decode_workspace=room)
    monkeypatch.setattr("engine.graphs.module_for", lambda *_, **__: decode)
    model = GpuLlama.random(CONFIG, device="cpu", dtype=torch.float32, max_len=64)
    graphs = GpuRunner(model, 40, max_num_seqs=8)._graphs
    with torch.inference_mode():
        for size in graphs.sizes:
            graphs.run(size)
    assert made == [(8, 4, 16, 8, 4, 0)]
    assert len(rooms) == 2 * len(graphs.sizes)
    assert all(given is rooms[0] for given in rooms)
