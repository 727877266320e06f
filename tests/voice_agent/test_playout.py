"""The caller's ear: positions, words, holds, flushes; nothing lost, nothing invented."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voice_agent.errors import InternalError
from voice_agent.player import FADE_SAMPLES, Player
from voice_agent.playout import KEPT, Heard, Playout, Tick
from voice_agent.tts.base import AudioPiece, Clause, SpokenWord, WordTime
from voice_agent.types import OUT_FRAME, OUT_RATE, Pcm16, ReplyId

pytestmark = pytest.mark.unit

R1, R2 = ReplyId("c", 1), ReplyId("c", 2)
WORD = 2400  # samples a word lasts in these tests: 100 ms, five ticks


def ramp(n: int, start: int = 1) -> Pcm16:
    """Samples that name their own position (never 0)."""
    return ((np.arange(start, start + n) % 30_000) + 1).astype(np.int16)


def clause(index: int, text: str, start: int = 0) -> Clause:
    words, at = [], 0
    for token in text.split():
        at = text.index(token, at)
        words.append(SpokenWord(token, (start + at, start + at + len(token))))
        at += len(token)
    return Clause(index, text, (start, start + len(text)), tuple(words))


def times(n: int) -> tuple[WordTime, ...]:
    return tuple(WordTime(i, i * WORD, (i + 1) * WORD) for i in range(n))


def whole(c: Clause, start: int = 1) -> AudioPiece:
    n = len(c.words)
    return AudioPiece(ramp(n * WORD, start), times(n), True)


def ticks(p: Playout, n: int) -> list[Tick]:
    return [p.tick() for _ in range(n)]


def sound(some: Sequence[Tick]) -> Pcm16:
    return np.concatenate([t.pcm for t in some])


def test_idle_is_silence() -> None:
    p = Playout()
    tick = p.tick()
    assert tick.pcm.shape == (OUT_FRAME,)
    assert not tick.pcm.any()
    assert tick.reply is None
    assert not tick.audible
    assert not p.speaking
    assert p.heard() == Heard(0, 0)


def test_one_reply_plays_through_and_is_heard_whole() -> None:
    p = Playout()
    c = clause(0, "Hello there. ")
    p.begin(R1)
    p.push(R1, c, whole(c))
    p.end(R1)
    assert p.buffered_s == pytest.approx(0.2)
    got = ticks(p, 10)
    assert np.array_equal(sound(got), ramp(2 * WORD))
    assert [t.offset for t in got] == [i * OUT_FRAME for i in range(10)]
    assert [t.finished for t in got] == [None] * 9 + [R1]
    assert p.heard() == Heard(len("Hello there. "), 2 * WORD)
    assert p.words_heard == 2
    assert p.retained_samples == 0
    assert p.tick().reply is None


def test_words_count_when_mostly_played() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    chars = [p.heard().chars]
    for _ in range(15):
        p.tick()
        chars.append(p.heard().chars)
    # 60 % of a word of five ticks is three ticks
    assert chars == [0, 0, 0, 3, 3, 3, 3, 3, 7, 7, 7, 7, 7, 13, 13, 13]


def test_words_of_one_source_count_together() -> None:
    p = Playout()
    c = Clause(
        0,
        "$5 now",
        (0, 6),
        (SpokenWord("five", (0, 2)), SpokenWord("dollars", (0, 2)), SpokenWord("now", (3, 6))),
    )
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 5)
    assert p.heard().chars == 0
    ticks(p, 5)
    assert p.heard().chars == 2


def test_flush_is_silent_from_the_next_tick_and_tells_what_was_heard() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 9)
    assert p.flush(R1) == Heard(7, 9 * OUT_FRAME)
    assert not p.tick().pcm.any()
    assert not p.speaking
    p.push(R1, c, whole(c))
    assert p.late_pieces == 1
    assert not p.tick().pcm.any()
    assert p.retained_samples == 0
    assert p.flush(R1) == Heard(7, 9 * OUT_FRAME)


def test_flush_before_any_sound_heard_nothing() -> None:
    p = Playout()
    p.begin(R1)
    assert p.flush(R1) == Heard(0, 0)
    p.begin(R2)
    assert p.flush(ReplyId("c", 9)) == Heard(0, 0)
    assert p.reply == R2


def test_lead_is_not_yet_heard() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    p.end(R1)
    ticks(p, 10)
    assert p.heard(lead_samples=5 * OUT_FRAME) == Heard(3, 5 * OUT_FRAME)
    assert p.heard(lead_samples=5 * OUT_FRAME + 100) == Heard(3, 5 * OUT_FRAME - 100)
    assert p.heard(lead_samples=1000 * OUT_FRAME) == Heard(0, 0)
    ticks(p, 5)
    assert p.heard() == Heard(13, 3 * WORD)
    assert p.heard(lead_samples=5 * OUT_FRAME).samples == 10 * OUT_FRAME
    ticks(p, 5)  # the client plays out what it has while we send silence
    assert p.heard(lead_samples=5 * OUT_FRAME) == Heard(13, 3 * WORD)


def test_silence_sent_counts_as_lead_too() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 6)
    p.hold()
    ticks(p, 5)
    assert p.heard(lead_samples=5 * OUT_FRAME).samples == 6 * OUT_FRAME


def test_heard_at_a_clients_position() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    p.end(R1)
    ticks(p, 6)
    assert p.heard_at(R1, WORD) == Heard(3, WORD)
    assert p.heard_at(R1, 99 * WORD) == Heard(3, 6 * OUT_FRAME)
    ticks(p, 9)
    p.begin(R2)
    assert p.heard_at(R1, WORD) == Heard(3, WORD)
    assert p.heard_at(R1, 3 * WORD) == Heard(13, 3 * WORD)
    assert p.heard_at(ReplyId("c", 7), WORD) == Heard(0, 0)


def test_underrun_is_counted_and_does_not_move_the_position() -> None:
    p = Playout()
    a, b = clause(0, "one "), clause(1, "two", 4)
    p.begin(R1)
    assert not p.tick().underrun, "waiting for the first sound is no underrun"
    p.push(R1, a, whole(a))
    ticks(p, 5)
    dry = ticks(p, 3)
    assert all(t.underrun and not t.audible and not t.pcm.any() for t in dry)
    assert p.underrun_ticks == 3
    p.push(R1, b, whole(b, 1 + WORD))
    p.end(R1)
    got = ticks(p, 5)
    assert got[0].offset == WORD
    assert np.array_equal(sound(got)[FADE_SAMPLES:], ramp(WORD, 1 + WORD)[FADE_SAMPLES:])
    assert got[-1].finished == R1
    assert p.heard() == Heard(7, 2 * WORD)


def test_no_underrun_once_the_reply_has_ended() -> None:
    p = Playout()
    p.begin(R1)
    p.push(R1, clause(0, "a"), AudioPiece(ramp(500), (WordTime(0, 0, 500),), True))
    p.end(R1)
    first, second = ticks(p, 2)
    assert not first.underrun
    assert not second.underrun
    assert second.finished == R1
    assert np.array_equal(second.pcm[:20], ramp(500)[480:])
    assert not second.pcm[20:].any()


def test_end_after_everything_has_left_finishes_at_the_next_tick() -> None:
    p = Playout()
    c = clause(0, "one")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 6)
    p.end(R1)
    assert p.tick().finished == R1
    assert p.tick().finished is None


def test_hold_fades_keeps_the_position_and_resumes() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    before = ticks(p, 7)
    p.hold()
    fade, *rest = ticks(p, 4)
    assert not fade.audible
    assert fade.pcm[:FADE_SAMPLES].any()
    assert not fade.pcm[FADE_SAMPLES:].any()
    assert abs(int(fade.pcm[0]) - int(before[-1].pcm[-1])) < 200, "no click"
    assert not any(t.pcm.any() for t in rest)
    assert p.underrun_ticks == 0
    p.resume()
    after = p.tick()
    assert after.offset == 7 * OUT_FRAME
    assert abs(int(after.pcm[0])) < 50, "fades in"
    assert np.array_equal(
        after.pcm[FADE_SAMPLES:], ramp(3 * WORD)[7 * 480 + FADE_SAMPLES : 8 * 480]
    )


def test_long_hold_resumes_at_the_start_of_the_cut_word_which_counts_once() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    p.end(R1)
    ticks(p, 9)  # 80 % of "two"
    assert p.words_heard == 2
    p.hold()
    ticks(p, 8)  # 160 ms
    p.resume()
    again = p.tick()
    assert again.offset == WORD
    assert p.words_heard == 2
    assert p.heard() == Heard(7, 9 * OUT_FRAME)
    got = ticks(p, 9)
    assert got[-1].finished == R1
    assert p.words_heard == 3
    assert p.heard() == Heard(13, 3 * WORD)


def test_a_word_cut_early_is_heard_once_after_the_replay() -> None:
    p = Playout()
    c = clause(0, "one two three")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 6)
    p.hold()
    ticks(p, 10)
    assert p.heard().chars == 3
    p.resume()
    ticks(p, 5)
    assert p.heard() == Heard(7, 2 * WORD)


def test_hold_between_words_does_not_replay() -> None:
    p = Playout()
    c = clause(0, "one two")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 5)
    p.hold()
    ticks(p, 20)
    p.resume()
    assert p.tick().offset == WORD


def test_held_reply_finishes_only_after_resume() -> None:
    p = Playout()
    c = clause(0, "one")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 5)
    p.hold()
    p.end(R1)
    assert all(t.finished is None for t in ticks(p, 3))
    p.resume()
    assert p.tick().finished == R1


def test_duck_ramps_to_its_gain_and_back() -> None:
    p = Playout()
    c = clause(0, "one two three")
    loud = AudioPiece(np.full(3 * WORD, 10_000, np.int16), times(3), True)
    p.begin(R1)
    p.push(R1, c, loud)
    p.tick()
    p.duck(0.25)
    low = p.tick().pcm
    assert low[0] == 10_000
    assert np.all(np.diff(low[:FADE_SAMPLES].astype(int)) <= 0)
    assert np.all(low[FADE_SAMPLES:] == 2500)
    assert np.all(p.tick().pcm == 2500)
    p.resume()
    back = p.tick()
    assert back.audible
    assert np.all(back.pcm[FADE_SAMPLES:] == 10_000)
    with pytest.raises(ValueError, match="gain"):
        p.duck(1.5)


def test_silent_clause_counts_when_playback_moves_past_it() -> None:
    p = Playout()
    a, smile, b = clause(0, "one "), Clause(1, "😀 ", (4, 6), ()), clause(2, "two", 6)
    nothing = AudioPiece(np.zeros(0, np.int16), (), True)
    p.begin(R1)
    p.push(R1, a, whole(a))
    p.push(R1, smile, nothing)
    p.push(R1, b, whole(b))
    ticks(p, 4)
    assert p.heard().chars == 3
    ticks(p, 1)
    assert p.heard().chars == 6


def test_reply_without_any_sound_finishes_heard_whole() -> None:
    p = Playout()
    p.begin(R1)
    p.push(R1, Clause(0, "😀!", (0, 2), ()), AudioPiece(np.zeros(0, np.int16), (), True))
    assert p.tick().finished is None
    assert p.heard().chars == 0
    p.end(R1)
    assert p.tick().finished == R1
    assert p.heard() == Heard(2, 0)


def test_one_reply_at_a_time() -> None:
    p = Playout()
    p.begin(R1)
    with pytest.raises(InternalError):
        p.begin(R2)
    p.flush(R1)
    p.begin(R2)
    c = clause(0, "one")
    p.push(R1, c, whole(c))
    p.end(R1)
    assert p.late_pieces == 1
    assert p.buffered_s == 0.0


def test_a_new_reply_starts_unheld_at_full_gain_from_zero() -> None:
    p = Playout()
    c = clause(0, "one two")
    p.begin(R1)
    p.push(R1, c, whole(c))
    ticks(p, 3)
    p.duck(0.2)
    p.hold()
    p.flush(R1)
    p.begin(R2)
    p.push(R2, c, whole(c))
    assert p.heard() == Heard(0, 0)
    tick = p.tick()
    assert tick.offset == 0
    assert np.array_equal(tick.pcm, ramp(OUT_FRAME))


def test_memory_is_freed_as_it_is_played() -> None:
    p = Playout()
    p.begin(R1)
    c = clause(0, " ".join(["word"] * 100))
    for i in range(100):
        word = WordTime(i, i * WORD, (i + 1) * WORD)
        p.push(R1, c, AudioPiece(ramp(WORD), (word,), i == 99))
    for _ in range(400):
        p.tick()
    assert p.retained_samples <= 21 * WORD + KEPT


def spoken(n: int = 40) -> Playout:
    """Being said, in words of 100 ms."""
    p = Playout()
    c = clause(0, " ".join(["word"] * n))
    p.begin(R1)
    p.push(R1, c, whole(c))
    p.end(R1)
    return p


def test_while_the_line_is_lost_nothing_moves_and_then_the_cut_word_is_said_again() -> None:
    p = spoken()
    ticks(p, 33)  # 60 % of the seventh word
    assert p.line_lost(0) == Heard(7 * 5 - 1, 33 * OUT_FRAME)
    assert not any(t.pcm.any() or t.reply for t in ticks(p, 50))
    p.line_back()
    assert p.tick().offset == 6 * WORD
    got = ticks(p, 169)
    assert got[-1].finished == R1
    assert np.array_equal(got[-1].pcm, ramp(40 * WORD)[-OUT_FRAME:])


def test_what_did_not_arrive_was_not_heard_and_is_said_again() -> None:
    p = spoken()
    ticks(p, 60)
    heard = p.line_lost(40 * OUT_FRAME)  # of 12 words the last eight
    assert heard == p.heard() == Heard(4 * 5 - 1, 20 * OUT_FRAME)
    assert p.heard(5 * OUT_FRAME) == heard, "nothing of it is on its way any more"
    p.line_back()
    assert p.tick().offset == 4 * WORD
    assert p.heard() == Heard(4 * 5 - 1, 21 * OUT_FRAME)


@pytest.mark.parametrize("state", ["plain", "held", "ducked", "lost"])
def test_a_reply_moves_to_another_player(state: str) -> None:
    p, player = spoken(), Player()
    ticks(p, 33)
    if state == "held":
        p.hold()
    elif state == "ducked":
        p.duck(0.25)
    elif state == "lost":
        p.line_lost(0)
    old = p._player
    p.play_on(player)
    assert not old.tick().pcm.any(), "the one before is silent"
    if state == "lost":
        assert p.tick().reply is None
        p.line_back()
    tick = p.tick()
    if state == "held":
        assert not tick.audible
        p.resume()
        tick = p.tick()
    assert tick.offset == 6 * WORD
    top = int(np.abs(ticks(p, 1)[0].pcm).max())
    want = ramp(40 * WORD)[6 * WORD + OUT_FRAME : 6 * WORD + 2 * OUT_FRAME].max()
    assert top == pytest.approx(want * (0.25 if state == "ducked" else 1.0), rel=0.01)
    assert ticks(p, 168)[-1].finished == R1


def test_what_comes_while_the_line_is_lost_is_said_after_it() -> None:
    p = Playout()
    p.line_lost(0)
    p.begin(R1)
    c = clause(0, "one two")
    p.push(R1, c, whole(c))
    p.end(R1)
    ticks(p, 5)
    p.line_back()
    assert np.array_equal(sound(ticks(p, 10)), ramp(2 * WORD))


def test_a_reply_can_be_cut_while_the_line_is_lost() -> None:
    p = spoken()
    ticks(p, 33)
    p.line_lost(0)
    assert p.flush(R1) == Heard(7 * 5 - 1, 33 * OUT_FRAME)
    p.line_back()
    assert not any(t.pcm.any() for t in ticks(p, 5))


def cut(n: int, data: st.DataObject) -> list[int]:
    points = data.draw(st.lists(st.integers(0, n), max_size=12).map(sorted))
    return [0, *points, n]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_samples_and_words(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    p = Playout()
    p.begin(R1)
    start, total, expected = 0, 0, []
    for index, n in enumerate(lengths):
        c = clause(index, " ".join(["ab"] * n) + " ", start)
        start = c.span[1]
        pcm = ramp(n * WORD + data.draw(st.integers(0, 700)), total + 1)
        expected.append(pcm)
        total += len(pcm)
        points = cut(len(pcm), data)
        for a, b in pairwise(points):
            last = b == len(pcm)
            words = tuple(w for w in times(n) if a <= w.start < b)
            p.push(R1, c, AudioPiece(pcm[a:b], words, last and b == points[-1] and a != b))
            if a == b == len(pcm):
                break
    p.end(R1)
    out, heard = [], []
    for _ in range(total // OUT_FRAME + 2):
        tick = p.tick()
        out.append(tick.pcm)
        heard.append((p.heard().chars, p.words_heard))
        if tick.finished:
            break
    played = np.concatenate(out)
    assert np.array_equal(played[:total], np.concatenate(expected))
    assert not played[total:].any()
    assert heard == sorted(heard)
    assert p.words_heard == sum(lengths)
    assert p.underrun_ticks == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["tick", "hold", "resume", "duck", "push"]), max_size=80))
def test_heard_never_passes_played_words_whatever_happens(actions: list[str]) -> None:
    p = Playout()
    p.begin(R1)
    index, text_at, farthest, last = 0, 0, 0, 0
    ends: list[tuple[int, int]] = []  # (position from which the word may count, chars)
    total = 0
    for action in actions:
        if action == "push":
            c = clause(index, "ab cd ", text_at)
            p.push(R1, c, whole(c))
            ends += [(total + round(WORD * 0.6), text_at + 2), (total + WORD, text_at + 2)]
            ends += [
                (total + WORD + round(WORD * 0.6), text_at + 5),
                (total + 2 * WORD, text_at + 6),
            ]
            index, text_at, total = index + 1, text_at + 6, total + 2 * WORD
        elif action == "tick":
            tick = p.tick()
            if tick.audible:
                farthest = max(farthest, tick.offset + OUT_FRAME)
                assert not p.held
        elif action == "duck":
            p.duck(0.3)
        else:
            getattr(p, action)()
        chars = p.heard().chars
        assert chars >= last
        last = chars
        assert chars == max([c for at, c in ends if at <= min(farthest, total)], default=0)
    heard = p.flush(R1)
    assert heard.chars == last
    assert heard.samples <= min(farthest, total)
    assert not p.tick().pcm.any()


def test_half_an_hour_of_speech_stays_small() -> None:
    p = Playout()
    p.begin(R1)
    second = ramp(OUT_RATE)
    for i in range(1800):
        c = clause(i, "word ", 5 * i)
        p.push(R1, c, AudioPiece(second, (WordTime(0, 0, OUT_RATE),), True))
        ticks(p, 50)
    assert p.retained_samples <= OUT_RATE + KEPT
    assert p.words_heard == 1800
