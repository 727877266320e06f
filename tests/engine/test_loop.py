from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.budget import CostModel
from engine.errors import InternalError
from engine.request import FinishReason, State
from tests.engine.fakes import N_VOCAB, Sim, expected

pytestmark = pytest.mark.unit


def prompt_of(n: int, salt: int = 0) -> list[int]:
    return [1 + (salt * 131 + i * 17) % (N_VOCAB - 1) for i in range(n)]


# the same text, whatever happened on the way


@pytest.mark.parametrize("n", [1, 3, 4, 5, 37])
def test_cold_output_is_the_reference(n):
    sim = Sim()
    request, sink = sim.submit(prompt_of(n), 10)
    sim.run()
    assert sink.tokens == expected(prompt_of(n), 10)
    assert sink.finish is FinishReason.LENGTH
    assert request.state is State.FINISHED
    assert sim.all_free()


@pytest.mark.parametrize("per_step", [1, 2, 3, 4, 5, 7, 16, 100])
def test_chunked_at_any_size_gives_the_same_text(per_step):
    sim = Sim(max_num_batched_tokens=per_step, max_num_seqs=1, min_prefill_tokens=1)
    _, sink = sim.submit(prompt_of(41), 9)
    sim.run()
    assert max(len(row.token_ids) for rows in sim.runner.batches for row in rows) <= per_step
    assert sink.tokens == expected(prompt_of(41), 9)


@pytest.mark.parametrize("shared", [1, 2, 4, 7, 8, 19, 20])
def test_cached_gives_the_same_text_and_hits_to_the_token(shared):
    sim = Sim()
    first = prompt_of(20)
    second = first[:shared] + prompt_of(12, salt=3)
    sim.submit(first, 4)
    sim.run()
    _, sink = sim.submit(second, 9)
    sim.run()
    assert sink.cached == shared
    assert sink.tokens == expected(second, 9)


def test_the_same_prompt_again_computes_its_last_token_only():
    sim = Sim()
    prompt = prompt_of(20)
    sim.submit(prompt, 4)
    sim.run()
    sim.runner.batches.clear()
    _, sink = sim.submit(prompt, 4)
    sim.step()
    assert sink.cached == 19
    assert [len(row.token_ids) for row in sim.runner.batches[0]] == [1]
    sim.run()
    assert sink.tokens == expected(prompt, 4)


def test_the_next_turn_recomputes_only_its_new_tokens():
    sim = Sim(eos_every=9)
    context, n_before = prompt_of(22), 0
    for turn in range(6):
        _request, sink = sim.submit(context, 30)
        sim.run()
        assert sink.finish is FinishReason.STOP
        assert sink.tokens == expected(context, 30, 9)
        if turn:
            assert sink.cached == n_before, "all of the last turn's context and reply"
        context = context + sink.tokens
        n_before = len(context)
        context = context + prompt_of(5, salt=turn + 10)
    assert sim.all_free()


def test_after_an_abort_the_next_turn_goes_on_from_the_cut():
    sim = Sim()
    context = prompt_of(18)
    request, sink = sim.submit(context, 40)
    for _ in range(12):
        sim.step()
    sim.loop.post_abort(request.id)
    sim.step()
    heard = sink.tokens[:6]
    follow_up = context + heard + prompt_of(7, salt=5)
    _, sink2 = sim.submit(follow_up, 6)
    sim.run()
    assert sink2.cached == len(context) + len(heard)
    assert sink2.tokens == expected(follow_up, 6)


def test_a_second_request_shares_while_the_first_still_runs():
    sim = Sim()
    common = prompt_of(24)
    sim.submit([*common, 5], 40)
    for _ in range(3):
        sim.step()
    _, sink = sim.submit([*common, 6], 4)
    sim.run()
    assert sink.cached == 24
    assert sink.tokens == expected([*common, 6], 4)


