from __future__ import annotations

import pytest

from engine.budget import CostModel
from engine.policy import (
    Urgency,
    choose_victim,
    deadline_key,
    fcfs_key,
    priority_key,
    rebased_deadline,
)
from engine.request import Request, State
from engine.sampling import SamplingParams

pytestmark = pytest.mark.unit

URGENCY = Urgency(CostModel(10.0, 1.0), 110.0, 0.1, 0.3, 0.01, 50)


def request(n, *, deadline_s=1.0, n_prompt=10, background=False, arrival_s=0.0, running=False):
    made = Request(
        n,
        [1] * n_prompt,
        SamplingParams(),
        seed=0,
        max_new=5,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        background=background,
    )
    if running:
        made.move(State.RUNNING)
    return made


def order(*requests, now=0.0, key=deadline_key):
    return [r.id for r in sorted(requests, key=lambda r: key(r, now, URGENCY))]


def test_earliest_deadline_first():
    assert order(request(1, deadline_s=2.0), request(2, deadline_s=1.0)) == [2, 1]


def test_a_long_prompt_yields_to_shorter_ones_that_come_while_it_would_be_computed():
    long = request(1, deadline_s=1.0, n_prompt=400)  # 0.44 s
    assert order(long, request(2, deadline_s=1.0)) == [2, 1]
    assert order(long, request(2, deadline_s=1.41)) == [2, 1]
    assert order(long, request(2, deadline_s=1.43)) == [1, 2]
    assert deadline_key(long, 0.0, URGENCY)[1] == pytest.approx(1.0 + 0.44)


def test_what_is_cached_needs_no_computing():
    cached = request(1, deadline_s=1.0, n_prompt=400)
    cached.expected_hit = 399
    assert deadline_key(cached, 0.0, URGENCY)[1] == pytest.approx(1.0 + 0.011)
    assert order(request(2, deadline_s=1.005), cached) == [cached.id, 2]


def test_a_deadline_is_rebased_once_it_cannot_be_met():
    late = request(1, deadline_s=1.0, n_prompt=400)  # needs 0.44 s here and 0.1 s later
    assert rebased_deadline(late, 0.45, 0.6, URGENCY) is None
    assert rebased_deadline(late, 0.5, 0.6, URGENCY) == pytest.approx(0.5 + 0.54 + 0.6)
    late.rebased = True
    assert rebased_deadline(late, 9.0, 0.6, URGENCY) is None


def test_a_speaking_call_misses_its_deadline_when_it_runs_dry():
    speaking = request(1, deadline_s=1.0)
    speaking.speaking = True
    assert rebased_deadline(speaking, 0.99, 0.6, URGENCY) is None
    assert rebased_deadline(speaking, 1.01, 0.6, URGENCY) == pytest.approx(1.61)


def test_background_comes_after_live_until_it_was_passed_over_often():
    background = request(1, deadline_s=0.0, background=True)
    live = request(2, deadline_s=9.0)
    assert order(background, live) == [2, 1]
    background.passes = 50
    assert order(background, live) == [1, 2]


def test_a_call_about_to_run_dry_goes_before_any_first_clause():
    first_clause = request(1, deadline_s=0.1)
    speaking = request(2, deadline_s=0.25)
    speaking.speaking = True
    assert order(first_clause, speaking) == [2, 1]
    speaking.deadline_s = 2.0  # plenty is buffered
    assert order(first_clause, speaking) == [1, 2]


def test_a_speaking_call_that_lost_its_blocks_runs_dry_earlier():
    first_clause = request(1, deadline_s=0.1)
    speaking = request(2, deadline_s=0.6, n_prompt=400)
    speaking.speaking = True
    assert order(first_clause, speaking) == [2, 1]
    speaking.expected_hit = 399
    assert order(first_clause, speaking) == [1, 2]


def test_passes_make_a_request_older():
    early, late = request(1, deadline_s=1.0), request(2, deadline_s=1.1)
    late.passes = 11
    assert order(early, late) == [2, 1]


def test_fcfs_looks_at_nothing_but_arrival():
    first = request(2, arrival_s=0.0, deadline_s=9.0, background=True)
    second = request(1, arrival_s=1.0, deadline_s=0.0)
    assert order(first, second, key=fcfs_key) == [2, 1]


def test_priority_is_the_callers_number_then_arrival():
    first = request(1, arrival_s=0.0, deadline_s=0.1)
    second = request(2, arrival_s=1.0)
    urgent = request(3, arrival_s=2.0, deadline_s=9.0)
    first.priority = second.priority = 5
    assert order(second, first, urgent, key=priority_key) == [3, 1, 2]
    urgent.priority = 6
    assert order(second, first, urgent, key=priority_key) == [1, 2, 3]


@pytest.mark.parametrize("key", [deadline_key, fcfs_key, priority_key])
def test_an_open_prompt_comes_after_everybody_who_waits_for_a_reply(key):
    held, live = request(1, deadline_s=0.0), request(2, deadline_s=9.0, arrival_s=5.0)
    held.held, live.priority = True, 1000
    assert order(held, live, key=key) == [2, 1]
    assert rebased_deadline(held, 9.0, 0.6, URGENCY) is None


def test_the_victim_is_the_last_that_is_not_planned_yet():
    a, b, c, d = (request(n, running=True) for n in range(4))
    waiting = request(9)
    ranks = [a, b, c, d, waiting]
    assert choose_victim(ranks, a, {}) is d
    assert choose_victim(ranks, a, {d.id: 1}) is c
    assert choose_victim(ranks, c, {d.id: 1}) is None
    assert choose_victim(ranks, d, {}) is None
