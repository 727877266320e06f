"""The baseline: what a batch does to those who are in it, and to those who are not."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import CapacityError, UsageError
from engine.request import FinishReason
from engine.static import WINDOW_S
from tests.engine.fakes import Sim, expected
from tests.engine.test_loop import prompt_of

pytestmark = pytest.mark.unit

LONGEST = 64


def world(n_blocks=64, **options) -> Sim:
    options = {"prefix_cache": "none", "max_num_seqs": 4, "step_s": 0.005, **options}
    return Sim(n_blocks, static_len=LONGEST, **options)


def test_a_batch_waits_for_its_window_or_until_it_is_full():
    sim = world()
    _, first = sim.submit(prompt_of(5), 3)
    steps = 0
    while not first.tokens:
        sim.step()
        steps += 1
    assert WINDOW_S <= (steps - 1) * sim.step_s <= WINDOW_S + sim.step_s
    sim.run()
    for n in range(4):
        sim.submit(prompt_of(5, salt=n), 3)
    assert sim.step(), "full: at once"


def test_everybody_gets_the_reference_text_streamed_as_it_is_made():
    sim = world(eos_every=9)
    pairs = [(prompt_of(3 + 5 * n, salt=n), 20) for n in range(4)]
    sinks = [sim.submit(prompt, most)[1] for prompt, most in pairs]
    sim.step()
    assert [len(sink.tokens) for sink in sinks] == [1] * 4
    sim.run()
    for (prompt, most), sink in zip(pairs, sinks, strict=True):
        assert sink.tokens == expected(prompt, most, 9)
    assert sim.all_free()


def test_prompts_are_padded_and_a_reply_that_ended_is_computed_on():
    sim = world()
    for n, (n_prompt, most) in enumerate([(4, 2), (12, 6), (7, 3), (12, 4)]):
        sim.submit(prompt_of(n_prompt, salt=n), most)
    sim.run()
    computed = [sum(len(row.token_ids) for row in rows) for rows in sim.runner.batches]
    assert computed == [4 * 12, 4, 4, 4, 4, 4]


def test_nobody_joins_before_the_last_reply_has_ended():
    sim = world()
    sinks = [sim.submit(prompt_of(5, salt=n), 3 + 9 * (n == 2))[1] for n in range(4)]
    sim.step()
    _, late = sim.submit(prompt_of(5, salt=9), 2)
    while sinks[2].finish is None:
        assert not late.tokens
        sim.step()
    assert sinks[0].finish is FinishReason.LENGTH
    sim.run()
    assert late.tokens == expected(prompt_of(5, salt=9), 2)


def test_each_member_reserves_the_longest_sequence_until_the_batch_ends():
    sim = world(n_blocks=2 * LONGEST // 4 + 3)
    sinks = [sim.submit(prompt_of(5, salt=n), 2 + 4 * n)[1] for n in range(4)]
    sim.step()
    assert (sim.scheduler.n_running, sim.scheduler.n_waiting) == (2, 2)
    assert sim.kv.pool.n_held == 2 * LONGEST // 4
    while sinks[0].finish is None:
        sim.step()
    assert sim.kv.pool.n_held == 2 * LONGEST // 4
    sim.run()
    assert all(sink.finish is FinishReason.LENGTH for sink in sinks)
    assert sim.all_free()


def test_an_aborted_member_goes_on_as_padding():
    sim = world()
    pairs = [sim.submit(prompt_of(5, salt=n), 8) for n in range(4)]
    for _ in range(3):
        sim.step()
    sim.loop.post_abort(pairs[1][0].id)
    sim.step()
    assert pairs[1][1].finish is FinishReason.ABORTED
    assert len(sim.runner.batches[-1]) == 4
    sim.run()
    assert pairs[0][1].tokens == expected(prompt_of(5), 8)
    assert sim.all_free()


def test_a_cache_too_small_for_one_sequence_is_an_error():
    sim = world(n_blocks=8)
    _, sink = sim.submit(prompt_of(5), 2)
    sim.run()
    assert isinstance(sink.outputs[-1].error, CapacityError)


def test_a_failed_forward_ends_the_batch():
    sim = world()
    sinks = [sim.submit(prompt_of(5, salt=n), 8)[1] for n in range(4)]
    sim.runner.fail_next = RuntimeError("device lost")
    sim.run()
    assert [sink.finish for sink in sinks] == [FinishReason.ERROR] * 4
    assert sim.all_free()


def test_an_unknown_mode_is_refused():
    with pytest.raises(UsageError, match="batching"):
        EngineConfig("model", batching="dynamic")
