"""A step is planned and launched while another is in flight: what may happen in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client import Engine
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.inbox import Commit, Revise, Truncate
from engine.request import FinishReason, State
from engine.sampling import SamplingParams
from engine.speculate.ngram import NgramProposer
from tests.engine.fakes import EOS, N_VOCAB, HashRunner, PlainText, Sim, expected
from tests.engine.late import Late
from tests.engine.test_loop import prompt_of

pytestmark = pytest.mark.unit


def world(n_blocks=64, **options) -> Sim:
    return Sim(n_blocks, overlap=True, **options)


def ends_after(eos_every: int) -> tuple[list[int], list[int]]:
    """A prompt whose reply ends by itself after a few tokens, and the reply."""
    for salt in range(200):
        prompt = prompt_of(9, salt=salt)
        reply = expected(prompt, 40, eos_every)
        if 4 <= len(reply) < 20:
            return prompt, reply
    raise AssertionError("no such prompt")


# the order of things


def test_a_step_is_launched_before_the_last_one_is_read():
    sim = world()
    prompt = prompt_of(7)
    _, sink = sim.submit(prompt, 6)
    sim.step()
    assert (sink.tokens, len(sim.late._unread)) == ([], 1)
    sim.step()
    assert sink.tokens == expected(prompt, 1)
    assert sim.late.most_unread == 2
    steps = 2 + sim.run()
    assert sink.tokens == expected(prompt, 6)
    assert sim.late.n_pending == 5, "all but the first"
    assert (sim.late._n_launched, steps) == (6, 7), "the last step launches nothing"
    assert sim.all_free()


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_no_row_is_made_beyond_the_limit(n):
    sim = world()
    prompt = prompt_of(10)
    request, sink = sim.submit(prompt, n)
    sim.run()
    assert (sink.tokens, sink.finish) == (expected(prompt, n), FinishReason.LENGTH)
    assert sum(len(row.token_ids) for rows in sim.runner.batches for row in rows) == 10 + n - 1
    assert request.computed == request.launched == request.known - 1


def test_the_models_longest_sequence_is_a_limit_too():
    sim = world()
    sim.runner.max_model_len = 24
    _, sink = sim.submit(prompt_of(20), 50)
    sim.run()
    assert sink.tokens == expected(prompt_of(20), 4)
    assert sink.finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    "sampling", [{"logprobs": 2}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.5}]
)
def test_a_choice_that_needs_the_last_one_waits_for_it(sampling):
    sim = world()
    _, plain = sim.submit(prompt_of(8), 12)
    for _ in range(4):
        sim.step()
    assert sim.late.n_pending == 3
    _, sink = sim.submit(prompt_of(8, salt=1), 5, sampling=sampling)
    before = sim.late.n_pending
    while sink.finish is None:
        sim.step()
        assert not sim.late._unread
    assert sim.late.n_pending == before + 1, "the other one's, from the step that was in flight"
    sim.run()
    assert sink.tokens == expected(prompt_of(8, salt=1), 5)
    assert plain.tokens == expected(prompt_of(8), 12)
    assert sim.late.n_pending > before + 1, "and then the other goes on as before"


def test_with_speculation_every_step_is_read_at_once():
    sim = world(proposer=NgramProposer())
    _, sink = sim.submit([5, 6, 7] * 6, 20)
    sim.run()
    assert sink.tokens == expected([5, 6, 7] * 6, 20)
    assert (sim.late.most_unread, sim.late.n_pending) == (1, 0)


def test_a_static_batch_overlaps_too():
    sim = world(prefix_cache="none", max_num_seqs=4, static_len=64, eos_every=9)
    pairs = [(prompt_of(3 + 5 * n, salt=n), 20 - 3 * n) for n in range(6)]
    sinks = [sim.submit(prompt, most)[1] for prompt, most in pairs]
    sim.run()
    for (prompt, most), sink in zip(pairs, sinks, strict=True):
        assert sink.tokens == expected(prompt, most, 9)
    assert sim.late.n_pending > 20
    assert sim.all_free()


# what comes too late


def test_a_token_after_the_end_is_neither_cached_nor_counted():
    prompt, reply = ends_after(9)
    sim = world(eos_every=9)
    request, sink = sim.submit(prompt, 40)
    while sink.finish is None:
        sim.step()
    assert len(sim.late._unread) == 1, "one more row is in flight"
    assert sim.kv.pool.n_fenced + sim.kv.pool.n_cached >= sim.kv.blocks_for(request.computed)
    sim.run()
    assert (sink.tokens, sink.finish) == (reply, FinishReason.STOP)
    assert sim.loop.counters.tokens == len(reply)
    assert request.tokens == prompt + reply
    assert request.computed == request.known
    _, again = sim.submit([*prompt, *reply, 5, 6], 3)
    sim.run()
    assert again.cached == len(prompt) + len(reply)
    assert again.tokens == expected([*prompt, *reply, 5, 6], 3, 9)
    assert sim.all_free()


def test_blocks_of_the_ended_are_fenced_until_their_last_step_is_read():
    prompt, _ = ends_after(9)
    sim = world(eos_every=9, prefix_cache="none")
    request, sink = sim.submit(prompt, 40)
    while sink.finish is None:
        n_blocks = len(request.table.blocks) if request.table else 0
        sim.step()
    assert sim.kv.pool.n_held == 0
    assert sim.kv.pool.n_fenced >= n_blocks > 0
    sim.step()
    assert (sim.kv.pool.n_fenced, sim.kv.pool.n_free) == (0, 64)


def test_a_cached_block_that_a_step_in_flight_may_read_is_not_given_away():
    sim = world(8)
    request, _ = sim.submit(prompt_of(16), 10)
    for _ in range(3):
        sim.step()
    sim.loop.post_abort(request.id)
    sim.loop._take_inbox(sim.clock.now())
    assert sim.kv.pool.n_cached == 5
    sim.kv.prefix.evict(5)
    assert sim.kv.pool.n_fenced == 5, "evicted, but the step in flight reads four of them"
    sim.run()
    assert sim.kv.pool.n_free == 8


def test_a_block_that_was_idle_at_the_launch_is_free_at_once():
    sim = world(16)
    sim.submit(prompt_of(16), 1)
    sim.run()
    sim.submit(prompt_of(9, salt=1), 10)
    sim.step()
    assert sim.kv.pool.in_flight
    free = sim.kv.pool.n_free
    assert sim.kv.prefix.evict(4) == 4
    assert (sim.kv.pool.n_free, sim.kv.pool.n_fenced) == (free + 4, 0)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_an_abort_in_flight_frees_within_two_steps(steps):
    sim = world(max_num_batched_tokens=16)
    request, sink = sim.submit(prompt_of(40), 50)
    for _ in range(steps):
        sim.step()
    delivered = list(sink.tokens)
    sim.loop.post_abort(request.id)
    for _ in range(2):
        sim.step()
    assert (sink.tokens, sink.finish) == (delivered, FinishReason.ABORTED)
    assert sim.kv.pool.n_held == sim.kv.pool.n_fenced == 0
    assert sim.loop.counters.abort_steps_max <= 2
    assert not sim.loop.has_work
    assert sim.all_free()


def test_who_is_preempted_in_flight_keeps_the_token_and_computes_the_rest_again():
    sim = world()
    prompt = prompt_of(13)
    request, sink = sim.submit(prompt, 12)
    for n in range(1, 5):
        sim.step()
        if n == 4:
            sim.scheduler._preempt(request)
            assert request.tokens == prompt + expected(prompt, 3), "places are taken back"
    assert sim.loop.has_work
    sim.loop._land_all()
    assert request.state is State.PREEMPTED
    assert sim.loop.counters.tokens == 4
    assert request.tokens == prompt + expected(prompt, 4)
    sim.run()
    assert sink.tokens == expected(prompt, 12)
    assert sim.all_free()


def test_the_token_of_the_preempted_may_be_its_last():
    prompt, reply = ends_after(9)
    sim = world(eos_every=9)
    request, sink = sim.submit(prompt, 40)
    while len(sink.tokens) < len(reply):
        sim.step()
    sim.scheduler._preempt(request)
    sim.run()
    assert (sink.tokens, sink.finish) == (reply, FinishReason.STOP)
    assert sim.all_free()


def test_crowded_out_while_in_flight():
    sim = world(16, admission_growth=0.0)
    pairs = [(prompt_of(9, salt=n), 30) for n in range(4)]
    sinks = [sim.submit(prompt, most)[1] for prompt, most in pairs]
    sim.run()
    assert sim.scheduler.counters.preemptions > 0
    assert sim.late.n_pending > 60
    for (prompt, most), sink in zip(pairs, sinks, strict=True):
        assert sink.tokens == expected(prompt, most)
    assert sim.all_free()


def test_nobody_fails_for_want_of_blocks_of_one_that_ends_in_flight():
    sim = world(5, admission_growth=0.0, pin_fraction=0.4)
    sim.submit(prompt_of(3, salt=9), prefill_only=True, pin_key="p")
    sim.run()
    first, sink = sim.submit(prompt_of(7), 6)
    sim.submit(prompt_of(7, salt=1), 2)
    while first.launched < 8:
        sim.step()
    assert (sim.kv.pool.n_free, sim.kv.pool.n_cached, sim.scheduler.n_running) == (0, 0, 2)
    sim.run()
    assert sink.tokens == expected(prompt_of(7), 6)
    assert sim.kv.pins.n_lapsed == 0
    assert sim.scheduler.counters.preemptions == 0


# a prompt that changes while it is in flight


@pytest.mark.parametrize("keep", [0, 3, 7, 8, 9, 11, 12, 19, 20])
def test_a_prompt_in_flight_is_revised(keep):
    sim = world(max_num_batched_tokens=8)
    words = prompt_of(20)
    request, sink = sim.submit(words, 1, held=True, call="c")
    sim.step()
    assert (request.computed, request.launched) == (0, 8)
    sim.step()
    assert (request.computed, request.launched) == (8, 16)
    new = prompt_of(6, salt=3)
    sim.loop.post_edit(Revise(request.id, keep, tuple(new)))
    sim.step()
    final = [*words[:keep], *new]
    sim.loop.post_edit(Commit(request.id, SamplingParams(max_tokens=7), 1, 7, 200.0))
    sim.run()
    assert sink.tokens == expected(final, 7)
    sim.kv.prefix.forget("c")
    assert sim.all_free()


@pytest.mark.parametrize("heard", [0, 2, 5])
def test_a_reply_in_flight_is_cut_where_it_was_heard(heard):
    sim = world()
    prompt = prompt_of(10)
    request, sink = sim.submit(prompt, 30, call="c", pin_key="c")
    while len(sink.tokens) < 6:
        sim.step()
    assert request.launched == request.computed + 1
    context = [*prompt, *sink.tokens]
    keep = len(prompt) + heard
    sim.loop.post_edit(Truncate(request.id, request.scope, tuple(context), keep, "c", 60.0))
    sim.step()
    assert sink.finish is FinishReason.ABORTED
    _, again = sim.submit([*context[:keep], 4, 5], 5, call="c")
    sim.run()
    assert again.cached == keep
    assert again.tokens == expected([*context[:keep], 4, 5], 5)
    sim.loop.post_call_over("c")
    sim.step()
    assert sim.kv.pool.n_free == 64


def test_a_prefill_ends_when_its_last_chunk_is_read():
    sim = world(max_num_batched_tokens=8)
    request, sink = sim.submit(prompt_of(20), prefill_only=True, pin_key="p")
    while sink.finish is None:
        assert request.computed < 20
        sim.step()
    assert request.computed == 20
    assert sim.kv.pins.n_blocks == 5
    _, again = sim.submit([*prompt_of(20), 3], 2)
    sim.run()
    assert again.cached == 20


# failures


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_step_that_fails_when_read_ends_the_running_and_the_engine_lives_on(after):
    sim = world(max_num_seqs=2)
    sinks = [sim.submit(prompt_of(10, salt=i), 20)[1] for i in range(3)]
    for _ in range(after):
        sim.step()
    said = [len(sink.tokens) for sink in sinks]
    sim.late._queue.append(lambda: setattr(sim.runner, "fail_next", RuntimeError("device lost")))
    while sinks[0].finish is None:
        sim.step()
    assert [sink.finish for sink in sinks] == [FinishReason.ERROR, FinishReason.ERROR, None]
    assert "device lost" in str(sinks[0].outputs[-1].error)
    for n, sink in enumerate(sinks):
        assert sink.tokens == expected(prompt_of(10, salt=n), 20)[: len(sink.tokens)]
        assert len(sink.tokens) <= said[n] + 2
    assert not sim.kv.pool.in_flight
    sim.run()
    assert sinks[2].tokens == expected(prompt_of(10, salt=2), 20)
    assert sim.loop.counters.failed == 2
    assert sim.all_free()


def test_a_launch_that_fails_drops_what_is_in_flight():
    sim = world()
    _, sink = sim.submit(prompt_of(10), 20)
    for _ in range(3):
        sim.step()
    launch = sim.late.launch

    def broken(rows):
        sim.late.launch = launch
        raise RuntimeError("no memory")

    sim.late.launch = broken
    sim.step()
    assert sink.finish is FinishReason.ERROR
    assert sink.tokens == expected(prompt_of(10), 2)
    assert not sim.kv.pool.in_flight
    _, later = sim.submit(prompt_of(10), 5)
    sim.run()
    assert later.tokens == expected(prompt_of(10), 5)
    assert sim.all_free()


courses = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**16)), min_size=5, max_size=70)


@settings(max_examples=150, deadline=None)
@given(courses, st.sampled_from([8, 14, 40]), st.sampled_from([0.0, 1.0]))
def test_whatever_fails_everybody_ends_and_nothing_is_lost(todo, n_blocks, growth):
    sim = world(
        n_blocks, admission_growth=growth, max_num_seqs=4, max_num_batched_tokens=9, eos_every=11
    )
    opened = []
    for what, pick in todo:
        if what <= 3 and len(opened) < 16:
            prompt = prompt_of(1 + pick % 11, salt=pick % 3)
            sampling = {"logprobs": 1} if pick % 5 == 0 else None
            pin = "p" if pick % 7 == 0 else None
            opened.append(
                (prompt, *sim.submit(prompt, 1 + pick % 15, sampling=sampling, pin_key=pin))
            )
        elif what == 4 and opened:
            sim.loop.post_abort(opened[pick % len(opened)][1].id)
        elif what == 5 and sim.scheduler._running:
            running = list(sim.scheduler.running())
            sim.scheduler._preempt(running[pick % len(running)])
        elif what == 6 and pick % 3 == 0:
            sim.runner.fail_next = RuntimeError("device lost")
        else:
            for _ in range(1 + pick % 4):
                sim.step()
    sim.run()
    for prompt, request, sink in opened:
        reference = expected(prompt, request.max_new, 11)
        assert sink.finish is not None
        if sink.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert sink.tokens == reference
        else:
            assert sink.tokens == reference[: len(sink.tokens)]
    assert len(sim.finished) == len(opened)
    assert sorted(sim.scheduler._free_slots) == [0, 1, 2, 3]
    assert sim.loop.counters.integrity_failures == 0
    assert sim.all_free()


# time


class Device(Late):
    """A step takes `ms` from when the one before it is over; reading waits for it."""

    def __init__(self, inner, ms: float, **kw) -> None:
        super().__init__(inner, **kw)
        self.ms = ms
        self.clock = None
        self.done_s = 0.0

    def launch(self, rows):
        step = super().launch(rows)
        self.done_s = step.done_s = max(self.done_s, self.clock.now()) + self.ms / 1000.0
        return step

    def read(self, step):
        self.clock.time_s = max(self.clock.time_s, step.done_s)
        return super().read(step)


@pytest.mark.parametrize(("overlaps", "host_ms", "pace_ms"), [(False, 6, 16), (True, 6, 10)])
def test_the_hosts_time_hides_behind_the_devices(overlaps, host_ms, pace_ms):
    device = Device(HashRunner(64), 10.0, slots=8)
    device.overlaps = overlaps
    sim = Sim(64, runner=device, step_s=host_ms / 1000.0)
    device.clock = sim.clock
    sim.submit(prompt_of(10), 60)
    for _ in range(10):
        sim.step()
    started, before = sim.clock.now(), sim.loop.counters.steps
    for _ in range(40):
        sim.step()
    each_ms = 1000.0 * (sim.clock.now() - started) / (sim.loop.counters.steps - before)
    assert each_ms == pytest.approx(pace_ms)
    assert sim.loop.counters.step_ms[-1] == pytest.approx(10.0), "its own, not its wait"


def test_a_step_is_planned_for_when_it_can_begin():
    """The slack of a speaking call is what is left of it when the step in flight is over, and the
    tokens of a piece of sound share it."""
    device = Device(HashRunner(200), 10.0, slots=8)
    sim = Sim(200, runner=device, step_s=0.0, max_num_batched_tokens=300, max_step_ms=80.0)
    device.clock = sim.clock
    speaker, _ = sim.submit(prompt_of(6), 60)
    sim.step()
    sim.step()
    (flight,) = sim.loop._flights
    assert flight.plan.predicted_ms == pytest.approx(1.1)
    piece, later_s = sim.config.piece_tokens, sim.config.later_stages_s
    sim.loop.post_deadline(speaker.id, sim.clock.now() + later_s + piece * 0.0201)
    sim.submit(prompt_of(250, salt=1), 4)
    begins_s = sim.loop._free_s(sim.clock.now())
    assert begins_s > sim.clock.now()
    sim.step()
    limit_ms = sim.loop._flights[0].plan.limit_ms
    gone_s = begins_s - sim.loop._flights[0].started_s
    assert limit_ms == pytest.approx(20.1 - 1000.0 * gone_s / piece)


# with the thread


async def test_closing_reads_what_is_in_flight():
    late = Late(HashRunner(400), slots=8)
    engine = Engine(
        EngineConfig(Path("fake"), block_size=4, max_num_seqs=8),
        late,
        tokenizer=None,
        chat=None,
        make_text=lambda request: PlainText(),
        eos_ids=frozenset({EOS}),
        n_vocab=N_VOCAB,
        clock=MonotonicClock(),
    )
    engine.start()
    replies = [
        engine.submit(prompt_of(9, salt=n), SamplingParams(max_tokens=380)) for n in range(3)
    ]
    async for delta in replies[0]:
        if delta.token_ids:
            break
    await asyncio.to_thread(engine.close)
    await asyncio.sleep(0)
    assert late.n_pending > 0
    assert not late._unread
    for n, reply in enumerate(replies):
        assert reply.finish in (FinishReason.ABORTED, FinishReason.LENGTH)
        whole = expected(prompt_of(9, salt=n), 380)
        assert reply.token_ids == whole[: len(reply.token_ids)]
    stats = engine.stats()
    assert (stats.kv_blocks_held, stats.kv_blocks_fenced) == (0, 0)
    assert stats.integrity_failures_total == 0
