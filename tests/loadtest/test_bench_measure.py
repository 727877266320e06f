"""What the engine's benchmark counts, and what it asks."""

from __future__ import annotations

import itertools

import pytest

from loadtest.bench.llm.measure import Reply, ms, pooled, summary, tail
from loadtest.bench.llm.voice import CLAUSE, FIRST_CLAUSE, SERVICE_S, TOKENS_PER_S, Voice
from loadtest.bench.llm.workload import BURST, PREFIX, SYSTEM, Workload

pytestmark = pytest.mark.unit


def reply(sent_s: float, *times: float, n_tokens: int | None = None) -> Reply:
    return Reply(sent_s, list(times), times[0] if times else None, n_tokens or len(times))


def test_a_reply_tells_first_text_gaps_and_time_a_token() -> None:
    one = reply(10.0, 10.5, 10.6, 10.8)
    assert one.ttft_s == pytest.approx(0.5)
    assert one.gaps_s == pytest.approx([0.1, 0.2])
    assert one.normalised_s == pytest.approx(0.8 / 3)
    nothing = Reply(1.0)
    assert (nothing.ttft_s, nothing.gaps_s, nothing.normalised_s) == (None, [], None)


def test_first_text_is_not_the_first_piece() -> None:
    late = Reply(0.0, [1.0, 2.0], first_text_s=2.0, n_tokens=2)
    assert summary([late])["ttft_ms"]["p50"] == 2000.0


def test_throughput_spans_first_send_to_last_token_and_leaves_failures_out() -> None:
    failed = Reply(0.0, [0.1, 99.0], 0.1, 50, error="broke")
    body = summary([reply(0.0, 1.0, 2.0), reply(1.0, 3.0, 4.0, n_tokens=6), failed])
    assert body["tokens_per_s"] == pytest.approx(8 / 4.0)
    assert body["failed"] == ["broke"]
    assert body["requests"] == 3
    assert body["ttft_ms"]["n"] == 2


def test_rounds_add_tokens_and_seconds() -> None:
    body = pooled([[reply(0.0, 1.0, 2.0)], [reply(50.0, 50.5, 51.0)]])
    assert body["tokens_per_s"] == pytest.approx(4 / 3.0), "the time between rounds is not counted"
    assert body["tokens_per_s_rounds"] == pytest.approx([1.0, 2.0])


@pytest.mark.parametrize(("n", "few"), [(199, ["p95", "p99"]), (200, ["p99"]), (1000, [])])
def test_percentiles_that_too_few_values_support_are_marked(n: int, few: list[str]) -> None:
    stats = tail([float(i) for i in range(n)])
    assert stats["few"] == few
    assert ms(stats, "p99").startswith("~") == ("p99" in few)


def test_nothing_measured_is_said() -> None:
    assert summary([])["tokens_per_s"] == 0.0
    assert ms(tail([]), "p50") == "-"


def test_the_same_seed_asks_the_same() -> None:
    text = range(3000)
    assert Workload(text, 5).spoken(8) == Workload(text, 5).spoken(8)
    assert Workload(text, 5).spoken(8) != Workload(text, 6).spoken(8)


def test_spoken_calls_share_the_system_prompt_and_nothing_else() -> None:
    asks = Workload(range(3000), 1).spoken(32)
    assert len({ask.prompt[:SYSTEM] for ask in asks}) == 1
    assert len({ask.prompt[SYSTEM:] for ask in asks}) == 32
    assert all(SYSTEM + 8 <= len(ask.prompt) <= SYSTEM + 24 for ask in asks)
    assert all(20 <= ask.n_out <= 300 for ask in asks)
    assert [ask.at_s for ask in asks] == sorted(ask.at_s for ask in asks)


def test_bursts_are_of_the_size_that_loads_are_reckoned_with() -> None:
    times = Workload(range(100), 1).bursts(4000, apart_s=10.0)
    bursts = 1 + sum(after - before > 0.02 for before, after in itertools.pairwise(times))
    assert 4000 / bursts == pytest.approx(BURST, rel=0.1)


def test_the_wanted_share_begins_alike() -> None:
    asks = Workload(range(3000), 3).partly_shared(500, 0.6, apart_s=0.1)
    beginnings = [ask.prompt[:PREFIX] for ask in asks]
    shared = sum(beginnings.count(prefix) > 1 for prefix in beginnings)
    assert shared / 500 == pytest.approx(0.6, abs=0.07)


def test_a_voice_runs_dry_only_when_the_next_clause_is_late() -> None:
    voice = Voice()
    voice.hear(0.0, FIRST_CLAUSE - 1)
    assert voice.dry_at is None
    voice.hear(1.0, 1)
    assert voice.started_s == pytest.approx(1.0 + SERVICE_S)
    dry_at = 1.0 + SERVICE_S + FIRST_CLAUSE / TOKENS_PER_S
    assert voice.dry_at == pytest.approx(dry_at)
    voice.hear(dry_at - SERVICE_S - 0.01, CLAUSE)
    assert voice.underruns == 0
    assert voice.dry_at == pytest.approx(dry_at + CLAUSE / TOKENS_PER_S)
    voice.hear(voice.dry_at + 1.0, 3, last=True)
    assert voice.underruns == 1
    assert voice.dry_s == pytest.approx(1.0 + SERVICE_S)
