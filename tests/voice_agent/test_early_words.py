"""A call and its engine session: what is known early is computed early, what is unheard is cut.

The model is scripted, its keys and values are checked (tests/support/engine_scene.py); a token is a
character.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

from tests.support.engine_scene import EngineScene, scripted
from tests.support.fakes import FakeRecognizer, FakeTokenizer, say, silence
from voice_agent.events import ReplyDone, ReplyStatus, TurnCommitted, TurnReopened, TurnTraced
from voice_agent.stt.base import Transcript
from voice_agent.trace import Mark, TurnTrace
from voice_agent.types import PcmF32

pytestmark = pytest.mark.unit

SENTENCE = "what is the time please tell me more and weather today now"
STORY = " ".join(f"part {n} of the story goes on and on and on," for n in range(40)) + " end."
CHATTY = {"max_reply_tokens": 4000}
LAST = "r today now"
"""Of `SENTENCE`, what the last pass before the pause left over: a word it was not sure of, one it
had not heard, and the last token of an open prompt."""
FRAME = 2
"""Tokens of the fake template between the caller's last word and our first one."""


def traces(scene: EngineScene) -> list[TurnTrace]:
    return [e.trace for e in scene.of(TurnTraced)]


def late(trace: TurnTrace) -> int:
    """Prompt tokens that were computed when the reply was asked for, and not before."""
    return trace.prompt_tokens - trace.cached_tokens


def answer(question: str) -> str:
    return STORY if "story" in question or "hello" in question else "It is noon."


def all_free(scene: EngineScene) -> bool:
    """Nothing but the agent's own prompt is left, and nobody has anything open."""
    kv = scene.engine._kv
    assert "agent:test" in kv.pins
    assert kv.pool.n_held == len(set(kv.pins.blocks()))
    assert (kv.pool.n_cached, kv.pool.n_fenced) == (0, 0)
    assert scene.call is not None
    assert f"call:{scene.call.id}" not in kv.pins
    return not scene.engine._scheduler.requests and not scene.brain._sessions


class Mishearing(FakeRecognizer):
    """Hears one word for another until `passes_wrong` passes are over."""

    def __init__(self, word: str, heard: str, passes_wrong: int = 1) -> None:
        super().__init__()
        self._word, self._heard, self._wrong = word, heard, passes_wrong

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        t = await super().transcribe(pcm, prefix=prefix, final=final, deadline_s=deadline_s)
        if self.passes > self._wrong:
            return t
        words = tuple(self._heard if w == self._word else w for w in t.words)
        return Transcript(words, t.n_confirmed, t.audio_s, t.compute_s)


def test_what_is_said_is_computed_while_it_is_said() -> None:
    played = [
        scripted("It is noon.", deaf=deaf).play(silence(300), say(SENTENCE))
        for deaf in (False, True)
    ]
    early, deaf = (traces(scene)[0] for scene in played)
    assert early.reply_text == deaf.reply_text == "It is noon."
    assert early.prompt_tokens == deaf.prompt_tokens
    assert late(deaf) == len(SENTENCE) + FRAME + 1, "and the mark of the caller's message"
    assert late(early) == len(LAST) + FRAME
    assert early.early_tokens == len(SENTENCE) - len(" today now")
    assert (early.taken_back_tokens, deaf.early_tokens) == (0, 0)
    submit, first = early.marks[Mark.LLM_SUBMIT], early.marks[Mark.LLM_FIRST_TEXT]
    assert played[0].computed(submit, first) == late(early), "as the steps that were made say too"
    assert all(map(all_free, played))


def test_a_revised_word_is_rolled_back_to_where_it_differs() -> None:
    scene = scripted("It is noon.")
    scene.recognizer = scene.stack.recognizer = Mishearing("time", "tell")
    scene.play(silence(300), say(SENTENCE))
    (trace,) = traces(scene)
    assert trace.transcript == SENTENCE
    assert trace.taken_back_tokens == len("ell")
    assert trace.early_tokens == len(SENTENCE) - len(" today now") + len("ell")
    assert late(trace) == len(LAST) + FRAME
    assert all_free(scene)


