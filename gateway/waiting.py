"""Web callers who wait for a line, in the order they came: a bounded queue with an estimate.

Who waits asks again every few seconds with a ticket; who does not is gone. A line that gets free is
kept for the first of them before anybody else can take it.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from voice_agent.clock import Clock

from .admission import OWNER, PASSES, TICKET, Admission, Refused, Why, retry_after

ASK_S = 3
"""A waiting page asks again so often."""
LAPSE_S = 12.0
"""Who has not asked for so long has gone."""


@dataclass(frozen=True, slots=True)
class Place:
    """number: 1 is the first. wait_s: until there is a line for this ticket, predicted."""

    ticket: str
    number: int
    wait_s: float

    def as_json(self) -> dict[str, str | int]:
        return {
            "ticket": self.ticket,
            "place": self.number,
            "wait_s": math.ceil(self.wait_s),
            "ask_s": ASK_S,
        }


@dataclass(slots=True)
class _Waiter:
    owner: str
    came_s: float
    asked_s: float
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """One caller in the queue, for the operator. waited_s: since they came; wait_s: from now on,
    predicted, 0 for whom a line is kept."""

    waited_s: float
    wait_s: float
    kept: bool


class WaitingRoom:
    """On the event loop."""

    def __init__(self, admission: Admission, clock: Clock, size: int) -> None:
        self._admission = admission
        self._clock = clock
        self.size = size
        self._waiters: OrderedDict[str, _Waiter] = OrderedDict()
        self.came = self.served = self.left = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def ask(self, ticket: str, transport: str) -> Place | None:
        """The place of a web caller; None: they may come in, by this ticket if they have one.

        Raises Refused where there is nothing to wait for, or no room.
        """
        self.settle()
        waiter = self._waiters.get(ticket)
        if waiter is None:
            refusal = self._admission.why_not(OWNER.get())
            if refusal is None:
                return None
            if refusal.why not in PASSES or len(self._waiters) >= self.size:
                self._admission.note(transport, refusal.why)
                raise refusal
            ticket = secrets.token_urlsafe(12)
            now_s = self._clock.now()
            waiter = self._waiters[ticket] = _Waiter(OWNER.get(), now_s, now_s)
            self.came += 1
        waiter.asked_s = self._clock.now()
        if waiter.kept:
            return None
        number = 1 + list(self._waiters).index(ticket)
        return Place(ticket, number, self._admission.wait_s(number))

    def claim(self, ticket: str) -> bool:
        """Whether a line is kept for this ticket; it is the caller's from now on."""
        self.settle()
        waiter = self._waiters.get(ticket)
        mine = waiter is not None and waiter.kept and waiter.owner == OWNER.get()
        if not mine or self._admission.draining:
            return False
        del self._waiters[ticket]
        self.served += 1
        return True

    def leave(self, ticket: str) -> None:
        """Who waited has gone. No effect for an unknown ticket."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is not None:
            self.left += 1
            if waiter.kept:
                self._admission.give_back(waiter.owner)

    def seen(self) -> list[Waiting]:
        """Who waits, the first one first."""
        self.settle()
        now_s = self._clock.now()
        return [
            Waiting(
                now_s - waiter.came_s,
                0.0 if waiter.kept else self._admission.wait_s(number),
                waiter.kept,
            )
            for number, waiter in enumerate(self._waiters.values(), 1)
        ]

    def settle(self) -> None:
        """Forget who has gone, then keep what lines there are for who came first."""
        late_s = self._clock.now() - LAPSE_S
        for ticket in [t for t, w in self._waiters.items() if w.asked_s < late_s]:
            self.leave(ticket)
        for waiter in self._waiters.values():
            if waiter.kept:
                continue
            refusal = self._admission.why_not(waiter.owner)
            if refusal is None:
                self._admission.keep(waiter.owner)
                waiter.kept = True
            elif refusal.why is not Why.OWNER:  # an owner's share holds nobody else up
                break

    def gauges(self) -> dict[str, float]:
        return {
            "calls_waiting": float(len(self._waiters)),
            "calls_waited_total": float(self.came),
            "calls_waited_served_total": float(self.served),
            "calls_waited_left_total": float(self.left),
        }


async def line_endpoint(request: Request) -> Response:
    """`POST /rtc/line?ticket=T`: what a page does that was refused. 202 and its place, to be asked
    for again; 200 and the ticket to call with (`?ticket=T`); or 503, for there is no place."""
    room: WaitingRoom = request.app.state.gateway.waiting
    try:
        place = room.ask(TICKET.get(), "page")
    except Refused as error:
        body = {"error": {"code": error.code, "message": str(error.args[0])}}
        return JSONResponse(body, 503, {"retry-after": retry_after(error)})
    free = place or Place(TICKET.get(), 0, 0.0)
    headers = {"cache-control": "no-store"}
    return JSONResponse(free.as_json(), 202 if free.number else 200, headers)
