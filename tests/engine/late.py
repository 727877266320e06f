"""Makes a runner overlap steps, as a device does: in order, and late."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.inputs import PENDING, Row, Sampled

Place = tuple[int, int]
"""(block, offset)."""


class LateStep:
    def __init__(self, runner: Late, number: int, rows: Sequence[Row]) -> None:
        self.number = number
        self.rows = list(rows)
        self.results: list[Sampled | None] | Exception | None = None
        self._runner = runner

    def read(self) -> list[Sampled | None]:
        return self._runner.read(self)


class Late:
    """A step is computed when it is read, or by chance earlier; what is asked for keeps its order.

    Checks what the loop promises (engine/launch.py), and that nobody touches a place of the cache
    that a step which is not read yet may write for somebody else.
    """

    overlaps = True

    def __init__(self, inner: Any, seed: int = 0, slots: int = 64) -> None:
        self.inner = inner
        self.slots = slots
        self.most_unread = 0
        self.n_pending = 0
        """Rows whose token was not known at their launch."""
        self._picks = random.Random(seed)
        self._queue: deque[Callable[[], None]] = deque()
        self._unread: deque[LateStep] = deque()
        self._chosen: dict[int, tuple[int, int]] = {}  # slot -> (step's number, token)
        self._n_launched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        return self.launch(rows).read()

    def launch(self, rows: Sequence[Row]) -> LateStep:
        assert rows, "an empty step"
        used = [row.slot for row in rows if row.slot >= 0]
        assert len(set(used)) == len(used), "two rows with one slot"
        assert all(slot < self.slots for slot in used)
        for row in rows:
            assert (PENDING in row.token_ids) <= (row.token_ids == (PENDING,) and row.slot >= 0)
            self.n_pending += PENDING in row.token_ids
        for step in self._unread:
            for row in rows:
                self._keeps_off(row, step)
        self._n_launched += 1
        step = LateStep(self, self._n_launched, rows)
        self._unread.append(step)
        self.most_unread = max(self.most_unread, len(self._unread))
        assert len(self._unread) <= 2
        self._queue.append(lambda: self._compute(step))
        if self._picks.random() < 0.3:  # a quick device
            while self._queue:
                self._queue.popleft()()
        return step

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        size = self.inner.block_size
        read = {(src, offset) for offset in range(n_rows)}
        written = {(dst, offset) for offset in range(size)}
        for step in self._unread:
            for row in step.rows:
                assert not self._written(row) & (read | written), "copied too early"
                assert dst not in row.blocks, "copied into what a step in flight may read"
        self._queue.append(lambda: self.inner.copy_block(src, dst, n_rows))

    def read(self, step: LateStep) -> list[Sampled | None]:
        assert step in self._unread, "read twice"
        assert self._unread.popleft() is step, "read out of order"
        while step.results is None:
            self._queue.popleft()()
        if isinstance(step.results, Exception):
            raise step.results
        return step.results

    def _compute(self, step: LateStep) -> None:
        rows = [self._known(row, step.number) for row in step.rows]
        try:
            step.results = self.inner.run(rows)
        except Exception as error:
            step.results = error
            return
        for row, sampled in zip(rows, step.results, strict=True):
            if row.slot >= 0 and sampled is not None:
                self._chosen[row.slot] = (step.number, sampled.token)

    def _known(self, row: Row, number: int) -> Row:
        sample = row.sample
        if sample is not None and (sample.params.penalised or sample.params.logprobs is not None):
            assert len(sample.history) == sample.position, "the history moved under the step"
            assert PENDING not in sample.history
        if row.token_ids != (PENDING,):
            return row
        at, token = self._chosen[row.slot]
        assert at == number - 1, "nobody chose a token for this slot in the step before"
        return replace(row, token_ids=(token,))

    def _written(self, row: Row) -> set[Place]:
        size, end = self.inner.block_size, row.start + len(row.token_ids)
        return {(row.blocks[at // size], at % size) for at in range(row.start, end)}

    def _keeps_off(self, row: Row, step: LateStep) -> None:
        size, end = self.inner.block_size, row.start + len(row.token_ids)
        touched = {(row.blocks[at // size], at % size) for at in range(end)}
        written = self._written(row)
        for other in step.rows:
            if row.slot < 0 or other.slot < 0:
                continue  # padding, in a table of its own
            if other.slot == row.slot and other.start + len(other.token_ids) == row.start:
                continue  # it goes on where it was
            assert not self._written(other) & touched, "reads or writes what is in flight"
            read = {(other.blocks[at // size], at % size) for at in range(other.start)}
            assert not written & read, "writes what a step in flight may still read"