def test_the_engine_hears_of_changes_only() -> None:
    """The words of a pause come twice: as likely ones when the caller goes on, then once more."""
    scene = scripted("It is noon.")
    told: list[object] = []
    post = scene.engine._loop.post_edit

    def note(edit: object) -> None:
        told.append(edit)
        post(edit)  # type: ignore[arg-type]

    scene.engine._loop.post_edit = note  # type: ignore[method-assign]
    scene.play(silence(300), say(SENTENCE))
    kinds = [type(edit).__name__ for edit in told]
    assert kinds == ["Revise", "Revise", "Revise", "Commit"]
    assert scene.recognizer.passes == 3, "two while the caller spoke, one at the pause"


def test_the_prompt_of_a_turn_is_a_prefix_of_the_next_ones() -> None:
    scene = scripted("It is noon.", greeting="Hello there.")
    scene.play(
        silence(1500), say(SENTENCE), silence(2500), say(SENTENCE), silence(2500), say(SENTENCE)
    )
    assert len(traces(scene)) == 3
    for before, after in zip(scene.prompts, scene.prompts[1:], strict=False):
        assert after[: len(before)] == before
    assert [late(trace) for trace in traces(scene)] == [len(LAST) + FRAME] * 3
    assert all_free(scene)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("story", [STORY, STORY[:150]])
def test_after_a_barge_in_only_new_tokens_are_computed(story: str, overlap: bool) -> None:
    """The story is still being generated, or is there to its end and spoken in part."""
    said = {"hello": story, "stop please": "It is noon."}
    scene = scripted(said.__getitem__, limits=CHATTY, overlap=overlap)
    scene.play(silence(300), say("hello"), silence(2400), say("stop please"), tail_ms=4000)
    cut = traces(scene)[0]
    assert cut.interrupted
    assert 0 < len(cut.heard) < len(cut.reply_text) - 20
    assert (len(cut.reply_text) < len(story)) == (story is STORY)
    context = [*scene.prompts[0], *map(ord, cut.heard)]
    assert list(scene.prompts[1][: len(context)]) == context, "cut at the token heard"
    decided = next(
        t for t, e in scene.events
        if isinstance(e, ReplyDone) and e.status is ReplyStatus.INTERRUPTED
    )  # fmt: skip
    chosen = next(s.at_s for s in scene.steps if s.at_s > decided and s.n_chosen)
    new = len(scene.prompts[1]) - len(context)
    assert new == len("stop please") + FRAME + 2, "our end of turn, the caller's beginning"
    in_flight = overlap and story is STORY
    assert scene.computed(decided + 1e-4, chosen) - new in (0, in_flight)
    assert all_free(scene)


def test_what_was_not_heard_is_freed_at_once() -> None:
    scene = scripted(answer, limits=CHATTY)
    held: list[tuple[float, int]] = []
    scene.each_step = lambda: held.append((scene.loop.now(), scene.in_use))
    scene.play(silence(300), say("hello"), silence(5000), say("stop please"), tail_ms=4000)
    cut = traces(scene)[0]
    decided = cut.marks[Mark.BARGE_IN_DECIDED]
    before = max(n for t, n in held if t <= decided)
    after = next(n for t, n in held if t > decided + 0.02)
    context = len(scene.prompts[0]) + len(cut.heard)
    assert after <= scene.engine._kv.blocks_for(context + 2) + 2, "and two tails, copied to go on"
    assert before > 2 * after, "the rest of the story"