def test_two_tenants_never_share():
    sim = Sim()
    prompt = prompt_of(20)
    sim.submit(prompt, 4, tenant="a")
    sim.run()
    _, other = sim.submit(prompt, 4, tenant="b")
    sim.run()
    assert other.cached == 0
    assert other.tokens == expected(prompt, 4)


def test_preempted_and_resumed_gives_the_same_text():
    """More promised than there is: admission expects replies of nothing and is proved wrong."""
    sim = Sim(n_blocks=16, admission_growth=0.0)
    sinks = []
    for i in range(4):
        prompt = prompt_of(9, salt=i)
        sinks.append((prompt, sim.submit(prompt, 30)[1]))
    sim.run()
    assert sim.scheduler.counters.preemptions > 0
    for prompt, sink in sinks:
        assert sink.tokens == expected(prompt, 30)
    assert sim.all_free()


def test_without_a_prefix_cache_nothing_is_kept():
    sim = Sim(prefix_cache="none")
    for _ in range(2):
        _, sink = sim.submit(prompt_of(20), 4)
        sim.run()
        assert sink.cached == 0
        assert sink.tokens == expected(prompt_of(20), 4)
        assert sim.kv.pool.n_free == sim.kv.pool.n_total


# prefill and pins


def test_prefill_pins_a_prefix_that_eviction_leaves_alone():
    sim = Sim(n_blocks=20)
    prefix = prompt_of(18)
    _request, sink = sim.submit(prefix, prefill_only=True, pin_key="agent")
    sim.run()
    assert sink.finish is FinishReason.STOP
    assert sink.tokens == []
    for i in range(6):  # far more than the pool holds
        sim.submit(prompt_of(30, salt=i + 1), 4)
        sim.run()
    assert sim.kv.prefix.n_evicted > 0
    _, sink = sim.submit([*prefix, 3, 4], 4)
    sim.run()
    assert sink.cached == 18
    sim.loop.post_unpin("agent")
    assert sim.kv.pins.n_blocks == 5
    sim.step()
    assert sim.kv.pins.n_blocks == 0


def test_prefill_of_what_is_cached_runs_no_row():
    sim = Sim()
    sim.submit(prompt_of(12), prefill_only=True)
    sim.run()
    sim.runner.batches.clear()
    _, sink = sim.submit(prompt_of(12), prefill_only=True, pin_key="k")
    sim.run()
    assert sink.finish is FinishReason.STOP
    assert sim.runner.batches == []
    assert sim.kv.pins.n_blocks == 3


def test_an_aborted_prefill_pins_nothing():
    sim = Sim(max_num_batched_tokens=8)
    request, sink = sim.submit(prompt_of(40), prefill_only=True, pin_key="k")
    sim.step()
    sim.loop.post_abort(request.id)
    sim.step()
    assert sink.finish is FinishReason.ABORTED
    assert sim.kv.pins.n_blocks == 0


def test_a_call_pins_its_context_between_turns():
    sim = Sim(n_blocks=24)
    context = prompt_of(20)
    _, sink = sim.submit(context, 6, pin_key="call")
    sim.run()
    context = context + sink.tokens
    for i in range(5):
        sim.submit(prompt_of(30, salt=i + 1), 4)
        sim.run()
    _, sink = sim.submit([*context, 9], 4, pin_key="call")
    sim.run()
    assert sink.cached == len(context) - 1, "the last generated token was never computed"


# ends


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
def test_abort_in_each_state_frees_in_one_step(steps):
    sim = Sim(max_num_batched_tokens=16)
    request, sink = sim.submit(prompt_of(40), 50)
    for _ in range(steps):
        sim.step()
    n_before = len(sink.tokens)
    sim.loop.post_abort(request.id)
    sim.loop.post_abort(request.id)
    sim.step()
    assert sink.finish is FinishReason.ABORTED
    assert len(sink.tokens) == n_before
    assert sim.kv.pool.n_held == 0
    assert not sim.loop.has_work
    assert len(sim.finished) == 1
    assert sim.all_free()


