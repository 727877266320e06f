"""A call's context that grows, changes, answers and is cut, around the hash model."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.budget import CostModel
from engine.client import Engine, FinishReason
from engine.config import EngineConfig
from engine.errors import UsageError
from engine.grammar.spec import Grammar
from engine.sampling import SamplingParams
from tests.engine.fakes import EOS, N_VOCAB, HashRunner, PlainText, TickClock, expected
from tests.engine.late import Late
from tests.engine.test_loop import prompt_of
from tests.support.logit_engine import logit_engine, noise, tiny_tokenizer

pytestmark = pytest.mark.unit


class Bench:
    """A real engine without its thread: steps are made by hand, outputs arrive in between."""

    def __init__(self, n_blocks=64, *, eos_every=0, overlap=False, **options) -> None:
        options = {"max_num_seqs": 6, "min_prefill_tokens": 4, **options}
        self.runner = HashRunner(n_blocks, 4, eos_every=eos_every)
        self.clock = TickClock()
        self.engine = Engine(
            EngineConfig(Path("fake"), block_size=4, **options),
            Late(self.runner, slots=options["max_num_seqs"]) if overlap else self.runner,
            tokenizer=None,
            chat=None,
            make_text=lambda request: PlainText(),
            eos_ids=frozenset({EOS}),
            n_vocab=N_VOCAB,
            clock=self.clock,
        )
        self.engine._scheduler.pace.use(CostModel(1.0, 0.1))
        self.loop = self.engine._loop

    async def step(self, n=1) -> None:
        for _ in range(n):
            self.loop.step(self.clock.now())
            self.clock.time_s += 0.01
            self.loop.check()
            await asyncio.sleep(0)

    async def settle(self, limit=3000) -> None:
        for _ in range(limit):
            await self.step()
            if not self.loop.has_work:
                return
        raise AssertionError("never came to rest")

    @property
    def computed(self) -> list[int]:
        """Tokens computed in each step since the list was cleared."""
        return [sum(len(row.token_ids) for row in rows) for rows in self.runner.batches]

    def all_free(self) -> bool:
        self.engine._kv.prefix.clear()
        self.loop.check()
        pool = self.engine._kv.pool
        return pool.n_free == pool.n_total and not self.loop.scheduler.requests


PARAMS = SamplingParams(max_tokens=9)


async def test_a_prompt_is_computed_while_it_grows_and_its_last_token_at_the_end():
    bench = Bench()
    session = bench.engine.session()
    words = prompt_of(30)
    for at in range(0, 30, 10):
        session.extend(words[at : at + 10])
        await bench.settle()
    assert sum(bench.computed) == 29
    bench.runner.batches.clear()
    reply = session.commit(PARAMS)
    await bench.step()
    assert bench.computed == [1], "one token stood between the commit and the reply"
    assert reply.token_ids == expected(words, 9)[:1]
    await bench.settle()
    assert reply.token_ids == expected(words, 9)
    assert reply.usage.cached_tokens == 29
    assert session.tokens == words + reply.token_ids
    session.close()
    await bench.step()
    assert bench.engine._kv.pool.n_free == 64, "nothing of a call outlives it"


@pytest.mark.parametrize("keep", [0, 1, 3, 4, 5, 8, 11, 15, 16])
async def test_a_revised_transcript_keeps_the_shared_prefix_to_the_token(keep):
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(16))
    await bench.settle()
    bench.runner.batches.clear()
    session.rollback(keep, prompt_of(9, salt=5))
    await bench.settle()
    assert sum(bench.computed) == 9 - 1 + (keep == 16), "token 15 had waited for what follows"
    words = prompt_of(16)[:keep] + prompt_of(9, salt=5)
    reply = session.commit(PARAMS)
    await bench.settle()
    assert reply.token_ids == expected(words, 9)
    session.close()
    await bench.step()
    assert bench.all_free()


async def test_what_was_taken_back_is_not_kept():
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(30))
    await bench.settle()
    assert bench.engine._kv.pool.n_free == 64 - 8
    session.rollback(6)
    await bench.step()
    assert bench.engine._kv.pool.n_free == 64 - 2
    assert bench.engine._kv.pool.n_cached == 0
    session.close()


async def test_a_rollback_in_a_shared_block_does_not_touch_the_others_rows():
    bench = Bench()
    agent = prompt_of(10)
    prefix = asyncio.ensure_future(bench.engine.prefill(agent, pin_key="agent"))
    await asyncio.sleep(0)
    await bench.settle()
    await prefix
    one, two = bench.engine.session(), bench.engine.session()
    for session in (one, two):
        session.extend([*agent, 7, 8, 9])
    await bench.settle()
    one.rollback(6, [50, 51, 52])
    await bench.settle()
    replies = [session.commit(PARAMS) for session in (one, two)]
    await bench.settle()
    assert replies[0].token_ids == expected([*agent[:6], 50, 51, 52], 9)
    assert replies[1].token_ids == expected([*agent, 7, 8, 9], 9)
    for session in (one, two):
        session.close()
    await bench.step()
    assert bench.engine._kv.pool.n_free == 64 - 3, "the agent's prefix, pinned"


@pytest.mark.parametrize("steps", [2, 5, 40])
async def test_the_next_turn_goes_on_from_the_token_heard(steps):
    """The reply is cut while it is generated, or long after."""
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(12))
    await bench.settle()
    reply = session.commit(SamplingParams(max_tokens=20))
    await bench.step(steps)
    heard = len(session.tokens) - len(reply.token_ids) // 2
    context = session.tokens[:heard]
    session.truncate(heard)
    await bench.settle()
    assert reply.finish is FinishReason.ABORTED
    assert session.tokens == context
    cached = bench.engine._kv.pool
    assert cached.n_cached + cached.n_held <= -(-heard // 4)
    bench.runner.batches.clear()
    session.extend(prompt_of(5, salt=3))
    await bench.settle()
    again = session.commit(PARAMS)
    await bench.settle()
    new = 5 + (again.usage.cached_tokens < heard)  # the last token made was never computed
    assert sum(bench.computed) <= new + 9
    assert again.token_ids == expected(context + prompt_of(5, salt=3), 9)
    session.close()
    await bench.step()
    assert bench.all_free()


async def test_following_says_nothing_twice_and_keeps_what_is_shared():
    bench = Bench()
    session = bench.engine.session()
    words = prompt_of(20)
    assert session.follow(words[:12]) == (12, 0)
    await bench.settle()
    assert session.follow(words[:12]) == (0, 0)
    assert not bench.loop._inbox, "the engine hears of changes only"
    assert session.follow([*words[:9], 5, 6]) == (2, 3)
    assert session.follow(words) == (11, 2)
    bench.runner.batches.clear()
    await bench.settle()
    assert sum(bench.computed) == 20 - 9 - 1
    reply = session.commit(PARAMS)
    with pytest.raises(UsageError, match="being generated"):
        session.follow(words)
    await bench.settle()
    assert reply.token_ids == expected(words, 9)
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.follow(words)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("heard", [0, 1, 5, 9])
async def test_following_cuts_a_reply_where_it_was_heard(heard, aborted, overlap):
    bench = Bench(overlap=overlap)
    session = bench.engine.session()
    session.follow(prompt_of(13))
    reply = session.commit(SamplingParams(max_tokens=40 if aborted else 9))
    while len(reply.token_ids) < 9:
        await bench.step()
    if aborted:  # its reader has left: the engine hears of that and of what follows at once
        reply.abort()
        bench.loop.counters.steps += 1  # one was under way
    context = [*prompt_of(13), *reply.token_ids[:heard]]
    assert session.follow([*context, 3, 4]) == (2, 0), "a reply is no prompt to take back"
    await bench.step()
    pool = bench.engine._kv.pool
    assert pool.n_held + pool.n_cached <= -(-(len(context) + 2) // 4) + 1, "and a copied tail"
    assert bench.loop.counters.abort_steps_max in ((1, 1 + overlap) if aborted else (0,))
    bench.runner.batches.clear()
    await bench.settle()
    again = session.commit(PARAMS)
    await bench.settle()
    assert sum(bench.computed) <= 2 + 1 + 9
    assert again.token_ids == expected([*context, 3, 4], 9)
    session.close()
    await bench.step()
    assert bench.all_free()


async def test_an_abort_frees_within_two_steps_and_keeps_the_context():
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(12))
    await bench.settle()
    reply = session.commit(SamplingParams(max_tokens=50))
    await bench.step(4)
    said = list(reply.token_ids)
    session.abort()
    for _ in range(2):
        await bench.step()
    assert bench.engine._kv.pool.n_held == len(set(bench.engine._kv.pins.blocks()))
    assert bench.loop.counters.abort_steps_max <= 2
    assert session.tokens == prompt_of(12) + said
    again = session.commit(PARAMS)
    await bench.settle()
    assert again.token_ids == expected(prompt_of(12) + said, 9)
    session.close()


async def test_open_prompts_do_not_keep_the_engine_busy_nor_its_slots():
    bench = Bench(max_num_seqs=2)
    idle = [bench.engine.session() for _ in range(2)]
    for n, session in enumerate(idle):
        session.extend(prompt_of(8, salt=n))
    await bench.settle()
    assert (bench.loop.scheduler.n_running, bench.loop.has_work) == (2, False)
    live = bench.engine.submit(prompt_of(9, salt=7), PARAMS)
    await bench.settle()
    assert live.token_ids == expected(prompt_of(9, salt=7), 9)
    replies = [session.commit(PARAMS) for session in idle]
    await bench.settle()
    for n, reply in enumerate(replies):
        assert reply.token_ids == expected(prompt_of(8, salt=n), 9)
    for session in idle:
        session.close()


@pytest.mark.parametrize("background", [False, True])
async def test_open_prompts_that_only_wait_make_room_for_all_who_come_at_once(background):
    bench = Bench(max_num_seqs=4)
    sessions = [bench.engine.session() for _ in range(4)]
    for n, session in enumerate(sessions):
        session.extend(prompt_of(8, salt=n))
    await bench.settle()
    prompts = [prompt_of(5, salt=7 + n) for n in range(3)]
    replies = [bench.engine.submit(p, PARAMS, background=background) for p in prompts]
    await bench.step()
    assert [len(reply.token_ids) for reply in replies] == [1, 1, 1]
    assert bench.loop.scheduler.counters.preemptions == 0, "nobody has to compute anything again"
    again = [session.commit(PARAMS) for session in sessions]
    await bench.settle()
    for n, reply in enumerate(again):
        assert reply.token_ids == expected(prompt_of(8, salt=n), 9)
        assert reply.usage.cached_tokens == 7
    for session in sessions:
        session.close()
    await bench.step()
    assert bench.all_free()


async def test_more_callers_than_slots_have_their_words_computed_early():
    bench = Bench(max_num_seqs=2)
    sessions = [bench.engine.session() for _ in range(5)]
    for at in (0, 6, 12):
        for n, session in enumerate(sessions):
            session.extend(prompt_of(18, salt=n)[at : at + 6])
        await bench.settle()
    assert sum(bench.computed) == 5 * 17
    for n, session in enumerate(sessions):
        reply = session.commit(PARAMS)
        await bench.settle()
        assert reply.token_ids == expected(prompt_of(18, salt=n), 9)
        assert reply.usage.cached_tokens == 17
        session.close()
    await bench.step()
    assert bench.all_free()


async def test_an_open_prompt_waits_for_everybody_who_waits_for_a_reply():
    bench = Bench(max_num_batched_tokens=8)
    session = bench.engine.session()
    session.extend(prompt_of(40))
    live = bench.engine.submit(prompt_of(24, salt=1), PARAMS)
    await bench.step(3)
    assert len(live.token_ids) == 1, "three steps of eight tokens, all of them its own"
    await bench.settle()
    reply = session.commit(PARAMS)
    await bench.settle()
    assert reply.token_ids == expected(prompt_of(40), 9)
    session.close()


async def test_an_open_prompt_that_waited_for_words_has_not_waited_for_us():
    bench = Bench(max_num_batched_tokens=8, promote_passes=10)
    session = bench.engine.session()
    session.extend(prompt_of(4))
    await bench.settle()
    other = bench.engine.submit(prompt_of(4, salt=2), SamplingParams(max_tokens=30))
    await bench.step(28)
    assert len(other.token_ids) == 28
    session.extend(prompt_of(40, salt=3))
    live = bench.engine.submit(prompt_of(12, salt=1), PARAMS)
    await bench.step(2)
    assert len(live.token_ids) == 1, "twelve tokens of its own and two of the other's reply"
    await bench.settle()
    session.close()


async def test_blocks_of_an_open_prompt_go_to_whoever_needs_them():
    bench = Bench(n_blocks=16, admission_growth=1.0)
    session = bench.engine.session()
    session.extend(prompt_of(40))
    await bench.settle()
    live = bench.engine.submit(prompt_of(40, salt=1), PARAMS)
    await bench.settle()
    assert live.token_ids == expected(prompt_of(40, salt=1), 9)
    reply = session.commit(PARAMS)
    await bench.settle()
    assert reply.token_ids == expected(prompt_of(40), 9)
    assert reply.usage.cached_tokens > 0, "what was not evicted meanwhile"
    assert bench.loop.scheduler.counters.prompt_tokens == 80
    session.close()
    await bench.step()
    assert not [e for e in bench.engine._kv.prefix.entries() if e.call is not None]
    assert bench.all_free()


async def test_misuse_says_what_is_wrong():
    bench = Bench()
    session = bench.engine.session()
    with pytest.raises(UsageError, match="empty"):
        session.commit(PARAMS)
    with pytest.raises(UsageError, match=r"0\.\.996"):
        session.extend([N_VOCAB])
    with pytest.raises(UsageError, match="at most 399"):
        session.extend([1] * 400)
    session.extend([1, 2, 3])
    with pytest.raises(UsageError, match="3 tokens, not 4"):
        session.rollback(4)
    with pytest.raises(UsageError, match="3 tokens, not -1"):
        session.truncate(-1)
    reply = session.commit(PARAMS)
    with pytest.raises(UsageError, match="being generated"):
        session.extend([4])
    await bench.settle()
    assert reply.finish is FinishReason.LENGTH
    session.extend([4])
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.extend([5])
    with pytest.raises(UsageError, match="static"):
        Bench(batching="static").engine.session()


async def test_a_dropped_session_is_forgotten():
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(20))
    await bench.settle()
    del session
    gc.collect()
    await bench.step()
    assert bench.engine._kv.pool.n_free == 64


async def test_a_failed_step_under_an_open_prompt_is_made_good():
    bench = Bench()
    session = bench.engine.session()
    session.extend(prompt_of(20))
    bench.runner.fail_next = RuntimeError("device lost")
    await bench.settle()
    session.extend([5, 6])
    await bench.settle()
    reply = session.commit(PARAMS)
    await bench.settle()
    assert reply.token_ids == expected([*prompt_of(20), 5, 6], 9)
    session.close()


async def test_a_reply_with_a_grammar_continues_the_open_prompt():
    tokenizer = tiny_tokenizer()
    engine, _ = logit_engine(tokenizer, noise(tokenizer.vocab_size))
    try:
        session = engine.session()
        session.extend(tokenizer.encode("the prompt of a form with many words "))
        params = SamplingParams(max_tokens=40, grammar=Grammar("regex", "(yes|no)!"))
        reply = session.commit(params)
        assert (await reply.collect()).text in ("yes!", "no!")
        session.extend(tokenizer.encode(" and on"))
        plain = session.commit(SamplingParams(max_tokens=3))
        await plain.collect()
        assert plain.usage.cached_tokens > 0
        session.close()
    finally:
        await asyncio.to_thread(engine.close)
    assert engine.stats().kv_blocks_held == 0


# any interleaving


class Caller:
    """Drives one session at random and knows what it must say."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.bench = bench
        self.number = number
        self.session = bench.engine.session(tenant="ab"[number % 2])
        self.replies: list[tuple[list[int], int, object]] = []
        self.reply = None

    def act(self, what: int, pick: int) -> None:
        session, busy = self.session, self.reply is not None and self.reply.finish is None
        n = len(session.tokens)
        if what <= 2 and not busy and n < 50:
            agent = prompt_of(6, salt=99) if n == 0 and pick % 2 else []
            session.extend([*agent, *prompt_of(1 + pick % 9, salt=pick % 4)])
        elif what == 3 and not busy and pick % 3 == 0:
            target = [*session.tokens[: pick % (n + 1)], *prompt_of(pick % 6, salt=pick % 2)]
            session.follow(target)
            assert session.tokens == target
        elif what == 3 and not busy:
            session.rollback(pick % (n + 1), prompt_of(pick % 7, salt=pick % 5))
        elif what == 4 and not busy and n:
            most = 1 + pick % 18
            self.reply = session.commit(SamplingParams(max_tokens=most))
            self.replies.append((session.tokens, most, self.reply))
        elif what == 5:
            heard = pick % (n + 1)
            keep = session.tokens[:heard]
            session.truncate(heard)
            assert session.tokens == keep
        elif what == 6:
            session.abort()
        elif what == 7 and pick % 3 == 0:
            session.close()
            self.session = self.bench.engine.session(tenant="ab"[self.number % 2])
            self.reply = None