def test_going_on_before_a_word_was_heard_keeps_what_was_said() -> None:
    scene = scripted("Fine.")
    scene.speaker.delay_s = 1.5  # a slow voice: the caller goes on first
    scene.play(silence(300), say(SENTENCE), silence(1100), say("tell me more please"), tail_ms=6000)
    assert len(scene.of(TurnReopened)) == 1
    joined = f"{SENTENCE} tell me more please"
    assert [e.text for e in scene.of(TurnCommitted)] == [SENTENCE, joined]
    (trace,) = traces(scene)
    assert trace.transcript == joined
    assert late(trace) <= len(" tell me more please") + FRAME + 1
    assert scene.history == [("user", joined), ("assistant", "Fine.")]
    assert all_free(scene)


def test_a_pause_that_was_not_the_end_wastes_the_early_answer_only() -> None:
    scene = scripted(answer, turn_taking={"min_silence_ms": 600})
    contexts: list[str] = []
    scene.play(
        silence(300), say("tell me the hello"), silence(350), say("weather"),
        lambda _: contexts.append(FakeTokenizer().decode(scene.context)),
        tail_ms=3000,
    )  # fmt: skip
    (trace,) = traces(scene)
    assert trace.transcript == "tell me the hello weather"
    assert trace.wasted_tokens > 5, "an early answer was under way when the caller went on"
    assert contexts == ["Be brief.tell me the"], "its words and ours were taken back"
    assert all_free(scene)


def test_a_second_reply_continues_the_first() -> None:
    scene = scripted("It is noon.")
    scene.play(
        silence(100),
        lambda call: call.client.add_message("user", "what time is it?"),
        lambda call: call.client.respond(),
        silence(2500),
        lambda call: call.client.add_message("system", "Say it again."),
        lambda call: call.client.respond(),
        tail_ms=2500,
    )
    done = scene.of(ReplyDone)
    assert [e.heard for e in done] == ["It is noon."] * 2
    assert scene.prompts[1][: len(scene.prompts[0])] == scene.prompts[0]
    new = done[1].input_tokens - done[1].cached_tokens
    assert new == len("Say it again.") + 3, "its frame, and ours"
    assert all_free(scene)


def test_mm_hm_changes_nothing_under_a_reply() -> None:
    scene = scripted(answer)
    ends: list[tuple[int, int]] = []
    scene.play(
        silence(300), say("hello"), silence(1500), say("mm-hm"), silence(600),
        lambda _: ends.append((scene.engine.stats().aborted_total, len(scene.prompts))),
        tail_ms=2000,
    )  # fmt: skip
    assert ends == [(0, 1)]
    (done,) = scene.of(ReplyDone)
    assert len(done.heard) > 60, "it went on after the murmur"


def test_new_instructions_are_computed_before_they_are_needed() -> None:
    scene = scripted("It is noon.")
    long = "You are the talking clock of a small town. " * 8
    scene.play(
        lambda call: call.client.update(instructions=long), silence(300), say("what is the time")
    )
    (trace,) = traces(scene)
    assert trace.prompt_tokens > len(long)
    assert late(trace) == len("what is the time") + FRAME + 1
    assert all_free(scene)


def test_a_shortened_history_is_computed_at_the_turn_boundary() -> None:
    scene = scripted("It is noon.")
    scene.stack._max_context = 4 * 200 // 3
    scene.play(*[x for _ in range(3) for x in (silence(300), say(SENTENCE), silence(2600))])
    assert scene.call is not None
    assert scene.call.conversation.dropped >= 2
    assert len(traces(scene)) == 3
    assert {late(trace) for trace in traces(scene)} == {len(LAST) + FRAME}
    assert all_free(scene)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tail_ms", [0, 100, 700, 1500])
def test_hanging_up_at_any_moment_leaves_nothing(tail_ms: int, overlap: bool) -> None:
    """In the middle of a word, of the early answer, of the reply."""
    scene = scripted(answer, greeting="Hello there.", overlap=overlap)
    scene.play(silence(1500), say("what is the time please hello"), tail_ms=tail_ms)
    assert all_free(scene)