def test_abort_while_preempted():
    sim = Sim(n_blocks=16, admission_growth=0.0)
    pairs = [sim.submit(prompt_of(9, salt=i), 30) for i in range(4)]
    while not any(request.state is State.PREEMPTED for request, _ in pairs):
        sim.step()
    victim, sink = next(p for p in pairs if p[0].state is State.PREEMPTED)
    sim.loop.post_abort(victim.id)
    sim.step()
    assert sink.finish is FinishReason.ABORTED
    sim.run()
    assert sim.all_free()


def test_one_requests_bad_token_ends_that_request_only():
    bad_prompt, good_prompt = prompt_of(10), prompt_of(10, salt=1)
    poison = expected(bad_prompt, 5)[3]
    sim = Sim(fail_on={1: poison})
    _, bad = sim.submit(bad_prompt, 12)
    _, good = sim.submit(good_prompt, 12)
    sim.run()
    assert bad.finish is FinishReason.ERROR
    assert isinstance(bad.outputs[-1].error, InternalError)
    assert "undecodable" in str(bad.outputs[-1].error)
    assert bad.tokens == expected(bad_prompt, 12)[:3]
    assert good.tokens == expected(good_prompt, 12)
    assert sim.all_free()


def test_a_failed_forward_ends_the_running_and_the_engine_lives_on():
    sim = Sim(max_num_seqs=2)
    first = [sim.submit(prompt_of(10, salt=i), 20)[1] for i in range(3)]
    sim.step()
    sim.runner.fail_next = RuntimeError("device lost")
    sim.step()
    assert [sink.finish for sink in first] == [FinishReason.ERROR, FinishReason.ERROR, None]
    sim.run()
    assert first[2].tokens == expected(prompt_of(10, salt=2), 20)
    _, later = sim.submit(prompt_of(10), 5)
    sim.run()
    assert later.tokens == expected(prompt_of(10), 5)
    assert sim.loop.counters.failed == 2
    assert sim.all_free()


def test_a_failed_release_still_tells_the_reader(monkeypatch):
    sim = Sim()
    _, sink = sim.submit(prompt_of(10), 20)
    _, other = sim.submit(prompt_of(10, salt=1), 20)
    sim.step()
    close = sim.kv.close

    def broken(*args):
        monkeypatch.setattr(sim.kv, "close", close)
        raise InternalError("lost a block")

    monkeypatch.setattr(sim.kv, "close", broken)
    sim.loop.post_abort(1)
    sim.step(check=False)
    assert sink.finish is FinishReason.ABORTED
    while sim.loop.has_work:
        sim.step(check=False)
    assert other.tokens == expected(prompt_of(10, salt=1), 20)
    assert sim.loop.counters.integrity_failures == 2, "the release, and the idle check that saw it"


def test_one_wakeup_per_step_however_many_requests():
    sim = Sim()
    for i in range(8):
        sim.submit(prompt_of(5, salt=i), 6)
    for _ in range(4):
        before = sim.wakeups.calls
        sim.step()
        assert sim.wakeups.calls - before <= 1
    assert sim.loop.counters.tokens > 8


# who goes when


def test_arrivals_do_not_stop_those_who_speak():
    sim = Sim(n_blocks=400, max_num_seqs=28, max_num_batched_tokens=64, cost=CostModel(2.0, 0.5))
    speakers = [sim.submit(prompt_of(6, salt=i), 60)[0] for i in range(8)]
    while any(request.remaining != 1 for request in speakers):
        sim.step()
    for request in speakers:
        sim.loop.post_deadline(request.id, sim.clock.now() + 0.5)
    newcomers = [sim.submit(prompt_of(40, salt=100 + i), 4) for i in range(20)]
    sim.runner.batches.clear()
    for _ in range(40):
        sim.step()
    for rows in sim.runner.batches:
        decoding = {row.sample.history[0] for row in rows if row.sample and len(row.token_ids) == 1}
        assert {request.tokens[0] for request in speakers} <= decoding
        assert sum(len(row.token_ids) for row in rows) <= 64
    sim.run()
    assert all(len(sink.tokens) == 4 for _, sink in newcomers)
    for i, request in enumerate(speakers):
        assert request.tokens[6:] == expected(prompt_of(6, salt=i), 60)


