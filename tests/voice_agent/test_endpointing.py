"""Edges of speech: legal, in order, the same in any chunking, as quick as the estimate allows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voice_agent.endpointing import PRESETS, Edge, EdgeKind, Endpointer, TurnTaking
from voice_agent.languages.en.cues import completion_cue

pytestmark = pytest.mark.unit

W = 512
ONSET, PAUSE, RESUMED, ENDED = EdgeKind.ONSET, EdgeKind.PAUSE, EdgeKind.RESUMED, EdgeKind.ENDED
NEXT = {None: {ONSET}, ONSET: {PAUSE}, PAUSE: {RESUMED, ENDED}, RESUMED: {PAUSE}, ENDED: {ONSET}}


def run(endpointer: Endpointer, probs: list[float], start: int = 0) -> list[Edge]:
    edges = []
    for i, prob in enumerate(probs):
        edges += endpointer.on_window(prob, start + (i + 1) * W)
    return edges


def speech(n: int) -> list[float]:
    return [0.9] * n


def silence(n: int) -> list[float]:
    return [0.01] * n


def test_one_utterance() -> None:
    edges = run(Endpointer(TurnTaking()), silence(5) + speech(20) + silence(60))
    assert [e.kind for e in edges] == [ONSET, PAUSE, ENDED]
    assert edges[0] == Edge(ONSET, 5 * W, 7 * W)
    assert edges[1] == Edge(PAUSE, 25 * W, 28 * W)  # 3 windows are 96 ms
    assert edges[2].sample == 25 * W


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("p", [0.0, 0.3, 0.6, 1.0])
def test_silence_follows_the_estimate(preset: str, p: float) -> None:
    config = PRESETS[preset]
    endpointer = Endpointer(config)
    run(endpointer, speech(10) + silence(5))
    endpointer.set_completion(p)
    edges = run(endpointer, silence(80), 15 * W)
    waited_ms = (edges[-1].at_sample - edges[-1].sample) / 16
    assert edges[-1].kind is ENDED
    assert config.silence_ms(p) <= waited_ms < max(config.silence_ms(p), 160) + 32


def test_balanced_is_prompt_when_sure_and_patient_when_not() -> None:
    config = PRESETS["balanced"]
    assert 275 <= config.silence_ms(0.95) <= 300
    assert 1300 <= config.silence_ms(0.02) <= 1400
    assert PRESETS["quick"].silence_ms(0.5) < config.silence_ms(0.5)
    assert config.silence_ms(0.5) < PRESETS["patient"].silence_ms(0.5)


@given(st.floats(0, 1), st.floats(0, 1))
def test_time_out_is_monotone_and_bounded(a: float, b: float) -> None:
    for config in PRESETS.values():
        low, high = sorted((config.silence_ms(a), config.silence_ms(b)))
        assert config.min_silence_ms - 1e-6 <= low <= high <= config.max_silence_ms + 1e-6
        assert (config.silence_ms(a) - config.silence_ms(b)) * (b - a) >= -1e-6
        if abs(a - b) < 1e-3:  # continuous: no cliff, steep as it is where doubt begins
            assert high - low < 40


def test_a_new_estimate_may_end_the_turn_at_once() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10) + silence(9))
    assert endpointer.poll() == []
    endpointer.set_completion(1.0)
    (edge,) = endpointer.poll()
    assert edge == Edge(ENDED, 10 * W, 19 * W)
    assert endpointer.poll() == []


def test_an_estimate_is_forgotten_when_speech_resumes() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10) + silence(5))
    endpointer.set_completion(0.0)
    before = endpointer.timeout_ms
    edges = run(endpointer, speech(3) + silence(5), 15 * W)
    assert [e.kind for e in edges] == [RESUMED, PAUSE]
    assert edges[0].sample == 15 * W
    assert endpointer.timeout_ms < before


def test_words_move_the_time_out() -> None:
    endpointer = Endpointer(TurnTaking(min_silence_ms=224))
    run(endpointer, speech(10) + silence(5))
    neutral = endpointer.timeout_ms
    endpointer.set_evidence("I would like to book a table and")
    assert endpointer.timeout_ms > neutral * 1.3
    endpointer.set_evidence("I would like to book a table.")
    assert endpointer.timeout_ms < neutral


@given(st.floats(0, 1), st.sampled_from(sorted(PRESETS)))
def test_a_finished_sentence_never_waits_longer_than_its_limit(p: float, preset: str) -> None:
    config = PRESETS[preset]
    finished = config.silence_ms(p, finished=True)
    assert config.min_silence_ms - 1e-6 <= finished <= config.sentence_ms + 1e-6
    assert finished <= config.silence_ms(p) + 1e-6


def test_a_finished_sentence_that_sounds_unfinished_waits_half_as_long() -> None:
    waited = {}
    for text in ("Something is terribly wrong.", "Something is terribly wrong and"):
        endpointer = Endpointer(TurnTaking())
        run(endpointer, speech(10) + silence(5))
        endpointer.set_completion(0.01)
        endpointer.set_evidence(text)
        ended = run(endpointer, silence(80), 15 * W)[-1]
        waited[text[-1]] = (ended.at_sample - ended.sample) / 16
    assert waited == {".": 768.0, "d": 1408.0}


def test_the_language_model_outweighs_a_falling_voice_and_a_guessed_full_stop() -> None:
    """A beginning that sounds whole waits; a whole sentence that sounds unfinished does not."""
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10) + silence(5))
    endpointer.set_completion(0.97)
    endpointer.set_evidence("There are currently.")
    assert endpointer.timeout_ms == 280
    endpointer.set_model(-3.0)
    assert endpointer.timeout_ms > 1000
    endpointer.set_completion(0.02)
    assert endpointer.timeout_ms == 1400
    endpointer.set_model(5.0)
    assert endpointer.timeout_ms < 700


@given(st.floats(0, 1), st.floats(-12, 12), st.floats(-12, 12), st.sampled_from(sorted(PRESETS)))
def test_the_model_s_word_shortens_monotonely(p: float, a: float, b: float, preset: str) -> None:
    config, waits = PRESETS[preset], []
    for log_odds in sorted((a, b)):
        endpointer = Endpointer(config)
        run(endpointer, speech(10) + silence(4))
        endpointer.set_completion(p)
        endpointer.set_model(log_odds)
        waits.append(endpointer.timeout_ms)
    assert config.min_silence_ms - 1e-6 <= waits[1] <= waits[0] <= config.max_silence_ms + 1e-6


def test_the_model_s_word_may_end_a_turn_at_once_and_is_forgotten() -> None:
    endpointer = Endpointer(TurnTaking(prior=0.5))
    run(endpointer, speech(10) + silence(9))
    assert endpointer.poll() == []
    endpointer.set_model(9.0)
    (edge,) = endpointer.poll()
    assert edge == Edge(ENDED, 10 * W, 19 * W)
    assert endpointer.ending is not None
    assert endpointer.ending.model == 9.0
    edges = run(endpointer, speech(10) + silence(4), 19 * W)
    assert [e.kind for e in edges] == [ONSET, PAUSE]
    assert endpointer.timeout_ms == Endpointer(TurnTaking(prior=0.5)).timeout_ms
    with pytest.raises(ValueError, match="number"):
        endpointer.set_model(math.nan)


def test_a_little_doubt_is_worth_half_of_the_wait() -> None:
    config = TurnTaking()
    sure, little, much = (config.silence_ms(1 / (1 + math.exp(-z))) for z in (2.0, 1.5, -1.5))
    assert (round(sure), round(much)) == (280, 1400)
    assert little > math.sqrt(sure * much)


@given(st.floats(-20, 20), st.floats(-20, 20), st.one_of(st.none(), st.floats(-12, 12)))
def test_a_voice_that_has_sunk_further_waits_no_longer(
    a: float, b: float, model: float | None
) -> None:
    waits = []
    for fall in sorted((a, b)):
        endpointer = Endpointer(TurnTaking())
        run(endpointer, speech(10) + silence(4))
        endpointer.set_fall(fall)
        endpointer.set_completion(0.9)
        if model is not None:
            endpointer.set_model(model)
        waits.append(endpointer.timeout_ms)
    assert waits[1] <= waits[0]


def test_a_voice_that_is_kept_up_is_waited_for_and_then_forgotten() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10) + silence(4))
    endpointer.set_completion(0.9)
    assert endpointer.timeout_ms == 280
    endpointer.set_fall(None)  # too little voice to tell
    assert endpointer.timeout_ms == 280
    endpointer.set_fall(0.0)
    assert endpointer.timeout_ms > 700
    run(endpointer, speech(3) + silence(4), 14 * W)
    endpointer.set_completion(0.9)
    assert endpointer.timeout_ms == 280


def test_a_fixed_silence_stays_fixed_whatever_the_words() -> None:
    fixed = TurnTaking(min_silence_ms=500, max_silence_ms=500, prepare_ms=500)
    for p in (0.0, 0.5, 1.0):
        assert fixed.silence_ms(p) == fixed.silence_ms(p, finished=True) == 500


def test_a_caller_who_pauses_long_is_waited_for() -> None:
    endpointer = Endpointer(TurnTaking())

    def pause(n: int, at: int) -> list[Edge]:
        edges = run(endpointer, speech(10), at * W)
        edges += run(endpointer, silence(4), (at + 10) * W)
        endpointer.set_completion(1.0)
        return edges + run(endpointer, silence(n), (at + 14) * W)

    first = pause(80, 0)
    assert first[-1].at_sample - first[-1].sample == 9 * W  # 280 ms
    for _ in range(4):
        endpointer.learn_pause(800.0)
    later = pause(80, 100)
    assert 700 <= (later[-1].at_sample - later[-1].sample) / 16 <= 1400
    for _ in range(20):
        endpointer.learn_pause(100.0)
    assert pause(80, 200)[-1].at_sample == (210 + 9) * W
    for _ in range(20):
        endpointer.learn_pause(9000.0)  # never beyond the longest wait
    last = pause(80, 300)
    assert (last[-1].at_sample - last[-1].sample) / 16 <= 1400 + 32


def test_the_pauses_of_a_caller_are_learnt_from_resumed_speech() -> None:
    endpointer = Endpointer(TurnTaking())
    at = 0
    for _ in range(6):
        run(endpointer, speech(10) + silence(16), at)
        at += 26 * W
        endpointer.set_completion(0.0)
    run(endpointer, speech(10) + silence(4), at)
    endpointer.set_completion(1.0)
    assert endpointer.timeout_ms > 500
    assert Endpointer(TurnTaking()).timeout_ms > 0


def test_a_turn_stays_open_while_its_answer_has_no_sound() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10) + silence(4))
    endpointer.set_completion(1.0)
    endpointer.prepare(True)
    assert run(endpointer, silence(8), 14 * W) == []  # 384 ms: past the shortest wait
    endpointer.prepare(False)
    (edge,) = endpointer.poll()
    assert edge == Edge(ENDED, 10 * W, 22 * W)

    run(endpointer, speech(10) + silence(4), 22 * W)
    endpointer.set_completion(1.0)
    endpointer.prepare(True)
    (ended,) = run(endpointer, silence(40), 36 * W)
    assert (ended.at_sample - ended.sample) / 16 == 608  # bounded by prepare_ms

    run(endpointer, speech(10) + silence(4), 76 * W)
    endpointer.prepare(True)
    run(endpointer, speech(4) + silence(4), 90 * W)
    endpointer.set_completion(1.0)
    assert endpointer.timeout_ms < 400  # forgotten when the caller went on


def test_a_click_is_no_speech_and_does_not_hold_a_pause_open() -> None:
    edges = run(Endpointer(TurnTaking()), silence(3) + speech(1) + silence(10))
    assert edges == []
    endpointer = Endpointer(TurnTaking())
    clicks = [0.9, *silence(3)] * 20
    edges = run(endpointer, speech(10) + silence(5) + clicks)
    assert [e.kind for e in edges] == [ONSET, PAUSE, ENDED]


def test_hysteresis_keeps_a_fading_word() -> None:
    edges = run(Endpointer(TurnTaking()), speech(4) + [0.4] * 30)
    assert [e.kind for e in edges] == [ONSET]
    assert run(Endpointer(TurnTaking()), [0.4] * 30) == []


def test_concealed_audio_neither_starts_nor_pauses_speech() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10))
    edges = []
    for i in range(10, 30):  # 640 ms lost
        edges += endpointer.on_window(0.0, (i + 1) * W, concealed=True)
    assert edges == []
    assert endpointer.speaking
    for i in range(30, 120):  # the network is gone
        edges += endpointer.on_window(0.0, (i + 1) * W, concealed=True)
    assert [e.kind for e in edges] == [PAUSE, ENDED]


def test_reset_forgets_speech_but_not_time() -> None:
    endpointer = Endpointer(TurnTaking())
    run(endpointer, speech(10))
    endpointer.reset()
    assert not endpointer.in_speech
    with pytest.raises(ValueError, match="already heard"):
        endpointer.on_window(0.9, 10 * W)
    assert [e.kind for e in run(endpointer, speech(3), 10 * W)] == [ONSET]


PROB = st.sampled_from([0.0, 0.2, 0.34, 0.36, 0.49, 0.5, 0.51, 0.8, 1.0])
RUNS = st.lists(st.tuples(PROB, st.integers(1, 40)), max_size=30)
CALLS = st.dictionaries(st.integers(0, 400), st.floats(0, 1), max_size=10)


@given(RUNS, CALLS, st.sampled_from(sorted(PRESETS)), st.sets(st.integers(0, 400), max_size=30))
def test_edges_are_legal_and_monotone(
    runs: list[tuple[float, int]], estimates: dict[int, float], preset: str, concealed: set[int]
) -> None:
    endpointer = Endpointer(PRESETS[preset])
    probs = [p for p, n in runs for _ in range(n)]
    edges: list[Edge] = []
    for i, prob in enumerate(probs):
        if i in estimates:
            endpointer.set_completion(estimates[i])
            edges += endpointer.poll()
        edges += endpointer.on_window(prob, (i + 1) * W, concealed=i in concealed)
        assert endpointer.in_speech == bool(edges and edges[-1].kind is not ENDED)
    last: Edge | None = None
    for edge in edges:
        assert edge.kind in NEXT[last.kind if last else None]
        assert 0 <= edge.sample <= edge.at_sample <= len(probs) * W
        if last is not None:
            assert last.at_sample <= edge.at_sample
            assert last.sample <= edge.sample
            if edge.kind is ENDED:
                assert edge.sample == last.sample
                assert edge.at_sample - edge.sample >= PRESETS[preset].min_silence_ms * 16
        last = edge


@given(RUNS)
def test_windows_of_any_size_give_the_same_edges(runs: list[tuple[float, int]]) -> None:
    """A window split in two halves of the same probability changes nothing but the resolution."""
    whole, halves = Endpointer(TurnTaking()), Endpointer(TurnTaking())
    probs = [p for p, n in runs for _ in range(n)]
    expected = run(whole, probs)
    split: list[Edge] = []
    for i, prob in enumerate(probs):
        split += halves.on_window(prob, i * W + W // 2)
        split += halves.on_window(prob, (i + 1) * W)
    assert [(e.kind, e.sample) for e in split] == [(e.kind, e.sample) for e in expected]
    for a, b in zip(split, expected, strict=True):
        assert b.at_sample - W < a.at_sample <= b.at_sample


@pytest.mark.parametrize(
    ("kwargs"),
    [
        {"start_threshold": 0.2},
        {"min_silence_ms": 90},
        {"max_silence_ms": 200},
        {"prior": 0.0},
        {"start_ms": -1},
        {"prepare_ms": -1},
    ],
)
def test_settings_that_cannot_be_are_refused(kwargs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        TurnTaking(**kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_an_estimate_must_be_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match="probability"):
        Endpointer(TurnTaking()).set_completion(p)


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("", 0),
        ("...", 0),
        ("I want to go to the", -1),
        ("Well, um", -1),
        ("We could meet on Monday,", -1),
        ("I was thinking...", -1),
        ("Let me think.", -1),
        ("and then because.", -1),
        ("What time is it?", 1),
        ("I need a taxi at nine.", 1),
        ("Yes", 1),
        ("a table for two people", -1),
        ("My number is 5 5 5", -1),
        ("five five five, one two", -1),
        ("It's 212 555 0123.", 1),
        ("My e-mail is jo.smith", -1),
        ("My email address is jo at gmail dot com.", 1),
        ("jo.smith@example", -1),
        ("jo underscore smith", -1),
        ("Jo dash.", -1),
        ("Send an email to Bob.", 1),
        ("I have 2 dogs.", 1),
        ("My number is 212 555", -1),
        ("My number is 212 555 0123", 1),
        ("four one five five five five twelve thirty four", 1),
        ("four one five five five double two twelve", -1),
        ("My card is 4111 1111 1111", -1),
        ("My card is 4111 1111 1111 1111", 1),
        ("My zip code is nine oh two one oh", 1),
        ("My name is S M I T H", -1),
        ("B as in boy", -1),
        ("jo at gmail", -1),
        ("jo at gmail dot com", 1),
        ("jo dot smith at example dot co dot uk", 1),
        ("I was born in nineteen eighty four.", 1),
        ("Let's meet at twelve thirty.", 1),
        ("I'm", -1),
        ("Because I'd", -1),
        ("We'll meet at home.", 1),
    ],
)
def test_english_cues(text: str, sign: int) -> None:
    cue = completion_cue(text)
    assert -1.0 <= cue <= 1.0
    assert (cue > 0) - (cue < 0) == sign
