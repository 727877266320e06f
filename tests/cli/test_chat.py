"""`voice-agent chat` over whatever answers, without a terminal."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.scripted_openai import Answer, ScriptedOpenAI
from voice_agent.agent_file import AgentFile
from voice_agent.brain import Brain
from voice_agent.cli.chat import chat
from voice_agent.clock import MonotonicClock
from voice_agent.errors import UsageError
from voice_agent.fallback import Backend, FallbackThinker
from voice_agent.llm_section import RemoteSection
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.remote import RemoteThinker

pytestmark = pytest.mark.unit

AGENT = AgentFile(name="test", instructions="Be brief.", greeting="Hello.")


def brain(server: ScriptedOpenAI) -> Brain:
    clock = MonotonicClock()
    remote = RemoteSection(base_url="http://far/v1", model="m")
    far = RemoteThinker("primary", remote, clock, transport=server.transport)
    thinker = FallbackThinker(Backend("primary", far), None, clock, cooldown_s=1.0, probe_s=1.0)
    return Brain(thinker, PlainChat(), PlainTokenizer(), 30_000, "characters", None)


def test_lines_are_answered_and_remembered() -> None:
    server = ScriptedOpenAI(Answer(["Hi"]), Answer(["It is ", "noon."]), Answer(["Bye."]))
    lines = iter(["what time is it", "thanks", None])
    out: list[str] = []
    talk = chat(brain(server), AGENT, MonotonicClock(), lambda _: next(lines), out.append)
    asyncio.run(talk)
    assert "".join(out) == "test: Hello.\ntest: It is noon.\ntest: Bye.\n"
    said = [(m["role"], m["content"]) for m in server.requests[-1]["messages"]]
    assert said == [
        ("system", "Be brief."), ("assistant", "Hello."), ("user", "what time is it"),
        ("assistant", "It is noon."), ("user", "thanks"),
    ]  # fmt: skip


def test_an_endpoint_that_does_not_answer_is_an_error_before_the_first_line() -> None:
    server = ScriptedOpenAI(Answer(status=404))
    talk = chat(brain(server), AGENT, MonotonicClock(), lambda _: pytest.fail("asked"), print)
    with pytest.raises(UsageError, match="VA485"):
        asyncio.run(talk)