def test_the_step_shrinks_to_the_tightest_slack():
    sim = Sim(n_blocks=100, max_num_batched_tokens=300, cost=CostModel(2.0, 0.5), max_step_ms=80.0)
    speaker, _ = sim.submit(prompt_of(6), 60)
    sim.step()
    sim.step()
    sim.submit(prompt_of(300, salt=1), 4)
    pace = sim.config.piece_tokens, sim.config.later_stages_s
    for slack_s, n_tokens in (
        (pace[0] * 0.0201 + pace[1], 36),  # (20 - 2) / 0.5
        (0.01, 20),  # it is too late: (6 * 2 - 2) / 0.5, most of the step is rows
        (5.0, 156),  # (80 - 2) / 0.5
    ):
        sim.loop.post_deadline(speaker.id, sim.clock.now() + slack_s)
        sim.runner.batches.clear()
        sim.step()
        assert sum(len(row.token_ids) for row in sim.runner.batches[0]) == n_tokens


def test_a_long_prompt_goes_on_in_smaller_chunks_so_that_its_steps_keep_their_time():
    cost = CostModel(2.0, 0.5, per_position=0.01)
    sim = Sim(n_blocks=400, max_num_batched_tokens=300, cost=cost, max_step_ms=40.0)
    sim.submit(prompt_of(6), 200)
    sim.step()
    sim.step()
    newcomer, _ = sim.submit(prompt_of(1000, salt=1), 4)
    sim.runner.batches.clear()
    while newcomer.computed < 1000:
        sim.step()
    chunks = []
    for rows in sim.runner.batches:
        assert cost.ms(sum(cost.weight(len(r.token_ids), r.start) for r in rows)) <= 40.0 + 0.5
        chunks += [len(r.token_ids) for r in rows if len(r.token_ids) > 1]
    assert chunks[0] > 3 * chunks[-2]


def test_a_step_may_be_longer_while_nobody_decodes():
    options = {"max_step_ms": 40.0, "idle_step_ms": 90.0, "max_num_batched_tokens": 300}
    sim = Sim(n_blocks=200, cost=CostModel(2.0, 0.5), **options)
    sim.submit(prompt_of(300), 2)
    sim.step()
    assert sum(len(row.token_ids) for row in sim.runner.batches[0]) == 176  # (90 - 2) / 0.5
    sim.run()
    sim.submit(prompt_of(4, salt=1), 40)
    sim.step()
    sim.submit(prompt_of(300, salt=2), 2)
    sim.step()
    assert sum(len(row.token_ids) for row in sim.runner.batches[-1]) == 76  # (40 - 2) / 0.5


def test_live_displaces_background_and_background_comes_back():
    sim = Sim(max_num_seqs=2)
    background = [sim.submit(prompt_of(8, salt=i), 40, background=True) for i in range(2)]
    for _ in range(4):
        sim.step()
    _, live = sim.submit(prompt_of(8, salt=9), 5)
    sim.step()
    assert len(live.tokens) == 1
    sim.run()
    assert live.tokens == expected(prompt_of(8, salt=9), 5)
    for i, (_, sink) in enumerate(background):
        assert sink.tokens == expected(prompt_of(8, salt=i), 40)


def test_background_is_not_starved_by_endless_live_work():
    sim = Sim(max_num_seqs=1, promote_passes=30)
    _, background = sim.submit(prompt_of(8), 3, background=True, deadline_in_s=30.0)
    sim.submit(prompt_of(8, salt=1), 3)
    for n in range(3000):
        if sim.scheduler.n_waiting < 2:
            sim.submit(prompt_of(8, salt=2 + n), 3)
        sim.step(check=False)
        if background.finish:
            break
    assert background.finish is FinishReason.LENGTH


