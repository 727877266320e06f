"""Web callers in the queue: order, bound, estimate, and a line that is theirs when it is free."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import OWNER, Admission, Refused, Why
from gateway.waiting import ASK_S, LAPSE_S, WaitingRoom
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent.clock import ManualClock

pytestmark = pytest.mark.unit


class World:
    def __init__(self, lines: int = 1, size: int = 3, max_each: int = 0) -> None:
        self.clock = ManualClock(100.0)
        self.admission = Admission(lines, max_each, clock=self.clock)
        self.room = WaitingRoom(self.admission, self.clock, size)
        self.calls: list[ExitStack] = []

    def fill(self) -> None:
        while self.admission.active < self.admission.max_calls:
            self.begin(self.admission.call("sip"))

    def begin(self, call: AbstractContextManager[None]) -> None:
        held = ExitStack()
        held.enter_context(call)
        self.calls.append(held)

    def end_one(self) -> None:
        self.calls.pop(0).close()

    def place(self, ticket: str = "") -> tuple[str, int]:
        seen = self.room.ask(ticket, "page")
        return (seen.ticket, seen.number) if seen is not None else (ticket, 0)


def test_they_stand_in_the_order_they_came_and_are_told_how_long() -> None:
    world = World()
    world.fill()
    tickets = [world.place()[0] for _ in range(3)]
    assert [world.place(ticket) for ticket in tickets] == [
        (t, n + 1) for n, t in enumerate(tickets)
    ]
    waits_s = [world.room.ask(ticket, "page").wait_s for ticket in tickets]  # type: ignore[union-attr]
    assert waits_s == [waits_s[0] * n for n in (1, 2, 3)]


def test_the_queue_is_bounded_and_who_finds_it_full_is_refused() -> None:
    world = World(size=2)
    world.fill()
    world.place()
    world.place()
    with pytest.raises(Refused):
        world.place()
    assert world.admission.gauges()["calls_refused_lines_total"] == 1.0
    assert world.room.gauges()["calls_waiting"] == 2.0


def test_a_line_that_gets_free_is_the_first_ones_whoever_else_comes() -> None:
    world = World()
    world.fill()
    first, second = world.place()[0], world.place()[0]
    world.end_one()
    world.room.settle()
    with pytest.raises(Refused), world.admission.call("sip"):
        pass
    assert not world.room.claim(second)
    assert world.place(second) == (second, 2)
    assert world.place(first) == (first, 0)
    assert world.room.claim(first)
    assert not world.room.claim(first), "once"
    world.begin(world.admission.call("page", kept=True))
    assert world.place(second) == (second, 1)
    world.end_one()
    assert world.place(second) == (second, 0)


def test_who_stops_asking_gives_up_the_place_and_the_line() -> None:
    world = World()
    world.fill()
    gone, stays = world.place()[0], world.place()[0]
    world.end_one()
    world.place(stays)
    assert world.admission.active == 1, "kept for who is gone by now"
    for _ in range(int(LAPSE_S / ASK_S) + 1):
        world.clock.advance(ASK_S)
        seen = world.place(stays)
    assert seen == (stays, 0)
    assert not world.room.claim(gone)
    assert world.admission.active == 1
    assert world.room.gauges()["calls_waited_left_total"] == 1.0


def test_a_ticket_is_its_owners() -> None:
    world = World()
    world.fill()
    token = OWNER.set("key:a")
    try:
        ticket = world.place()[0]
        world.end_one()
        world.place(ticket)
        OWNER.set("key:b")
        assert not world.room.claim(ticket)
        OWNER.set("key:a")
        assert world.room.claim(ticket)
        world.begin(world.admission.call("page", kept=True))
        world.end_one()
    finally:
        OWNER.reset(token)
    assert world.admission.active == 0


def test_an_owner_with_a_full_share_holds_nobody_up() -> None:
    world = World(lines=2, max_each=1)
    token = OWNER.set("key:a")
    try:
        world.begin(world.admission.call("page"))
        OWNER.set("key:b")
        world.begin(world.admission.call("page"))
        OWNER.set("key:a")
        greedy = world.place()[0]
        OWNER.set("key:c")
        patient = world.place()[0]
        OWNER.set("key:b")
        world.calls.pop().close()
        OWNER.set("key:c")
        assert world.place(patient) == (patient, 0)
        assert world.place(greedy) == (greedy, 1)
    finally:
        OWNER.reset(token)


def test_nobody_waits_for_a_server_that_shuts_down() -> None:
    world = World()
    world.fill()
    world.admission.draining = True
    with pytest.raises(Refused) as refused:
        world.place()
    assert refused.value.why is Why.DRAINING


@given(st.lists(st.sampled_from(["come", "ask", "call", "end", "leave", "later"]), max_size=80))
def test_lines_add_up_whatever_happens(moves: list[str]) -> None:
    world, tickets = World(lines=3, size=4), list[str]()
    for move in moves:
        match move:
            case "come":
                try:
                    ticket, number = world.place()
                except Refused:
                    assert len(world.room) == 4
                else:
                    if number:
                        tickets.append(ticket)
            case "ask" if tickets:
                tickets.append(tickets.pop(0))
                try:
                    tickets[-1] = world.place(tickets[-1])[0]
                except Refused:
                    tickets.pop()
            case "call" if tickets and world.room.claim(tickets[0]):
                tickets.pop(0)
                world.begin(world.admission.call("page", kept=True))
            case "call":
                try:
                    world.begin(world.admission.call("sip"))
                except Refused:
                    assert world.admission.active == 3
            case "end" if world.calls:
                world.end_one()
            case "leave" if tickets:
                world.room.leave(tickets.pop())
            case "later":
                world.clock.advance(ASK_S)
        assert len(world.calls) <= world.admission.active <= 3
        assert len(world.room) <= 4
    world.clock.advance(2 * LAPSE_S)
    world.room.settle()
    while world.calls:
        world.end_one()
    assert world.admission.active == 0
    assert len(world.room) == 0


async def test_a_page_is_told_its_place_and_called_in() -> None:
    async with (
        serving(FakeStack(), max_calls=1, max_waiting=1) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        with server.gateway.admit("sip"):
            full = await client.post("/rtc/line")
            assert full.status_code == 202
            seen = full.json()
            assert (seen["place"], seen["ask_s"]) == (1, ASK_S)
            assert seen["wait_s"] > 0
            again = await client.post("/rtc/line", params={"ticket": seen["ticket"]})
            assert again.json() == seen
            other = await client.post("/rtc/line")
            assert (other.status_code, other.json()["error"]["code"]) == (503, "VA460")
            assert int(other.headers["retry-after"]) > 0
            told = (await client.get("/api/ops")).json()
            assert told["load"]["waiting"] == 1
            (queued,) = told["waiting"]
            assert (queued["place"], queued["line_kept"]) == (1, False)
            assert (queued["waited_s"] >= 0, queued["wait_s"] > 0) == (True, True)
        free = await client.post("/rtc/line", params={"ticket": seen["ticket"]})
        assert (free.status_code, free.json()["place"]) == (200, 0)
        (queued,) = (await client.get("/api/ops")).json()["waiting"]
        assert (queued["line_kept"], queued["wait_s"]) == (True, 0.0)
        offer = {"type": "offer", "sdp": "no sdp"}
        stranger = await client.post("/rtc/offer", json=offer)
        assert stranger.json()["error"]["code"] == "VA460", "the line is kept"
        mine = await client.post("/rtc/offer", json=offer, params={"ticket": seen["ticket"]})
        assert mine.json()["error"]["code"] == "VA463", "taken, as far as the offer goes"
        assert server.gateway.admission.active == 0
