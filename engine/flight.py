"""A step between its launch and its reading: who is in it, and what each is to get of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from engine.errors import InternalError
from engine.inputs import PENDING, Row, Sampled, SampleRow
from engine.kvcache import BlockTable
from engine.launch import Launched
from engine.plan import StepPlan
from engine.request import Request

Seat: TypeAlias = tuple[Request, BlockTable | None, int, int | None]
"""One request in a step: (request, its table at the launch, tokens computed, place).

Another table, or none, by the time of the reading says that the request has been preempted since.
Place: index in the request's tokens of the one that is chosen; None if none is.
"""


@dataclass(slots=True)
class Flight:
    """One step. Its first rows are those of the first `seats`; the other seats compute nothing.

    step: its number in the block pool. started_s: when its making began, launched_s: when it went
    to the runner. weight: what it counts as (see `Pace.weight`). at_once: to be read before the
    next is planned.
    """

    step: int
    seats: list[Seat]
    rows: list[Row]
    plan: StepPlan
    guesses: Mapping[int, tuple[int, ...]]
    started_s: float
    launched_s: float
    weight: float
    at_once: bool
    launched: Launched | None = None

    def leave_room(self) -> None:
        """A place for each token that is being chosen, so that the next step may be planned."""
        for request, _, _, place in self.seats:
            if place is not None and place + 1 - request.n_prompt < request.max_new:
                request.tokens.append(PENDING)

    def read(self) -> list[Sampled | None]:
        """Wait for it; what was chosen for each seat. Raises what the step met."""
        results = self.launched.read() if self.launched is not None else []
        if len(results) != len(self.rows):
            raise InternalError(f"{len(self.rows)} rows went in, {len(results)} came out")
        padding = len(self.plan.padding)
        chosen = results[: len(results) - padding] if padding else results
        return chosen + [None] * (len(self.seats) - len(chosen))


def board(
    plan: StepPlan, requests: Mapping[int, Request], guesses: Mapping[int, tuple[int, ...]]
) -> tuple[list[Seat], list[Row]]:
    """Seats and rows of those whom the plan advances; from here on they count as launched."""
    seats: list[Seat] = []
    idle: list[Seat] = []
    rows = []
    for request_id, n in plan.tokens.items():
        request = requests[request_id]
        table, tokens, start = request.table, request.tokens, request.launched
        assert table is not None
        if not n:
            idle.append((request, table, 0, None))
            continue
        request.launched = end = start + n
        place = sample = None
        if end == len(tokens) and not request.prefill_only:
            place = end
            sample = SampleRow(
                request.sampling, end, request.seed, tokens, request.n_prompt, request.counts,
                request.constraint,
            )  # fmt: skip
        ids, guess = tuple(tokens[start:end]), guesses.get(request_id, ())
        seats.append((request, table, n, place))
        rows.append(Row(ids + guess, start, tuple(table.blocks), sample, len(guess), request.slot))
    return seats + idle, rows
