"""Whole turns of a call over remote models, in virtual time: the caller never hears the seams."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.support.fakes import FakeThinker, Scene, say, silence
from tests.support.scripted_openai import Answer, ScriptedOpenAI
from voice_agent.events import CallFault, ReplyDone, ReplyStatus, TurnTraced
from voice_agent.fallback import Backend, FallbackThinker
from voice_agent.llm_section import RemoteSection
from voice_agent.logs import turn_fields
from voice_agent.remote import RemoteThinker
from voice_agent.trace import Mark, TurnTrace

pytestmark = pytest.mark.unit

WARM = Answer(["Hi"], finish="length")
NOON = Answer(["It is ", "noon."])
KEY = "sk-do-not-show-me"
LONG = [f"{word} " for word in ("one", "two", "three", "four", "five", "six", "seven.")] * 6


class RemoteScene(Scene):
    """A call whose language model is `first`, and `second` behind it (None: the embedded one)."""

    def __init__(
        self, first: ScriptedOpenAI, second: ScriptedOpenAI | None = None, **agent: Any
    ) -> None:
        super().__init__("Fine.", **agent)
        self.first = first
        behind = Backend("embedded", self.thinker)
        if second is not None:
            behind = Backend("second", self._remote("second", second))
        self.stack.thinker = FallbackThinker(
            Backend("primary", self._remote("primary", first)), behind, self.loop,
            cooldown_s=10.0, probe_s=1.5,
        )  # fmt: skip

    def _remote(self, name: str, server: ScriptedOpenAI) -> RemoteThinker:
        remote = RemoteSection(base_url="http://far/v1", model="m", api_key=KEY)
        return RemoteThinker(name, remote, self.loop, transport=server.transport)

    @property
    def traces(self) -> list[TurnTrace]:
        return [e.trace for e in self.of(TurnTraced)]

    @property
    def spoken(self) -> list[str]:
        return [e.heard for e in self.of(ReplyDone)]


def messages(server: ScriptedOpenAI, n: int = -1) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in server.requests[n]["messages"]]


def test_two_turns_carry_the_history_as_messages() -> None:
    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    server = ScriptedOpenAI(WARM, Answer(NOON.steps, usage=usage))
    scene = RemoteScene(server, greeting="Hello there.")
    scene.play(silence(1500), say("what is the time"), silence(2500), say("tell me more"))
    assert messages(server) == [
        ("system", "Be brief."), ("assistant", "Hello there."), ("user", "what is the time"),
        ("assistant", "It is noon."), ("user", "tell me more"),
    ]  # fmt: skip
    assert scene.spoken == ["Hello there.", "It is noon.", "It is noon."]
    trace = scene.traces[0]
    assert (trace.backend, trace.fallback) == ("primary", "")
    assert (trace.prompt_tokens, trace.output_tokens) == (30, 4)
    assert trace.marks[Mark.LLM_SUBMIT] < trace.marks[Mark.COMMIT], "it thought ahead"
    assert (server.running, server.cancelled) == (0, 0)


def test_an_interrupted_reply_closes_the_stream_and_only_heard_words_are_history() -> None:
    steps: list[str | float] = [x for word in LONG for x in (word, 0.15)]
    server = ScriptedOpenAI(WARM, Answer(steps), NOON)
    scene = RemoteScene(server)
    scene.play(silence(300), say("hello"), silence(2000), say("stop please"), tail_ms=4000)
    cut = next(t for t in scene.traces if t.interrupted)
    assert server.cancelled == 1
    assert len(server.said) < len(LONG), "the server stopped in the middle"
    assert scene.spoken[0] == cut.heard
    assert "".join(LONG).startswith(cut.heard)
    assert 0 < len(cut.heard) < len(cut.reply_text)
    assert messages(server) == [
        ("system", "Be brief."), ("user", "hello"), ("assistant", cut.heard),
        ("user", "stop please"),
    ]  # fmt: skip
    assert cut.output_tokens >= len(cut.heard.split()), "counted though no usage came"
    assert server.running == 0


def test_going_on_cancels_the_early_request() -> None:
    server = ScriptedOpenAI(WARM, Answer(head_s=1.2), NOON)
    scene = RemoteScene(server)
    scene.play(silence(300), say("tell me"), silence(200), say("more"), tail_ms=4000)
    assert [t.transcript for t in scene.traces] == ["tell me more"]
    assert messages(server)[-1] == ("user", "tell me more")
    assert server.cancelled == len(server.requests) - 2
    assert scene.spoken == ["It is noon."]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (Answer(head_s=60.0), "VA482"),
        (Answer(["Well", 60.0]), "VA482"),
        (Answer(status=500), "VA483"),
        (Answer(["Well"], cut=True), "VA483"),
    ],
)
def test_a_stalled_or_broken_backend_is_replaced_and_the_trace_says_so(
    first: Answer, why: str
) -> None:
    one, two = ScriptedOpenAI(WARM, first), ScriptedOpenAI(WARM, Answer(NOON.steps, head_s=0.1))
    scene = RemoteScene(one, two).play(silence(300), say("hello"), tail_ms=6000)
    assert scene.spoken == ["It is noon."], "not a word of the first one's"
    (trace,) = scene.traces
    assert (trace.backend, trace.outcome) == ("second", "spoken")
    assert why in trace.fallback
    fields = turn_fields(trace, content=False)
    assert (fields["backend"], fields["fallback"]) == ("second", trace.fallback)
    assert scene.of(CallFault) == []
    assert one.running == two.running == 0
    spoken_text_s = trace.marks[Mark.LLM_FIRST_TEXT] - trace.marks[Mark.LLM_SUBMIT]
    assert spoken_text_s >= 0.099, "the first text is the one that is spoken"


def test_the_embedded_engine_may_stand_behind() -> None:
    """It reads the same history as token ids, replies from elsewhere included."""
    server = ScriptedOpenAI(WARM, NOON, Answer(status=503))
    scene = RemoteScene(server)
    scene.play(silence(300), say("hello"), silence(2500), say("what is the time"), tail_ms=5000)
    assert scene.spoken == ["It is noon.", "Fine."]
    assert [t.backend for t in scene.traces] == ["primary", "embedded"]
    expected = "<s>Be brief.|<u>hello|<a>It is noon.|<u>what is the time|<a>"
    assert scene.thinker.prompts == [expected]
    assert scene.thinker.forgotten == [scene.call.id if scene.call else ""]


def test_both_failing_is_followed_by_the_recovery_never_by_silence() -> None:
    one, two = ScriptedOpenAI(WARM, Answer(status=500)), ScriptedOpenAI(WARM, Answer(status=502))
    scene = RemoteScene(one, two).play(silence(300), say("hello"), tail_ms=6000)
    assert "VA486" in [f.code for f in scene.of(CallFault)]
    done = [e for e in scene.of(ReplyDone) if e.status is ReplyStatus.COMPLETED]
    assert len(done) == 1
    assert "again" in done[0].heard
    (trace,) = scene.traces
    assert trace.outcome == "recovery"
    assert "VA483" in trace.fallback


def test_both_stalling_still_makes_a_sound_in_time() -> None:
    one, two = ScriptedOpenAI(WARM, Answer(head_s=60.0)), ScriptedOpenAI(WARM, Answer(head_s=60.0))
    scene = RemoteScene(one, two).play(silence(300), say("hello"), tail_ms=9000)
    (trace,) = scene.traces
    assert trace.outcome == "recovery"
    waited = trace.marks[Mark.FIRST_SOUND] - trace.marks[Mark.COMMIT]
    assert waited <= scene.stack.answer_within_s + 0.3
    assert one.running == two.running == 0


def test_breaking_off_after_the_first_clause_ends_the_reply_where_it_was_heard() -> None:
    steps: list[str | float] = ["One two three. ", "Four five six. ", 0.5, "Seven"]
    one, two = ScriptedOpenAI(WARM, Answer(steps, cut=True)), ScriptedOpenAI(WARM, NOON)
    scene = RemoteScene(one, two).play(silence(300), say("hello"), tail_ms=6000)
    assert len(two.requests) == 1, "only the warm-up: nobody may take over now"
    assert scene.traces
    assert all("noon" not in text for text in scene.spoken)
    assert any(text for text in scene.spoken), "something was heard"


def test_no_secret_leaves(caplog: pytest.LogCaptureFixture) -> None:
    body = f'{{"error": {{"message": "wrong key {KEY}"}}}}'.encode()
    one = ScriptedOpenAI(Answer(status=401, body=body))
    with caplog.at_level(logging.DEBUG):
        scene = RemoteScene(one).play(silence(300), say("hello"), tail_ms=4000)
    assert scene.spoken == ["Fine."]
    assert "VA480" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in repr(scene.events) + repr(scene.traces)
    assert isinstance(scene.thinker, FakeThinker)
