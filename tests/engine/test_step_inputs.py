"""What a step's memory holds after each copy."""

from __future__ import annotations

import pytest
import torch

from engine.device import HostDevice
from engine.errors import InternalError
from engine.gpu_step import picks_of
from engine.inputs import PENDING, Row, SampleRow
from engine.sampling import SamplingParams
from engine.step_inputs import SKIP, Limits, StepInputs

pytestmark = pytest.mark.unit

DUMMY, NOBODY = 99, 8
LIMITS = Limits(n_tokens=24, n_rows=6, width=4, block_size=16, dummy_block=DUMMY, dummy_lane=NOBODY)


def sample(position: int, seed: int = 0, **settings: float) -> SampleRow:
    return SampleRow(SamplingParams(**settings), position, seed)  # type: ignore[arg-type]


def send(inputs: StepInputs, rows: list[Row], n_rows: int = 0, draws: bool = False) -> int:
    picks = picks_of(rows, every_row=n_rows > 0)
    return inputs.send(rows, picks, n_rows or len(rows), draws=draws)


def test_a_mixed_step() -> None:
    inputs = StepInputs(HostDevice(), LIMITS)
    rows = [
        Row((PENDING,), 17, (5, 6), sample(18), slot=3),
        Row((10, 11, 12), 15, (7, 8), None, slot=0),
        Row((20, 21, 22), 30, (9, 10, 11), sample(31), n_proposed=2, slot=1),
        Row((30,), 0, (12,), sample(1)),
    ]
    assert send(inputs, rows) == 8
    f = inputs.fields
    assert f.ids[:8].tolist() == [PENDING, 10, 11, 12, 20, 21, 22, 30]
    assert f.sources[0] == 3
    assert f.positions[:8].tolist() == [17, 15, 16, 17, 30, 31, 32, 0]
    assert f.slots[:8].tolist() == [
        6 * 16 + 1, 7 * 16 + 15, 8 * 16, 8 * 16 + 1, 10 * 16 + 14, 10 * 16 + 15, 11 * 16, 12 * 16,
    ]  # fmt: skip
    assert f.starts[:5].tolist() == [0, 1, 4, 7, 8]
    assert f.seen[:4].tolist() == [18, 18, 33, 1]
    assert f.wanted[:5].tolist() == [0, 4, 5, 6, 7]
    assert f.lanes[:5].tolist() == [3, NOBODY, NOBODY, NOBODY, NOBODY]
    assert f.tables[:4].tolist() == [
        [5, 6, DUMMY, DUMMY], [7, 8, DUMMY, DUMMY], [9, 10, 11, DUMMY], [12, DUMMY, DUMMY, DUMMY],
    ]  # fmt: skip


def test_padding_sees_stores_and_chooses_nothing() -> None:
    inputs = StepInputs(HostDevice(), LIMITS)
    full = [Row((i,), 40, (i, i + 1, i + 2), sample(41), slot=i) for i in range(6)]
    for _ in range(3):  # every staging buffer has held larger steps
        send(inputs, full, 6)
    rows = [Row((50,), 3, (60,), sample(4), slot=5), Row((51,), 4, (61,), None, slot=2)]
    assert send(inputs, rows, 4) == 2
    f = inputs.fields
    assert f.ids[:4].tolist() == [50, 51, 0, 0]
    assert f.seen[:4].tolist() == [4, 5, 0, 0]
    assert f.slots[:4].tolist() == [60 * 16 + 3, 61 * 16 + 4, SKIP, SKIP]
    assert f.lanes[:4].tolist() == [5, NOBODY, NOBODY, NOBODY]
    assert f.starts[:5].tolist() == [0, 1, 2, 3, 4]
    assert f.tables[0].tolist() == [60, DUMMY, DUMMY, DUMMY]
    assert (f.tables[2:4] == DUMMY).all()


def test_settings_of_a_draw() -> None:
    inputs = StepInputs(HostDevice(), LIMITS)
    rows = [
        Row((1,), 0, (1,), sample(1, 2**64 - 2, temperature=0.5, top_k=7, top_p=0.9), slot=0),
        Row((2,), 0, (2,), None, slot=1),
        Row((3,), 5, (3,), sample(6, 9, temperature=1.5, min_p=0.25), slot=2),
        Row((4,), 0, (4,), sample(1, 1, temperature=2.0, logprobs=1), slot=3),
    ]
    send(inputs, rows, 4, draws=True)
    s = inputs.fields.settings(4)
    assert s.temperature.tolist() == [0.5, 0.0, 1.5, 0.0]  # the last one is the host's
    assert (int(s.top_k[0]), int(s.top_k[2])) == (7, 0)
    assert s.top_p[[0, 2]].tolist() == pytest.approx([0.9, 1.0])
    assert s.min_p[[0, 2]].tolist() == [0.0, 0.25]
    assert s.seeds[[0, 2]].tolist() == [-2, 9]
    assert s.positions[[0, 2]].tolist() == [1, 6]


def test_fields_begin_where_kernels_like_it() -> None:
    f = StepInputs(HostDevice(), LIMITS).fields
    base = f.ids.data_ptr()
    for name in ("sources", "lanes", "temperature", "top_k", "seen", "starts", "tables"):
        assert (getattr(f, name).data_ptr() - base) % 16 == 0, name
    assert f.tables.dtype == f.seen.dtype == f.starts.dtype == torch.int32


class Mark:
    def __init__(self, number: int, waited: list[int]) -> None:
        self._number, self._waited = number, waited

    def synchronize(self) -> None:
        self._waited.append(self._number)


class MarkedDevice(HostDevice):
    """Tells which copies were waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []
        self.n_marks = 0

    def mark(self) -> Mark:
        self.n_marks += 1
        return Mark(self.n_marks, self.waited)


def test_staging_is_filled_again_only_after_its_copy() -> None:
    device = MarkedDevice()
    inputs = StepInputs(device, LIMITS)
    row = Row((1,), 0, (1,), sample(1), slot=0)
    for _ in range(2):
        send(inputs, [row], 1)
    assert device.waited == []  # two may be on their way
    for _ in range(3):
        send(inputs, [row], 1)
    assert device.waited == [1, 2, 3]


def test_a_slot_outside_the_table_is_our_bug() -> None:
    with pytest.raises(InternalError, match="slot 8"):
        send(StepInputs(HostDevice(), LIMITS), [Row((1,), 0, (1,), None, slot=NOBODY)])
