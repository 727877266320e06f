"""Calls that talk: the same words and bursts whatever the policy, and what is counted of them."""

from __future__ import annotations

import pytest

from loadtest.bench.llm.talk import CYCLE_S, Bursts, Ledger, Script, decode_rate
from loadtest.bench.llm.voice import (
    CLAUSE,
    FIRST_CLAUSE,
    SERVICE_S,
    TOKENS_PER_S,
    Voice,
    passages,
)
from loadtest.bench.llm.workload import Workload

pytestmark = pytest.mark.unit

SYSTEM = (1, 2, 3)
SAID = [(4, 9), (7, 20, 6), (5, 5, 5)]


def script(number: int, apart_s: float = 2.0) -> Script:
    work = Workload(tuple(range(1000)), number)
    return Script(work, SYSTEM, SAID, number, Bursts(7, 100.0, apart_s))


def test_a_call_says_the_same_however_late_it_is_answered() -> None:
    early, late = script(3), script(3)
    turns = []
    for which, delay_s in ((early, 0.0), (late, 5.0)):
        which.begin_s()
        first = which.turn()
        which.again_s(20.0 + delay_s)
        turns.append([first, which.turn()])
    assert turns[0] == turns[1]
    assert turns[0][0][0][: len(SYSTEM)] == SYSTEM
    assert turns[0][0][2] in SAID
    assert script(4).turn() != script(3).turn()


def test_turns_begin_in_bursts_that_all_calls_share() -> None:
    starts = [script(n).again_s(10.0) for n in range(60)]
    bursts = Bursts(7, 100.0, 2.0)
    moments = {bursts.next_s(10.0 + x / 10) for x in range(10, 31)}
    assert 1 <= len(moments) <= 3, "0.5 to 1.5 times two seconds apart"
    assert all(any(0.0 <= start - at <= 0.02 for at in moments) for start in starts)


def test_without_bursts_everybody_begins_when_ready() -> None:
    begins = [script(n, 0.0).begin_s() for n in range(200)]
    assert all(0.0 <= at <= CYCLE_S + 0.02 for at in begins)
    assert len({round(at) for at in begins}) > 0.8 * CYCLE_S
    assert Bursts(7, 100.0, 2.0).next_s(101.0) == pytest.approx(101.0, abs=2.0)
    assert Bursts(7, 100.0, 2.0).next_s(500.0) == 500.0, "after the last burst nobody waits"


def test_a_hole_is_counted_once_and_its_length_kept() -> None:
    voice = Voice()
    voice.hear(1.0, FIRST_CLAUSE)
    dry_s = 1.0 + SERVICE_S + FIRST_CLAUSE / TOKENS_PER_S
    assert voice.dry_at == pytest.approx(dry_s)
    voice.hear(dry_s + 0.5, CLAUSE)
    voice.hear(dry_s + 0.6, CLAUSE)
    assert voice.underruns == 1
    assert voice.dry_s == voice.longest_dry_s == pytest.approx(0.5 + SERVICE_S)


def test_clauses_have_the_tokens_that_the_passage_says_and_then_the_average() -> None:
    voice = Voice((2, 5))
    for n, spoken in ((1, 0), (1, 2), (4, 2), (1, 7), (CLAUSE - 1, 7), (1, 7 + CLAUSE)):
        voice.hear(0.0, n)
        heard_s = (voice.dry_at or SERVICE_S) - SERVICE_S
        assert heard_s == pytest.approx(spoken / TOKENS_PER_S)


def test_passages_begin_with_sentences_and_go_on_in_the_splitters_clauses() -> None:
    """One token a word, a full stop with its word; a clause ends where the next token shows it."""
    text = "Come in. The day is warm, and nobody is here. Sit down now."

    class Words:
        def token_bytes(self, token: int) -> bytes:
            return f" {text.split()[token]}".encode()

    said = passages(Words(), range(len(text.split())), 13)  # type: ignore[arg-type]
    assert len(said) == 3
    assert said[0] == (3, 8)
    assert all(sum(cuts) <= 13 and min(cuts) >= 2 for cuts in said)
    assert said[2][0] == 4


def test_only_what_begins_in_the_judged_time_is_judged() -> None:
    ledger = Ledger(10.0, 20.0)
    for at_s in (5.0, 12.0, 25.0):
        voice = ledger.open(at_s, ())
        voice.hear(at_s + 2.0, FIRST_CLAUSE)
        ledger.note(at_s, 30)
    body = ledger.body(decode_rate=6.0)
    assert body["turns"] == 1
    assert body["late"] == 1
    assert body["tokens_per_s"] == 3.0
    assert body["all_tokens"] == 90
    assert body["load"] == 0.5
    assert body["first_sound_ms"]["p50"] == pytest.approx(2000 + 1000 * SERVICE_S)


def test_the_decode_rate_counts_only_the_time_in_which_all_decode() -> None:
    slow = [1.0, 2.0, 3.0, 4.0]
    fast = [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert decode_rate([slow, fast]) == pytest.approx((2 + 4) / 2.0)
    with pytest.raises(ValueError, match="all together"):
        decode_rate([[1.0, 2.0], [3.0, 4.0]])