moves = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 11), st.integers(0, 2**16)),
    min_size=10, max_size=90,
)  # fmt: skip


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=300, deadline=None)
@given(
    moves,
    st.sampled_from([26, 34, 64]),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from(["radix", "radix", "block-hash", "none"]),
    st.sampled_from(["deadline", "fcfs", "priority"]),
)
def test_any_session_keeps_the_blocks_and_the_text(overlap, todo, n_blocks, growth, kind, policy):
    async def play() -> None:
        bench = Bench(
            n_blocks, admission_growth=growth, prefix_cache=kind, scheduling_policy=policy,
            eos_every=13, max_num_seqs=4, max_num_batched_tokens=16, overlap=overlap,
        )  # fmt: skip
        callers = [Caller(bench, n) for n in range(3)]
        others = []
        picks = random.Random(len(todo))
        for who, what, pick in todo:
            if what <= 7:
                callers[who].act(what, pick)
            elif what == 8 and len(others) < 6:
                prompt = prompt_of(1 + pick % 20, salt=pick % 3)
                background = pick % 4 == 0
                reply = bench.engine.submit(
                    prompt, SamplingParams(max_tokens=6), background=background, priority=pick % 3
                )
                others.append((prompt, 6, reply))
            else:
                await bench.step(1 + picks.randrange(5))
        await bench.settle()
        for prompt, most, reply in [*others, *(r for c in callers for r in c.replies)]:
            whole = expected(prompt, most, 13)
            if reply.finish is FinishReason.ABORTED:
                assert reply.token_ids == whole[: len(reply.token_ids)]
            else:
                assert reply.finish in (FinishReason.STOP, FinishReason.LENGTH)
                assert reply.token_ids == whole
        for caller in callers:
            caller.session.close()
        await bench.step(2)
        assert not [e for e in bench.engine._kv.prefix.entries() if e.call is not None]
        assert bench.loop.counters.integrity_failures == 0
        assert bench.loop.counters.abort_steps_max <= 2
        assert bench.all_free()

    asyncio.run(play())
