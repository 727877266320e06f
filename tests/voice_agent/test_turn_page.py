"""docs/TURNS.md shows the tables that the code uses; every move of them can happen."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from voice_agent import turn as tm
from voice_agent.turn import Caller, Floor, Speech, TurnState, step
from voice_agent.turn_page import drawn, inserted, main
from voice_agent.turn_tables import CALLER, FLOOR, FORBIDDEN
from voice_agent.types import TurnId

pytestmark = pytest.mark.unit

PAGE = Path(__file__).parents[2] / "docs" / "TURNS.md"


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert inserted(page) == page, "run: python -m voice_agent.turn_page docs/TURNS.md"


def test_the_pages_own_words_stay_when_it_is_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE.read_text("utf-8").replace("stateDiagram-v2", "old"), "utf-8")
    main(str(path))
    assert path.read_text("utf-8") == PAGE.read_text("utf-8")
    with pytest.raises(ValueError, match="needs the lines"):
        inserted("no markers")


def test_every_state_and_move_is_drawn() -> None:
    page = drawn()
    for table in (CALLER, FLOOR):
        for state, moves in table.items():
            assert f" {state} " in page
            for move, to in moves.items():
                lines = [line for line in page.split("\n") if f"{state} --> {to}:" in line]
                assert any(move in line for line in lines)


def events(turn: TurnId) -> list[tm.Event]:
    heard: list[tm.Event] = [tm.Heard(turn, "x", kind, c) for kind, c in product(Speech, (0, 1))]
    return [
        *heard, tm.Onset(9000), tm.Pause(9000), tm.Resumed(), tm.Ended(9000), tm.Lasted(),
        tm.Undecided(), tm.Pressed(9000), tm.Keyed("1", 9000), tm.FirstSound(), tm.ReplyOver(),
        tm.Guard(True), tm.Guard(False), tm.Mute(True, 9000), tm.Mute(False, 9000), tm.Discard(),
        *map(tm.ReplyBegins, (Floor.THINKING, Floor.UNINTERRUPTIBLE, Floor.DRAINING)),
    ]  # fmt: skip


def name(state: TurnState) -> TurnState:
    """States that differ in nothing but which turn it is are one."""
    from dataclasses import replace

    committed = state.committed and TurnId("c", 0)
    return replace(state, turn=TurnId("c", 0), committed=committed, committed_end_ms=0, onset_ms=0)


def test_everything_that_can_be_reached_is_in_the_tables_and_all_of_them_is_reached() -> None:
    """All states there are, from every event in each: exhaustive, not sampled."""
    first = name(TurnState(TurnId("c", 0)))
    known, todo = {first}, [first]
    callers: set[tuple[Caller, Caller]] = set()
    floors: set[tuple[Floor, Floor]] = set()
    while todo:
        state = todo.pop()
        for event in events(state.turn):
            after, _ = step(state, event)
            callers.add((state.caller, after.caller))
            floors.add((state.floor, after.floor))
            assert (after.caller, after.floor) not in FORBIDDEN
            if (after := name(after)) not in known:
                known.add(after)
                todo.append(after)
    drawn_callers = {(a, b) for a, moves in CALLER.items() for b in moves.values()}
    drawn_floors = {(a, b) for a, moves in FLOOR.items() for b in moves.values()}
    assert {(a, b) for a, b in callers if a != b} == drawn_callers
    moved = {(a, b) for a, b in floors if a != b}
    assert drawn_floors <= moved
    # two moves in one step: words that waited are committed as the reply ends, for one
    assert moved - drawn_floors == {
        (Floor.SPEAKING, Floor.THINKING), (Floor.UNINTERRUPTIBLE, Floor.HELD),
    }  # fmt: skip
    pairs = set(product(Caller, Floor)) - {(s.caller, s.floor) for s in known}
    assert pairs == FORBIDDEN, "a pair is possible or forbidden"