def test_a_missed_deadline_is_rebased_once():
    sim = Sim(max_num_seqs=1, step_s=0.5)
    _request, _ = sim.submit(prompt_of(8), 20, deadline_in_s=0.1)
    for _ in range(8):
        sim.step()
    assert sim.scheduler.counters.missed_deadlines == 1


def test_admission_waits_for_the_future_peak():
    sim = Sim(n_blocks=16)  # 64 tokens; each needs 40
    _, _first = sim.submit(prompt_of(10), 30)
    _, second = sim.submit(prompt_of(10, salt=1), 30)
    sim.step()
    assert (sim.scheduler.n_running, sim.scheduler.n_waiting) == (1, 1)
    sim.run()
    assert sim.scheduler.counters.preemptions == 0
    assert second.tokens == expected(prompt_of(10, salt=1), 30)


def test_a_pin_gives_way_to_a_request_that_could_not_run_otherwise():
    sim = Sim(n_blocks=16)
    sim.submit(prompt_of(30), prefill_only=True, pin_key="idle")
    sim.run()
    assert sim.kv.pins.n_blocks == 8
    _, sink = sim.submit(prompt_of(40, salt=1), 20)
    sim.run()
    assert sink.tokens == expected(prompt_of(40, salt=1), 20)
    assert sim.kv.pins.n_lapsed == 1


# any interleaving

actions = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2**16)), min_size=5, max_size=80
)  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=120, deadline=None)
@given(
    actions,
    st.sampled_from([8, 12, 20, 48]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([1, 5, 24]),
    st.sampled_from(["deadline", "fcfs"]),
)
@example([(0, 1), (0, 4), (0, 227), (0, 263), (0, 485)], 8, 0.0, 1, "deadline")
def test_any_interleaving_keeps_the_blocks_and_the_text(
    overlap, todo, n_blocks, growth, chunk, policy
):
    sim = Sim(
        n_blocks,
        admission_growth=growth,
        max_num_batched_tokens=max(chunk, 4),
        min_prefill_tokens=chunk,
        max_num_seqs=4,
        eos_every=11,
        scheduling_policy=policy,
        promote_passes=20,
        overlap=overlap,
    )
    longest = n_blocks * sim.config.block_size
    opened = []
    history = [prompt_of(5)]
    for what, pick in todo:
        if what <= 3 and len(opened) < 14:
            base = history[pick % len(history)]
            new = prompt_of(1 + pick % 9, salt=pick % 4)
            prompt = (base + new)[: longest - 24]
            tenant = "ab"[pick % 2]
            pin = f"p{pick % 3}" if pick % 5 == 0 else None
            request, sink = sim.submit(
                prompt,
                1 + pick % 24,
                tenant=tenant,
                background=pick % 7 == 0,
                prefill_only=pick % 13 == 0,
                pin_key=pin,
                deadline_in_s=(pick % 10) / 10,
                sampling={"logprobs": 1} if pick % 6 == 5 else None,
            )
            opened.append((request, sink, prompt))
        elif what == 4 and opened:
            sim.loop.post_abort(opened[pick % len(opened)][0].id)
        elif what == 5 and opened:
            request = opened[pick % len(opened)][0]
            sim.loop.post_deadline(request.id, sim.clock.now() + (pick % 30) / 10)
        elif what == 6:
            sim.loop.post_unpin(f"p{pick % 3}")
        elif what == 7:
            sim.kv.prefix.evict(1 + pick % 4)
        else:
            for _ in range(1 + pick % 6):
                sim.step()
        for _, sink, prompt in opened:
            if sink.finish and len(history) < 12:
                history.append((prompt + sink.tokens)[:24])
    sim.run()
    for request, sink, prompt in opened:
        reference = expected(prompt, request.max_new, 11)
        if sink.finish is FinishReason.ABORTED:
            assert sink.tokens == reference[: len(sink.tokens)]
        else:
            assert sink.finish in (FinishReason.STOP, FinishReason.LENGTH)
            assert sink.tokens == reference
    assert len(sim.finished) == len(opened)
    assert sim.loop.counters.integrity_failures == 0
    assert sim.all_free()
