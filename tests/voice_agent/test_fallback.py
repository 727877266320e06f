"""Who is asked first, who takes over, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from engine.errors import CapacityError
from engine.sampling import SamplingParams
from tests.support.fakes import FakeThinker
from tests.support.scripted_openai import Answer, ScriptedOpenAI
from tests.support.virtual_loop import VirtualLoop, run_virtual
from voice_agent.context import Prompt, Role
from voice_agent.errors import InternalError, UsageError, VoiceAgentError
from voice_agent.fallback import Backend, FallbackThinker
from voice_agent.llm_section import RemoteSection
from voice_agent.remote import RemoteThinker
from voice_agent.scope import CancelScope
from voice_agent.think import Source, Thought

pytestmark = pytest.mark.unit

PROMPT = Prompt(((Role.USER, "hello"),), tuple(map(ord, "hello")))
OK = Answer(["It is ", "noon."])
BROKEN = Answer(status=500)
STALLS = Answer(head_s=60.0)


class Two:
    """Two scripted endpoints, one behind the other, in virtual time."""

    def __init__(self, first: Sequence[Answer], second: Sequence[Answer] | None = (OK,)) -> None:
        self.loop = VirtualLoop()
        self.first = ScriptedOpenAI(*first)
        self.second = ScriptedOpenAI(*second) if second is not None else None
        self.thinker = FallbackThinker(
            self._backend("primary", self.first),
            self._backend("second", self.second) if self.second else None,
            self.loop,
            cooldown_s=10.0,
            probe_s=1.5,
        )
        self.thoughts: list[Thought] = []
        self.source = Source("")

    def _backend(self, name: str, server: ScriptedOpenAI) -> Backend:
        remote = RemoteSection(base_url="http://scripted/v1", model="m")
        return Backend(name, RemoteThinker(name, remote, self.loop, transport=server.transport))

    def run(self, *steps: Coroutine[Any, Any, None]) -> None:
        async def all_steps() -> None:
            for step in steps:
                await step

        run_virtual(all_steps(), self.loop)

    async def ask(self, *, keep: bool = False, scope: CancelScope | None = None) -> None:
        self.thoughts = []
        thinking = self.thinker.think(
            PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0,
            scope=scope or CancelScope("reply"),
        )  # fmt: skip
        try:
            async with aclosing(thinking.__aiter__()) as thoughts:
                async for thought in thoughts:
                    self.thoughts.append(thought)
                    if keep:
                        thinking.keep()
        finally:
            self.source = thinking.source

    async def expect(self, code: str) -> None:
        with pytest.raises(VoiceAgentError) as caught:
            await self.ask()
        assert caught.value.code == code

    @property
    def text(self) -> str:
        """As a reply joins it."""
        out = ""
        for thought in self.thoughts:
            out = thought.text if thought.fresh else out + thought.text
        return out

    async def must_be(self, backend: str, text: str = "It is noon.") -> None:
        assert (self.source.backend, self.text) == (backend, text)


def test_a_working_first_backend_is_the_only_one_asked() -> None:
    two = Two([OK])
    two.run(two.ask())
    assert (two.text, two.source) == ("It is noon.", Source("primary"))
    assert two.second is not None
    assert two.second.requests == []


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (BROKEN, "VA483"),
        (STALLS, "VA482"),
        (Answer(["Well, ", 60.0]), "VA482"),
        (Answer(["Well, "], cut=True), "VA483"),
        (Answer(steps=()), "VA483"),
        (Answer(status=429), "VA484"),
        (Answer(status=401), "VA480"),
    ],
)
def test_the_second_takes_over_and_the_first_text_is_forgotten(first: Answer, why: str) -> None:
    two = Two([first])
    two.run(two.ask())
    assert two.text == "It is noon."
    assert two.source.backend == "second"
    assert two.source.fallback.startswith(why)
    assert [t.fresh for t in two.thoughts].count(True) == 1
    assert two.first.running == 0


def test_after_the_first_clause_nobody_takes_over() -> None:
    two = Two([Answer(["Well, ", 60.0])])

    async def speaks() -> None:
        with pytest.raises(InternalError, match="VA482"):
            await two.ask(keep=True)

    two.run(speaks())
    assert two.second is not None
    assert two.second.requests == []


def test_both_failing_is_one_error_with_both_reasons() -> None:
    two = Two([STALLS], [BROKEN])

    async def fails() -> None:
        with pytest.raises(InternalError, match=r"VA486.*VA482.*VA483"):
            await two.ask()

    two.run(fails())


def test_alone_its_own_error_is_raised() -> None:
    two = Two([BROKEN, OK], None)
    two.run(two.expect("VA483"), two.ask())
    assert (two.text, two.source) == ("It is noon.", Source("primary"))


def test_a_failed_backend_rests_and_is_tried_again() -> None:
    two = Two([BROKEN, OK])

    async def turns() -> None:
        await two.ask()
        await two.must_be("second")
        await two.ask()
        await two.must_be("second")
        assert len(two.first.requests) == 1, "the second turn did not wait for it"
        assert two.source.fallback.startswith("resting after VA483")
        assert two.thinker.gauges()["llm_first_down"] == 1.0
        await asyncio.sleep(10.0)
        for _ in range(2):
            await two.ask()
            await two.must_be("primary")

    two.run(turns())
    assert two.source.fallback == ""
    assert two.thinker.gauges() == {
        "llm_replies": 4.0, "llm_failed": 1.0, "llm_fallbacks": 2.0, "llm_first_down": 0.0,
    }  # fmt: skip


def test_one_reply_probes_while_the_others_keep_the_second() -> None:
    two = Two([BROKEN, STALLS])

    async def probing() -> None:
        await two.ask()
        await asyncio.sleep(10.0)
        start = two.loop.now()
        probe = asyncio.create_task(two.ask())
        await asyncio.sleep(0.1)
        await two.ask()
        assert two.loop.now() - start == pytest.approx(0.1), "it did not wait for the probe"
        await probe
        assert two.loop.now() - start == pytest.approx(1.5)

    two.run(probing())
    assert len(two.first.requests) == 2


def test_while_it_rests_it_still_stands_behind_the_second() -> None:
    two = Two([BROKEN, OK], [OK, BROKEN])
    two.run(two.ask(), two.must_be("second"), two.ask(), two.must_be("primary"))
    assert "VA483" in two.source.fallback


def test_a_refused_request_is_not_the_backends_fault() -> None:
    two = Two([Answer(status=400), OK])
    two.run(two.ask(), two.must_be("second"), two.ask(), two.must_be("primary"))


def test_a_cancelled_reply_asks_nobody_else() -> None:
    two = Two([STALLS])
    scope = CancelScope("reply")

    async def leave() -> None:
        asyncio.get_running_loop().call_later(0.4, scope.cancel)
        start = two.loop.now()
        await two.ask(scope=scope)
        assert two.loop.now() - start == pytest.approx(0.4)

    two.run(leave())
    assert two.thoughts == []
    assert (two.first.cancelled, two.first.running) == (1, 0)
    assert two.second is not None
    assert two.second.requests == []
    assert two.thinker.gauges()["llm_first_down"] == 0.0


def test_a_failure_of_a_cancelled_reply_counts_for_nothing() -> None:
    loop = VirtualLoop()
    broken, good = FakeThinker(lambda _: ""), FakeThinker(lambda _: "Fine.")
    broken.fail = True
    thinker = FallbackThinker(
        Backend("primary", broken), Backend("second", good), loop, cooldown_s=1.0, probe_s=1.0
    )
    scope = CancelScope("reply")

    async def run() -> None:
        loop.call_later(broken.first_s / 2, scope.cancel)
        thinking = thinker.think(
            PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=scope
        )
        assert [t async for t in thinking] == []

    run_virtual(run(), loop)
    assert good.prompts == []
    assert thinker.gauges()["llm_failed"] == 0.0


def test_an_engine_error_counts_as_any_other() -> None:
    class Full(FakeThinker):
        def think(self, *args: Any, **named: Any) -> Any:
            raise CapacityError("no room")

    loop = VirtualLoop()
    good = FakeThinker(lambda _: "Fine.")
    thinker = FallbackThinker(
        Backend("embedded", Full(lambda _: "")), Backend("second", good), loop,
        cooldown_s=1.0, probe_s=1.0,
    )  # fmt: skip

    async def run() -> str:
        thinking = thinker.think(
            PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=CancelScope("r")
        )
        text = "".join([t.text async for t in thinking])
        assert thinking.source == Source("second", "CapacityError: no room")
        thinker.forget("c")
        return text

    assert run_virtual(run(), loop) == "Fine."
    assert good.forgotten == ["c"]


def test_prepare_needs_one_of_them() -> None:
    prefix = Prompt(((Role.SYSTEM, "Hi."),), ())
    one = Two([Answer(status=404, body=b'{"error": {"message": "no model m"}}')])
    one.run(one.thinker.prepare(prefix, agent="a", tenant="t"), one.ask(), one.must_be("second"))
    assert len(one.first.requests) == 1, "it rests from the start"

    none = Two([Answer(status=404, body=b'{"error": {"message": "no model m"}}')], [BROKEN])

    async def fails() -> None:
        with pytest.raises(UsageError, match=r"VA485.*VA480.*no model m.*VA483"):
            await none.thinker.prepare(prefix, agent="a", tenant="t")

    none.run(fails())
