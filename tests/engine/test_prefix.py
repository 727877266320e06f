"""What all kinds of prefix cache have in common, and where they differ."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InternalError
from engine.kvcache import KvCache
from engine.prefix import Scope
from tests.engine.fakes import Sim, expected
from tests.engine.test_loop import prompt_of

pytestmark = pytest.mark.unit

KINDS = ["radix", "block-hash", "none"]
KEEPING = ["radix", "block-hash"]
A = Scope("a")
A1, A2 = Scope("a", "call 1"), Scope("a", "call 2")


def cache(kind, n_blocks=16) -> KvCache:
    return KvCache(n_blocks, 4, max_pinned=n_blocks, prefix_cache=kind)


def fill(kv, scope, tokens):
    """Compute `tokens` as a request would; returns how many were cached."""
    table, n_cached = kv.open(scope, tokens, len(tokens), 0.0)
    assert kv.grow(table, len(tokens))
    kv.copied(kv.take_copies())
    kv.close(table, tokens, len(tokens), keep=True)
    kv.check([])
    return n_cached


def hit(kv, scope, tokens):
    return kv.prefix.match(scope, tokens, len(tokens), 0.0).n_tokens


@pytest.mark.parametrize("kind", KEEPING)
def test_a_call_sees_what_its_tenant_shares_and_nobody_sees_the_calls_own(kind):
    kv = cache(kind)
    agent = list(range(1, 9))
    fill(kv, A, agent)
    context = [*agent, 20, 21, 22, 23, 24, 25, 26, 27]
    assert fill(kv, A1, context) == 8
    assert hit(kv, A1, context) == 16
    assert hit(kv, A2, context) == 8
    assert hit(kv, A, context) == 8
    assert hit(kv, Scope("b", "call 1"), context) == 0


@pytest.mark.parametrize("kind", KEEPING)
def test_hanging_up_frees_what_the_call_alone_could_see(kind):
    kv = cache(kind)
    agent = list(range(1, 9))
    fill(kv, A, agent)
    for n, scope in enumerate([A1, A2]):
        fill(kv, scope, [*agent, 50 + n, 51, 52, 53, 54, 55, 56, 57])
        kv.prefix.pin(f"p{n}", scope, [*agent, 50 + n, 51, 52, 53], 9.0, 0.0)
    assert kv.pool.n_free == 16 - 2 - 2 * 2
    kv.prefix.forget("call 1")
    kv.check([])
    assert "p0" not in kv.pins
    assert "p1" in kv.pins
    assert kv.pool.n_free == 16 - 2 - 2
    kv.prefix.forget("call 2")
    kv.prefix.forget("call 2")
    assert kv.pool.n_free == 16 - 2, "the agent's prefix stays"
    assert hit(kv, A, agent) == 8


def test_a_partly_matching_block_may_be_the_tenants_or_the_calls():
    kv = cache("radix")
    fill(kv, A, [1, 2, 3, 4, 5, 6])
    fill(kv, A1, [1, 2, 3, 4, 5, 6, 7])
    assert hit(kv, A1, [1, 2, 3, 4, 5, 6, 7, 8]) == 7
    assert hit(kv, A2, [1, 2, 3, 4, 5, 6, 7, 8]) == 6


def test_a_call_keeps_its_context_when_its_tenant_comes_to_share_the_beginning():
    kv = cache("radix")
    context = list(range(1, 13))
    fill(kv, A1, context)
    fill(kv, A, context[:8])
    assert hit(kv, A1, context) == 12
    assert hit(kv, A2, context) == 8


@pytest.mark.parametrize("kind", KEEPING)
def test_what_the_tenant_shares_is_not_stored_again_for_a_call(kind):
    kv = cache(kind)
    fill(kv, A, list(range(8)))
    assert fill(kv, A1, list(range(8))) == 8
    assert kv.pool.n_cached == 2


@pytest.mark.parametrize("kind", KEEPING)
def test_trimming_frees_a_calls_own_beyond_what_was_heard(kind):
    kv = cache(kind)
    fill(kv, A, list(range(8)))
    fill(kv, A1, list(range(20)))
    kv.prefix.trim("call 1", 13)
    kv.check([])
    assert kv.pool.n_cached == 4, "blocks 0..3 hold tokens 0..15, and token 12 is in block 3"
    kv.prefix.trim("call 1", 0)
    assert kv.pool.n_cached == 2, "what the tenant shares is not the call's to free"


def test_block_hash_hits_whole_blocks_only():
    kv = cache("block-hash")
    fill(kv, A, list(range(10)))
    assert kv.pool.n_cached == 2
    assert hit(kv, A, list(range(10))) == 8
    assert hit(kv, A, [0, 1, 2, 3, 4, 5, 99, 99]) == 4


def test_block_hash_shows_a_block_as_soon_as_it_is_computed():
    kv = cache("block-hash")
    tokens = list(range(10))
    table, _ = kv.open(A, tokens, 9, 0.0)
    assert kv.grow(table, 10)
    kv.commit(table, tokens, 6)
    assert hit(kv, A, tokens) == 4
    kv.close(table, tokens, 6, keep=True)


def test_block_hash_evicts_the_least_recently_used_request_from_its_end():
    kv = cache("block-hash", 4)
    fill(kv, A, [1] * 4 + [2] * 4)
    fill(kv, A, [3] * 4 + [4] * 4)
    assert hit(kv, A, [1] * 4 + [2] * 4) == 8
    assert kv.prefix.evict(1) == 1
    assert [entry.tokens[0] for entry in kv.prefix.entries()] == [3, 2, 1]
    assert kv.prefix.evict(1) == 1
    assert hit(kv, A, [1] * 4 + [2] * 4) == 8


def test_block_hash_compares_tokens_and_not_only_the_hash(monkeypatch):
    monkeypatch.setattr("engine.block_hash._key", lambda *parts: b"all the same")
    kv = cache("block-hash")
    fill(kv, A, [1, 2, 3, 4])
    assert hit(kv, A, [5, 6, 7, 8]) == 0
    assert hit(kv, A, [1, 2, 3, 4]) == 4


def test_block_hash_takes_whole_blocks():
    kv = cache("block-hash")
    (block,) = kv.pool.allocate(1)
    with pytest.raises(InternalError, match="whole"):
        kv.prefix.insert(A, None, [1, 2], block)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_inside_a_shared_block_leaves_the_others_rows_alone(kind):
    kv = cache(kind)
    tokens = list(range(10))
    first, _ = kv.open(A1, tokens, 9, 0.0)
    assert kv.grow(first, 10)
    kv.commit(first, tokens, 10)
    second, n_cached = kv.open(A1, tokens, 10, 0.0)
    assert n_cached == {"radix": 8, "block-hash": 8, "none": 0}[kind]
    before = list(first.blocks)
    assert kv.cut(first, 10, 6) == 6
    copies = kv.take_copies()
    if kind == "none":
        assert copies == ()
    else:
        (copy,) = copies
        assert (copy.src, copy.n_rows) == (before[1], 2)
        assert first.blocks == [before[0], copy.dst]
        assert second.blocks[:2] == before[:2]
    kv.copied(copies)
    kv.check([first, second])
    for table in (first, second):
        kv.close(table, tokens, 0, keep=False)
    kv.check([])


def test_a_cut_without_a_block_for_the_copy_goes_back_to_the_whole_block():
    kv = cache("radix", 3)
    tokens = list(range(12))
    table, _ = kv.open(A, tokens, 11, 0.0)
    assert kv.grow(table, 12)
    kv.commit(table, tokens, 12)
    other, _ = kv.open(A, tokens, 12, 0.0)  # holds all three
    assert kv.cut(table, 12, 7) == 4
    kv.check([table, other])


# the whole engine under each kind

steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**16)), min_size=5, max_size=60)


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=300, deadline=None)
@given(steps, st.sampled_from(KINDS), st.sampled_from([10, 16, 48]), st.sampled_from([0.0, 1.0]))
def test_any_interleaving_gives_the_same_text_and_keeps_calls_apart(
    overlap, todo, kind, n_blocks, growth
):
    sim = Sim(
        n_blocks, prefix_cache=kind, admission_growth=growth, max_num_seqs=4, eos_every=11,
        max_num_batched_tokens=12, overlap=overlap,
    )  # fmt: skip
    opened = []
    contexts = {call: prompt_of(6) for call in (None, "x", "y")}
    for what, pick in todo:
        if what <= 4 and len(opened) < 14:
            call = (None, "x", "y")[pick % 3]
            prompt = (contexts[call] + prompt_of(1 + pick % 6, salt=pick % 5))[: 4 * n_blocks - 24]
            request, sink = sim.submit(prompt, 1 + pick % 20, call=call, pin_key=call)
            opened.append((request, sink, prompt))
        elif what == 5 and opened:
            sim.loop.post_abort(opened[pick % len(opened)][0].id)
        elif what == 6:
            call = "xy"[pick % 2]
            sim.loop.post_call_over(call)
            sim.step()
            assert all(getattr(e, "call", None) != call for e in sim.kv.prefix.entries())
            assert not [r for r in sim.scheduler.requests.values() if r.scope.call == call]
        else:
            for _ in range(1 + pick % 6):
                sim.step()
        for request, sink, prompt in opened:
            if sink.finish:
                contexts[request.scope.call] = (prompt + sink.tokens)[:24]
    sim.run()
    for request, sink, prompt in opened:
        reference = expected(prompt, request.max_new, 11)
        if sink.finish is not None and sink.finish.value == "aborted":
            assert sink.tokens == reference[: len(sink.tokens)]
        else:
            assert sink.tokens == reference
    assert sim.all_free()
