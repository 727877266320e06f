"""Static batching: what continuous batching is measured against, on the same kernels and step.

A batch is formed when it is full or `WINDOW_S` after its first request came. Each member reserves
the KV blocks of the longest sequence. Prompts are padded to the longest among them; nobody joins,
and a reply that has ended goes on being computed as padding until the last one ends. Tokens are
delivered as they are made. Nothing is cached, ordered by urgency or preempted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.budget import CostModel
from engine.config import EngineConfig
from engine.errors import CapacityError
from engine.inputs import Row
from engine.kvcache import BlockTable, KvCache
from engine.pace import Pace
from engine.plan import StepPlan
from engine.request import Request
from engine.roster import Roster

WINDOW_S = 0.020
_PAD = 0
"""Any token: nobody reads what comes of it."""


@dataclass(slots=True)
class _Slot:
    request: Request
    table: BlockTable
    position: int = 0
    """Where the next token goes, whether real or padding."""
    ended: bool = False


class StaticScheduler(Roster):
    """The seed's way."""

    def __init__(
        self, config: EngineConfig, kv: KvCache, cost: CostModel, max_model_len: int
    ) -> None:
        super().__init__(config, kv, Pace(config, cost))
        self._reserve = max_model_len
        self._slots: dict[int, _Slot] = {}

    def tables(self) -> Iterator[BlockTable]:
        return (slot.table for slot in self._slots.values())

    def slots(self) -> tuple[int, int]:
        used = sum(slot.request.computed for slot in self._slots.values())
        return sum(slot.table.capacity for slot in self._slots.values()), used

    def plan(self, now: float) -> StepPlan:
        if not self._slots and not self.kv.pool.in_flight:  # which fences the last batch's blocks
            self._form(now)
        open_slots = [slot for slot in self._slots.values() if not slot.ended]
        longest = max((slot.request.remaining for slot in open_slots), default=0)
        planned: dict[int, int] = {}
        padding: list[Row] = []
        for slot in self._slots.values():
            n = 0 if slot.ended else slot.request.remaining
            if n:  # else its last token is in flight
                planned[slot.request.id] = n
            if n < longest:
                padding.append(self._pad(slot, slot.position + n, longest - n))
            slot.position += n if n else longest
        predicted = self.pace.budget.cost.ms(sum(planned.values()) + sum(map(_n_tokens, padding)))
        return StepPlan(planned, (), predicted, predicted, tuple(padding))

    def _pad(self, slot: _Slot, start: int, n: int) -> Row:
        start = min(start, self._reserve - n)
        blocks = slot.table.blocks[: self.kv.blocks_for(start + n)]
        return Row((_PAD,) * n, start, tuple(blocks), None)

    def _form(self, now: float) -> None:
        waiting = sorted(self._waiting.values(), key=lambda request: request.arrival_s)
        full = len(waiting) >= self.config.max_num_seqs
        if not waiting or not (full or now - waiting[0].arrival_s >= WINDOW_S):
            return
        for request in waiting[: self.config.max_num_seqs]:
            table, _ = self.kv.open(request.scope, request.tokens, 0, now)
            if not self.kv.grow(table, self._reserve):
                self.kv.close(table, (), 0, keep=False)
                break
            self._enter(request, table, 0)
            self._slots[request.id] = _Slot(request, table)
            self.counters.prompt_tokens += request.n_prompt
        if not self._slots:
            error = CapacityError("the KV cache cannot hold one sequence of the longest length")
            self.failed.extend((request, error) for request in waiting)

    def _close(self, request: Request, keep: bool) -> None:
        """The row stays, as padding, and so do its blocks, until the whole batch has ended."""
        slot = self._slots.get(request.id)
        if slot is None:
            return
        request.table, slot.ended = None, True
        if all(slot.ended for slot in self._slots.values()):
            for slot in self._slots.values():
                self.kv.close(slot.table, (), 0, keep=False)
            self._slots.clear()


def _n_tokens(row: Row) -> int:
    return len(row.token_ids)
