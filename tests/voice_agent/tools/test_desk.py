"""Tools of a call in virtual time: when they run, what enters the history, what is spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fakes import Scene, cough, say, silence, tool_call
from voice_agent.agent import Call
from voice_agent.events import (
    CallFault,
    EndReason,
    ReplyDone,
    ReplyStatus,
    ToolFinished,
    ToolStarted,
    TurnCommitted,
    TurnTraced,
)
from voice_agent.scope import CancelScope
from voice_agent.tools.base import AskedCall
from voice_agent.tools.exchange import SPEAK, Use
from voice_agent.tools.python import from_function, tool
from voice_agent.trace import Mark
from voice_agent.types import OUT_RATE

pytestmark = pytest.mark.unit

LONG = "one two three four five six seven eight nine ten, eleven twelve."


class Bench:
    """A scene whose agent has the tools `look` (changes nothing) and `book` (does)."""

    def __init__(
        self,
        reply: Callable[[str], str],
        *,
        took_s: float = 0.2,
        cancel: bool = False,
        **tools: Any,
    ) -> None:
        self.ran: list[tuple[str, float]] = []
        self.cut: list[str] = []

        async def work(name: str, result: str) -> str:
            self.ran.append((name, scene.loop.now()))
            try:
                await asyncio.sleep(took_s)
            except asyncio.CancelledError:
                self.cut.append(name)
                raise
            return result

        @tool(read_only=True)
        async def look(place: str = "here") -> str:
            """Look."""
            return await work("look", f"sunny {place}")

        @tool(on_interrupt="cancel" if cancel else "finish")
        async def book(day: str) -> str:
            """Book."""
            return await work("book", f"booked {day}")

        scene = self.scene = Scene(reply, tools={"python": (look, book), "fillers": (), **tools})

    def at(self, kind: type) -> list[float]:
        return [t for t, e in self.scene.events if isinstance(e, kind)]

    @property
    def committed_s(self) -> float:
        return self.at(TurnCommitted)[0]

    @property
    def spoken(self) -> list[str]:
        return [e.heard for e in self.scene.of(ReplyDone) if e.heard]


def answers(first: str, then: str = "It is done.") -> Callable[[str], str]:
    """`first` to the caller, `then` to results."""

    def reply(asked: str) -> str:
        return then if asked.startswith(("sunny", "booked", "error", "cancelled")) else first

    return reply


def test_a_tool_runs_and_its_result_is_spoken_of() -> None:
    bench = Bench(answers(tool_call("look", '{"place": "there"}'), "It is sunny."))
    bench.scene.play(silence(300), say("weather today"))
    assert bench.spoken == ["It is sunny."]
    assert bench.scene.history == [
        ("user", "weather today"), ("assistant", ""), ("tool", "sunny there"),
        ("assistant", "It is sunny."),
    ]  # fmt: skip
    (finished,) = bench.scene.of(ToolFinished)
    assert (finished.name, finished.outcome, finished.result) == ("look", "done", "sunny there")
    (traced,) = bench.scene.of(TurnTraced)
    assert [span.name for span in traced.trace.tools] == ["look"]
    assert (traced.trace.outcome, traced.trace.heard) == ("spoken", "It is sunny.")
    assert bench.scene.of(CallFault) == []


def test_early_work_that_reaches_a_tool_waits_for_the_commit() -> None:
    bench = Bench(answers(tool_call("look")))
    bench.scene.play(silence(300), say("weather"), silence(250), say("today"))
    asked = [
        p for p in bench.scene.thinker.prompts if p.rsplit("<u>", 1)[-1].startswith("weather|")
    ]
    assert asked, "the first pause was thought about"
    assert [name for name, _ in bench.ran] == ["look"]
    assert bench.ran[0][1] >= bench.committed_s


def test_what_changes_nothing_starts_at_commit() -> None:
    bench = Bench(answers(tool_call("look")))
    bench.scene.play(silence(300), say("weather"))
    assert bench.ran[0][1] == pytest.approx(bench.committed_s, abs=0.021)


def test_anything_else_waits_half_a_second_without_speech() -> None:
    bench = Bench(answers(tool_call("book", '{"day": "now"}')))
    bench.scene.play(silence(300), say("tell me"))
    assert bench.ran[0][1] - bench.committed_s == pytest.approx(0.5, abs=0.045)


def test_or_for_the_first_sound_of_the_answer() -> None:
    bench = Bench(answers("Sure." + tool_call("book", '{"day": "now"}')))
    bench.scene.play(silence(300), say("tell me"))
    first_s = bench.scene.of(TurnTraced)[0].trace.marks[Mark.FIRST_SOUND]
    assert first_s - bench.committed_s < 0.4
    assert bench.ran[0][1] - first_s == pytest.approx(0.0, abs=0.045)
    assert bench.spoken == ["Sure.", "It is done."]


def test_a_caller_who_goes_on_within_the_grace_time_stops_it() -> None:
    bench = Bench(answers(tool_call("book", '{"day": "now"}')), took_s=0.1)
    bench.scene.thinker.reply = lambda asked: (
        tool_call("book", '{"day": "now"}') if asked == "tell me" else "Fine."
    )
    bench.scene.play(silence(300), say("tell me"), silence(900), say("more please"))
    assert bench.ran == []
    assert [e.text for e in bench.scene.of(TurnCommitted)][-1] == "tell me more please"
    assert all(role != "tool" for role, _ in bench.scene.history)


def test_a_cough_within_the_grace_time_only_delays_it() -> None:
    bench = Bench(answers(tool_call("book", '{"day": "now"}')))
    bench.scene.play(silence(300), say("tell me"), silence(1300), cough(250), tail_ms=4000)
    assert len(bench.ran) == 1
    assert bench.ran[0][1] - bench.committed_s > 0.6
    assert bench.spoken == ["It is done."]


@pytest.mark.parametrize("after_ms", range(1500, 2300, 100))
def test_barge_in_inside_streamed_arguments_runs_nothing_and_breaks_nothing(after_ms: int) -> None:
    call = tool_call("book", '{"day": "' + "x" * 3000 + '"}')
    bench = Bench(lambda asked: f"Well, {LONG}{call}" if asked == "hello" else "Fine.")
    bench.scene.play(silence(300), say("hello"), silence(after_ms), say("stop please"))
    assert bench.ran == []
    assert bench.scene.of(CallFault) == []
    assert bench.spoken[-1] == "Fine."
    assert "tool_call" not in " ".join(bench.spoken)


def test_a_result_after_an_interruption_enters_once_and_the_next_answer_has_it() -> None:
    bench = Bench(
        lambda asked: "I see." if asked == "stop please" else LONG + tool_call("look"), took_s=1.0
    )
    bench.scene.play(silence(300), say("hello"), silence(1000), say("stop please"))
    roles = [role for role, _ in bench.scene.history]
    assert roles.count("tool") == 1
    assert bench.scene.history[-3:] == [
        ("tool", "sunny here"), ("user", "stop please"), ("assistant", "I see."),
    ]  # fmt: skip
    assert bench.scene.history[1][0] == "assistant"
    assert LONG.startswith(bench.scene.history[1][1])
    assert bench.spoken[-1] == "I see.", "the answer had the result: no other follows"


def test_a_result_that_comes_after_the_next_answer_is_told_as_soon_as_it_is_there() -> None:
    def reply(asked: str) -> str:
        if asked == "stop please":
            return "I see."
        return "It was sunny." if "sunny" in asked else LONG + tool_call("look")

    bench = Bench(reply, took_s=5.0)
    bench.scene.thinker.reply = reply
    bench.scene.play(silence(300), say("hello"), silence(1000), say("stop please"), tail_ms=7000)
    texts = [text for _, text in bench.scene.history]
    assert sum("still running" in text for text in texts) == 1
    assert texts.count("Result of look: sunny here") == 1
    asked = bench.scene.thinker.prompts[-1]
    assert asked.count("sunny here") == 1


def test_a_tool_that_may_be_cancelled_is_when_the_caller_takes_the_floor() -> None:
    bench = Bench(
        lambda asked: "I see." if "stop" in asked else LONG + tool_call("book", '{"day": "now"}'),
        took_s=9.0,
        cancel=True,
    )
    bench.scene.play(silence(300), say("hello"), silence(1600), say("stop please"))
    assert bench.cut == ["book"]
    assert [e.outcome for e in bench.scene.of(ToolFinished)] == ["cancelled"]
    assert sum(text.startswith("cancelled") for _, text in bench.scene.history) == 1


def test_a_tool_that_takes_too_long_is_spoken_of() -> None:
    bench = Bench(answers(tool_call("look"), "That takes too long."), took_s=60.0, timeout_s=2.0)
    bench.scene.play(silence(300), say("hello"), tail_ms=6000)
    assert bench.spoken == ["That takes too long."]
    assert [e.outcome for e in bench.scene.of(ToolFinished)] == ["late"]
    assert ("tool", "error: no answer within 2 seconds") in bench.scene.history
    assert bench.cut == ["look"]


def test_a_filler_is_spoken_while_the_caller_waits() -> None:
    bench = Bench(answers(tool_call("look"), "It is sunny."), took_s=3.0, fillers=("One moment.",))
    bench.scene.play(silence(300), say("hello"), tail_ms=7000)
    assert bench.spoken == ["One moment.", "It is sunny."]
    (traced,) = bench.scene.of(TurnTraced)
    waited = traced.trace.marks[Mark.FIRST_SOUND] - bench.committed_s
    assert 1.2 <= waited <= 1.35
    assert bench.scene.history[1:3] == [("assistant", "One moment."), ("tool", "sunny here")]


def test_no_filler_for_a_quick_tool() -> None:
    bench = Bench(answers(tool_call("look"), "Yes."), took_s=0.5, fillers=("One moment.",))
    bench.scene.play(silence(300), say("hello"), tail_ms=4000)
    assert bench.spoken == ["Yes."]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (tool_call("book", "{}"), "error: wrong arguments for book"),
        (tool_call("fly", "{}"), "error: there is no tool called 'fly'"),
        ('<tool_call>\n{"name": "book", "arguments": {"day": "n', "error: the arguments of book"),
        (tool_call("look", '{"place": 3}'), "error: wrong arguments for look"),
    ],
)
def test_a_wrong_call_runs_nothing_and_is_told_to_the_model(written: str, told: str) -> None:
    bench = Bench(answers(written, "I cannot."))
    bench.scene.play(silence(300), say("hello"))
    assert bench.ran == []
    assert bench.scene.of(ToolStarted) == []
    results = [text for role, text in bench.scene.history if role == "tool"]
    assert len(results) == 1
    assert results[0].startswith(told)
    assert bench.spoken == ["I cannot."]


def test_a_model_that_calls_without_end_is_stopped_and_the_caller_told() -> None:
    bench = Bench(lambda asked: tool_call("look"), took_s=0.05)
    bench.scene.play(silence(300), say("hello"), tail_ms=9000)
    assert len(bench.ran) == 1, "the same once more is known already"
    assert "VA351" in [fault.code for fault in bench.scene.of(CallFault)]
    assert "again" in bench.spoken[-1], "a recovery, not silence"


def test_a_model_that_asks_for_what_it_knows_is_made_to_speak() -> None:
    bench = Bench(lambda asked: tool_call("book", '{"day": "Monday"}'))
    bench.scene.thinker.no_call = "It is booked."
    bench.scene.play(silence(300), say("hello"), tail_ms=6000)
    assert [name for name, _ in bench.ran] == ["book"], "nothing is done twice"
    assert bench.spoken == ["It is booked."]
    assert bench.scene.of(CallFault) == []
    assert bench.scene.history[-3:] == [
        ("tool", "booked Monday"),
        ("system", SPEAK),
        ("assistant", "It is booked."),
    ]


def test_the_same_arguments_in_another_order_are_the_same_call() -> None:
    spaced = Use(AskedCall("book", '{ "b": 1, "a": 2 }'), None, CancelScope("x"))
    sorted_ = Use(AskedCall("book", '{"a": 2, "b": 1}'), None, CancelScope("x"))
    broken = Use(AskedCall("book", '{"a": 2'), None, CancelScope("x"))
    assert spaced.key == sorted_.key != broken.key


def test_arguments_that_a_tool_does_not_name_make_no_other_call() -> None:
    def book(day: str) -> None:
        """Book."""

    python_tool = from_function(book, timeout_s=1.0, max_chars=99)
    plain = Use(AskedCall("book", '{"day": "now"}'), python_tool, CancelScope("x"))
    more = Use(AskedCall("book", '{"day": "now", "a": 2}'), python_tool, CancelScope("x"))
    assert plain.key == more.key


def test_the_same_call_in_the_next_turn_runs_again() -> None:
    bench = Bench(answers(tool_call("look"), "Sunny."), took_s=0.05)
    bench.scene.play(silence(300), say("hello"), silence(4000), say("hello"), tail_ms=5000)
    assert len(bench.ran) == 2
    assert bench.spoken == ["Sunny.", "Sunny."]


def test_after_four_steps_of_tools_the_model_must_speak() -> None:
    places = iter("abcdef")
    bench = Bench(lambda asked: tool_call("look", f'{{"place": "{next(places)}"}}'), took_s=0.05)
    bench.scene.thinker.no_call = "I looked everywhere."
    bench.scene.play(silence(300), say("hello"), tail_ms=9000)
    assert len(bench.ran) == 4
    assert bench.spoken == ["I looked everywhere."]
    assert bench.scene.of(CallFault) == []


def test_two_calls_run_side_by_side_and_one_answer_follows() -> None:
    both = tool_call("look") + "\n" + tool_call("look", '{"place": "there"}')
    bench = Bench(answers(both, "Sunny."), took_s=1.0)
    bench.scene.play(silence(300), say("hello"), tail_ms=5000)
    assert bench.ran[0][1] == bench.ran[1][1]
    assert ("tool", "sunny here\nsunny there") in bench.scene.history
    assert bench.spoken == ["Sunny."]


def test_the_prompt_after_a_tool_goes_on_from_the_one_that_called_it() -> None:
    bench = Bench(answers("Sure." + tool_call("look"), "It is sunny."))
    bench.scene.play(silence(300), say("hello"), tail_ms=4000)
    first, then = bench.scene.thinker.prompts[-2:]
    assert then.startswith(first + "Sure." + tool_call("look")), "what was generated stays cached"


def test_a_call_without_its_tags_is_remembered_with_them() -> None:
    bench = Bench(answers('{"name": "look", "arguments": {}}', "It is sunny."))
    bench.scene.play(silence(300), say("hello"), tail_ms=4000)
    assert bench.spoken == ["It is sunny."]
    assert tool_call("look") in bench.scene.thinker.prompts[-1]


def test_end_call_plays_the_last_words_to_their_end() -> None:
    scene = Scene("Goodbye then, my friend." + tool_call("end_call"), tools={"end_call": True})
    scene.play(silence(300), say("hello"), tail_ms=8000)
    assert scene.reason is EndReason.AGENT_GOODBYE
    (done,) = scene.of(ReplyDone)
    assert (done.status, done.heard) == (ReplyStatus.COMPLETED, "Goodbye then, my friend.")
    audible = sum(tick.audible for _, tick in scene.frames if tick.reply == done.reply)
    assert audible * 480 >= 4 * OUT_RATE * 200 // 1000


def test_end_call_without_words_says_the_goodbye() -> None:
    scene = Scene(tool_call("end_call"), tools={"end_call": True}, goodbye="Bye now.")
    scene.play(silence(300), say("hello"), tail_ms=8000)
    assert scene.reason is EndReason.AGENT_GOODBYE
    assert scene.history[-1] == ("assistant", "Bye now.")


class FakeLine:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.done: list[tuple[str, str, float]] = []

    async def transfer(self, target: str) -> None:
        self.done.append(("transfer", target, self.scene.loop.now()))

    async def send_dtmf(self, keys: str) -> None:
        self.done.append(("dtmf", keys, self.scene.loop.now()))


def with_line(scene: Scene) -> FakeLine:
    line = FakeLine(scene)

    def attach(call: Call) -> None:
        call.line = line

    scene.play(attach, silence(300), say("hello"), tail_ms=6000)
    return line


def test_a_transfer_waits_for_the_words_before_it() -> None:
    scene = Scene(
        "One moment, I connect you." + tool_call("transfer_call", '{"to": "sales"}'),
        tools={"transfer": {"sales": "sip:1@example.org"}},
    )
    line = with_line(scene)
    ((what, target, at_s),) = line.done
    assert (what, target) == ("transfer", "sip:1@example.org")
    (done_s,) = [t for t, e in scene.events if isinstance(e, ReplyDone)]
    assert at_s >= done_s
    assert scene.reason is EndReason.TRANSFERRED
    assert "sip:" not in " ".join(scene.thinker.prompts)


def test_keys_are_sent_and_the_model_is_told() -> None:
    def reply(asked: str) -> str:
        return "Pressed." if asked == "sent" else tool_call("send_dtmf", '{"keys": "12#"}')

    scene = Scene(reply, tools={"send_dtmf": True})
    assert [entry[:2] for entry in with_line(scene).done] == [("dtmf", "12#")]
    assert scene.history[-1] == ("assistant", "Pressed.")


def test_a_call_without_such_a_line_says_so() -> None:
    def reply(asked: str) -> str:
        return "I cannot." if "error" in asked else tool_call("transfer_call", '{"to": "sales"}')

    scene = Scene(reply, tools={"transfer": {"sales": "sip:1@example.org"}})
    scene.play(silence(300), say("hello"), tail_ms=5000)
    assert scene.history[-1] == ("assistant", "I cannot.")
    assert scene.reason is EndReason.CALLER_HUNG_UP
