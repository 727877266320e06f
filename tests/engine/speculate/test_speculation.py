"""Guessing in the real loop over a fake model: the same text in fewer steps, no block lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.budget import CostModel
from engine.config import EngineConfig
from engine.errors import UsageError
from engine.output import TextStream
from engine.request import FinishReason, State
from engine.speculate.draft import DraftProposer
from engine.speculate.gain import HOPE
from engine.speculate.proposer import Ask
from tests.engine.fakes import EOS, HashRunner, Sim, expected
from tests.engine.test_loop import prompt_of

pytestmark = pytest.mark.unit


class Oracle:
    """Knows what comes, and is wrong about a token in `wrong_every`; cut off at random."""

    def __init__(self, eos_every: int = 0, wrong_every: int = 0) -> None:
        self.eos_every, self.wrong_every = eos_every, wrong_every
        self.asked: list[list[Ask]] = []
        self.forgotten: list[int] = []
        self.calls: list[str] = []
        self.fail = False

    def propose(self, asks: Sequence[Ask]) -> list[tuple[int, ...]]:
        self.asked.append(list(asks))
        if self.fail:
            raise RuntimeError("no draft today")
        return [self._guess(ask) for ask in asks]

    def _guess(self, ask: Ask) -> tuple[int, ...]:
        right = expected(ask.tokens, ask.k, self.eos_every)
        right += [EOS] * (ask.k - len(right))
        noise = random.Random(len(ask.tokens))
        wrong = self.wrong_every
        return tuple(3 if wrong and noise.randrange(wrong) == 0 else t for t in right)

    def forget(self, reply: int) -> None:
        self.forgotten.append(reply)

    def forget_call(self, call: str) -> None:
        self.calls.append(call)


def widths(sim: Sim) -> list[list[int]]:
    return [[row.n_proposed for row in rows] for rows in sim.runner.batches]


def test_right_guesses_make_several_tokens_a_step():
    oracle = Oracle()
    sim = Sim(proposer=oracle)
    request, sink = sim.submit(prompt_of(10), 21)
    assert sim.run() == 5  # the first token, then five a step
    assert sink.tokens == expected(prompt_of(10), 21)
    assert sink.finish is FinishReason.LENGTH
    assert (sim.speculation.proposed, sim.speculation.accepted) == (16, 16)
    assert request.guess_rate > HOPE
    assert oracle.forgotten == [request.id]
    assert sim.loop.counters.tokens == 21
    assert sim.all_free()


@pytest.mark.parametrize("wrong_every", [1, 2, 5])
def test_wrong_guesses_change_nothing(wrong_every):
    sim = Sim(proposer=Oracle(wrong_every=wrong_every), max_num_seqs=4)
    sinks = [sim.submit(prompt_of(9, salt=i), 30)[1] for i in range(3)]
    while sim.step():
        for request in sim.scheduler.running():
            assert request.computed == request.known - 1
            assert len(request.table.blocks) == sim.kv.blocks_for(request.computed)
    for i, sink in enumerate(sinks):
        assert sink.tokens == expected(prompt_of(9, salt=i), 30)
    assert sim.speculation.proposed > sim.speculation.accepted
    assert (sim.speculation.accepted == 0) == (wrong_every == 1)
    assert sim.all_free()


def test_rows_of_wrong_guesses_are_not_shared():
    sim = Sim(proposer=Oracle(wrong_every=2))
    context, n_before = prompt_of(22), 0
    for turn in range(5):
        _, sink = sim.submit(context, 17, call="c")
        sim.run()
        assert sink.tokens == expected(context, 17)
        if turn:
            assert sink.cached == n_before - 1, "all but the last token, which was never computed"
        context = context + sink.tokens
        n_before = len(context)
        context = context + prompt_of(5, salt=turn)
    assert sim.speculation.proposed > sim.speculation.accepted > 0
    sim.loop.post_call_over("c")
    sim.step()
    assert sim.speculation._proposer.calls == ["c"]
    assert sim.all_free()


def test_the_end_inside_a_run_drops_what_lies_beyond():
    prompt = prompt_of(10)
    want = expected(prompt, 99, 11)
    sim = Sim(eos_every=11, proposer=Oracle(eos_every=11))
    request, sink = sim.submit(prompt, 99)
    sim.run()
    assert (sink.tokens, sink.finish) == (want, FinishReason.STOP)
    assert request.tokens == prompt + want
    assert request.computed == request.known, "the end itself is not counted, nor what follows"
    assert sim.loop.counters.tokens == len(want)
    assert sim.all_free()


@pytest.mark.parametrize("at", range(1, 9))
def test_a_stop_string_inside_a_run_ends_the_text_there(at):
    prompt = prompt_of(10)
    want = expected(prompt, 20)
    stop = f"{want[at]}> <"[:-1]

    def text(request):
        return TextStream(lambda t: f"<{t}> ".encode(), request.params.stop)

    told = []
    for proposer in (None, Oracle()):
        sim = Sim(proposer=proposer)
        sim.loop._make_text = text
        request, sink = sim.submit(prompt, 20, sampling={"stop": (stop,)})
        sim.run()
        computed = request.tokens[: request.computed]
        told.append((sink.text, sink.tokens, sink.finish, computed, sim.loop.counters.tokens))
        assert sim.all_free()
    assert told[0] == told[1]
    assert told[0][2] is FinishReason.STOP
    assert told[0][0] == "".join(f"<{t}> " for t in want[:at]) + "<"


def test_a_stop_token_inside_a_run():
    want = expected(prompt_of(10), 20)
    sim = Sim(proposer=Oracle())
    _, sink = sim.submit(prompt_of(10), 20, sampling={"stop_token_ids": (want[7],)})
    sim.run()
    assert (sink.tokens, sink.finish) == (want[:7], FinishReason.STOP)


@pytest.mark.parametrize(
    "sampling",
    [{"repetition_penalty": 1.2}, {"presence_penalty": 0.1}, {"frequency_penalty": 0.1},
     {"logprobs": 0}, {"min_tokens": 12}],
)  # fmt: skip
def test_choices_that_depend_on_earlier_ones_are_not_guessed(sampling):
    oracle = Oracle()
    sim = Sim(proposer=oracle)
    _, sink = sim.submit(prompt_of(10), 12, sampling=sampling)
    _, plain = sim.submit(prompt_of(10, salt=1), 12)
    sim.run()
    assert {ask.reply for asks in oracle.asked for ask in asks} == {2}
    assert sink.tokens == expected(prompt_of(10), 12)
    assert plain.tokens == expected(prompt_of(10, salt=1), 12)


def test_a_grammar_is_not_guessed():
    oracle = Oracle()
    sim = Sim(proposer=oracle)
    request, _ = sim.submit(prompt_of(10), 12)

    class Anything:
        def check(self) -> None: ...
        def push(self, token: int) -> None: ...

    request.constraint = Anything()
    sim.run()
    assert oracle.asked == []


def test_no_guesses_in_a_larger_batch():
    sim = Sim(proposer=Oracle(), speculation_max_seqs=2)
    sinks = [sim.submit(prompt_of(6, salt=i), n)[1] for i, n in enumerate((9, 9, 30))]
    sim.run()
    for row_guesses in widths(sim):
        assert len(row_guesses) <= 2 or not any(row_guesses)
    assert sim.speculation.accepted > 0
    assert sinks[2].tokens == expected(prompt_of(6, salt=2), 30)


def test_guesses_fit_the_tightest_slack():
    sim = Sim(proposer=Oracle(), cost=CostModel(1.0, 0.5))
    requests = [sim.submit(prompt_of(6, salt=i), 80)[0] for i in range(4)]
    while any(request.remaining != 1 for request in requests):
        sim.step()
    piece, later_s = sim.config.piece_tokens, sim.config.later_stages_s
    for slack_s, guesses in (
        (0.01, [4, 2, 0, 0]),  # it is too late: (6 * 1 - 3) / 0.5
        (later_s + piece * 0.0065, [4, 3, 0, 0]),  # (6.5 - 3) / 0.5
        (5.0, [4, 4, 1, 1]),  # as many as are worth their time
    ):
        sim.loop.post_deadline(requests[0].id, sim.clock.now() + slack_s)
        sim.step()
        assert widths(sim)[-1] == guesses


def test_guesses_that_fail_stop_by_themselves():
    sim = Sim(proposer=Oracle(wrong_every=1), cost=CostModel(3.0, 1.0))
    sim.submit(prompt_of(6), 200)
    sim.run()
    assert sim.speculation.accepted == 0
    assert 4 < sim.speculation.proposed < 100, "tried again now and then"
    assert widths(sim)[-1] == [0]


def test_a_proposer_that_breaks_costs_no_text(caplog):
    oracle = Oracle()
    sim = Sim(proposer=oracle)
    _, sink = sim.submit(prompt_of(6), 30)
    for _ in range(3):
        sim.step()
    oracle.fail = True
    sim.run()
    assert sink.tokens == expected(prompt_of(6), 30)
    assert len([r for r in caplog.records if "speculation" in r.message]) == 1
    assert sim.all_free()


def test_under_pressure_only_the_room_at_hand_is_guessed_into():
    """Without spare blocks nobody is preempted or refused that would not have been anyway."""
    counts = []
    for proposer in (None, Oracle()):
        sim = Sim(n_blocks=16, admission_growth=0.0, proposer=proposer, prefix_cache="none")
        sinks = [sim.submit(prompt_of(9, salt=i), 20)[1] for i in range(4)]
        sim.run()
        for i, sink in enumerate(sinks):
            assert sink.tokens == expected(prompt_of(9, salt=i), 20)
        counts.append(sim.scheduler.counters.preemptions)
        assert sim.all_free()
    assert counts[1] <= counts[0]
    assert sim.speculation.accepted > 0


@pytest.mark.parametrize(
    "options",
    [{"speculation": "draft"}, {"draft_model_path": "m"}, {"speculation": "luck"},
     {"speculation": "ngram", "speculation_tokens": 0},
     {"speculation": "ngram", "batching": "static"}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(UsageError):
        EngineConfig("model", **options)


# any interleaving

actions = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**16)), min_size=5, max_size=60)


@settings(max_examples=100, deadline=None)
@given(
    actions,
    st.sampled_from([8, 12, 20, 48]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.sampled_from([1, 5, 24]),
    st.sampled_from(["radix", "block-hash", "none"]),
    st.sampled_from([1, 2, 4, "draft"]),
)
def test_any_interleaving_keeps_the_blocks_and_the_text(
    todo, n_blocks, growth, chunk, cache, guesser
):
    proposer = DraftProposer(HashRunner(12)) if guesser == "draft" else Oracle(11, guesser)
    sim = Sim(
        n_blocks,
        admission_growth=growth,
        max_num_batched_tokens=max(chunk, 6),
        min_prefill_tokens=chunk,
        max_num_seqs=4,
        eos_every=11,
        prefix_cache=cache,
        promote_passes=20,
        proposer=proposer,
    )
    longest = n_blocks * sim.config.block_size
    opened = []
    for what, pick in todo:
        if what <= 3 and len(opened) < 12:
            prompt = (prompt_of(1 + pick % 20, salt=pick % 3))[: longest - 24]
            request, sink = sim.submit(
                prompt,
                1 + pick % 24,
                tenant="ab"[pick % 2],
                call=(None, "c", "d")[pick % 3],
                background=pick % 7 == 0,
                prefill_only=pick % 13 == 0,
                deadline_in_s=(pick % 10) / 10,
            )
            opened.append((request, sink, prompt))
        elif what == 4 and opened:
            sim.loop.post_abort(opened[pick % len(opened)][0].id)
        elif what == 5 and opened:
            request = opened[pick % len(opened)][0]
            sim.loop.post_deadline(request.id, sim.clock.now() + (pick % 30) / 10)
        elif what == 6:
            sim.kv.prefix.evict(1 + pick % 4)
        elif what == 7 and pick % 3 == 0:
            sim.loop.post_call_over("c")
        else:
            for _ in range(1 + pick % 4):
                sim.step()
    sim.run()
    for request, sink, prompt in opened:
        reference = expected(prompt, request.max_new, 11)
        assert request.state is State.FINISHED
        if sink.finish is FinishReason.ABORTED:
            assert sink.tokens == reference[: len(sink.tokens)]
        else:
            assert sink.finish in (FinishReason.STOP, FinishReason.LENGTH)
            assert sink.tokens == reference
    assert sim.loop.counters.integrity_failures == 0
    assert sim.speculation._proposer is proposer, "it never broke"
    if isinstance(proposer, DraftProposer):
        proposer.kv.check([])
    assert sim.all_free()
