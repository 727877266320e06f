"""One streamed reply of a remote model: words, time-outs, refusals, and leaving at once."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import httpx2
import pytest

from engine.sampling import SamplingParams
from tests.support.scripted_openai import Answer, ScriptedOpenAI, event
from tests.support.virtual_loop import VirtualLoop, run_virtual
from voice_agent.context import Prompt, Role
from voice_agent.llm_section import RemoteSection
from voice_agent.remote import RemoteThinker, RemoteThinking
from voice_agent.remote_wire import RemoteError
from voice_agent.scope import CancelScope

pytestmark = pytest.mark.unit

PROMPT = Prompt(((Role.SYSTEM, "Be brief."), (Role.USER, "What time is it?")), ())
KEY = "sk-do-not-show-me"


class Reply:
    """What came of one reply, in virtual time."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.scope = CancelScope("reply")
        self.texts: list[str] = []
        self.at_s: list[float] = []
        self.finish: str | None = None
        self.error: RemoteError | None = None
        self.took_s = 0.0
        self.thinking: RemoteThinking | None = None


def ask(
    server: ScriptedOpenAI,
    sampling: SamplingParams | None = None,
    on_text: Callable[[Reply], Awaitable[None]] | None = None,
    **settings: object,
) -> Reply:
    reply = Reply()
    section = {"base_url": "http://scripted/v1", "model": "m", "api_key": KEY, **settings}
    remote = RemoteSection.model_validate(section)

    async def run() -> None:
        thinker = RemoteThinker("far", remote, reply.loop, transport=server.transport)
        reply.thinking = thinker.think(
            PROMPT, sampling or SamplingParams(), call="c", tenant="t", deadline_s=0.0,
            scope=reply.scope,
        )  # fmt: skip
        start = reply.loop.now()
        try:
            async with aclosing(reply.thinking.__aiter__()) as thoughts:
                async for thought in thoughts:
                    reply.texts.append(thought.text)
                    reply.at_s.append(reply.loop.now() - start)
                    reply.finish = thought.finish
                    if on_text is not None:
                        await on_text(reply)
        except RemoteError as e:
            reply.error = e
        reply.took_s = reply.loop.now() - start
        assert server.running == 0, "nothing is left running"
        await thinker.close()

    run_virtual(run(), reply.loop)
    return reply


def test_text_comes_as_it_is_made_and_usage_with_it() -> None:
    usage = {
        "prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 16},
    }  # fmt: skip
    server = ScriptedOpenAI(Answer([0.2, "It is ", 0.3, "noon."], usage=usage))
    reply = ask(server)
    assert (reply.error, reply.texts, reply.finish) == (None, ["It is ", "noon.", ""], "stop")
    assert reply.at_s == pytest.approx([0.2, 0.5, 0.5])
    assert reply.thinking is not None
    u = reply.thinking.usage
    assert (u.prompt_tokens, u.cached_tokens, u.output_tokens) == (20, 16, 5)
    assert server.cancelled == 0


def test_the_request_says_what_the_agent_wants() -> None:
    server = ScriptedOpenAI()
    ask(server, SamplingParams(temperature=0.7, top_p=0.9, seed=5, max_tokens=99))
    (body,) = server.requests
    assert body == {
        "model": "m", "stream": True, "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What time is it?"},
        ],
        "temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 99,
    }  # fmt: skip
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_settings_of_the_endpoint() -> None:
    server = ScriptedOpenAI()
    ask(
        server, api_key="", limit_field="max_completion_tokens",
        extra={"chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip
    (body,) = server.requests
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == SamplingParams().max_tokens
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert "authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("answer", "after_s"),
    [(Answer(head_s=60.0), 1.5), (Answer([60.0, "late"]), 1.5), (Answer(["So ", 60.0, "x"]), 3.0)],
)
def test_a_slow_answer_is_given_up_and_the_server_sees_it(answer: Answer, after_s: float) -> None:
    server = ScriptedOpenAI(answer)
    reply = ask(server)
    assert reply.error is not None
    assert reply.error.code == "VA482"
    assert reply.took_s == pytest.approx(after_s)
    assert server.cancelled == 1


def test_what_is_not_spoken_is_no_text() -> None:
    """Reasoning, roles, keep-alive comments and calls of tools do not keep a slow answer alive."""
    thinking = event({"choices": [{"delta": {"role": "assistant", "reasoning_content": "Hm."}}]})
    raw = b": ping\r\n\r\n" + thinking + event({"choices": [{"delta": {"content": None}}]})
    reply = ask(ScriptedOpenAI(Answer(body=raw + event({"choices": [{"finish_reason": "stop"}]}))))
    assert reply.error is not None
    assert "without a word" in str(reply.error)


def test_the_listener_may_be_slower_than_the_model() -> None:
    async def speak(reply: Reply) -> None:
        await asyncio.sleep(20.0)

    reply = ask(ScriptedOpenAI(Answer(["One. ", "Two. ", 1.0, "Three."])), on_text=speak)
    assert reply.error is None
    assert "".join(reply.texts) == "One. Two. Three."


class _LoopClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time


@pytest.mark.parametrize(
    ("status", "code", "of_request"),
    [
        (400, "VA480", True), (401, "VA480", False), (404, "VA480", False), (422, "VA480", True),
        (429, "VA484", False), (408, "VA483", False), (500, "VA483", False), (302, "VA483", False),
    ],
)  # fmt: skip
def test_refusals(status: int, code: str, of_request: bool) -> None:
    body = json.dumps({"error": {"message": f"bad key {KEY}, sorry"}}).encode()
    reply = ask(ScriptedOpenAI(Answer(status=status, body=body)))
    assert reply.error is not None
    assert (reply.error.code, reply.error.of_request) == (code, of_request)
    assert "sorry" in reply.error.detail
    assert "sorry" not in str(reply.error), "the endpoint's words are for operators"
    assert KEY not in reply.error.detail


@pytest.mark.parametrize(
    "answer",
    [
        Answer(["It is "], cut=True),
        Answer(["It is "], finish=None, body=event({"choices": [{"delta": {"content": "It"}}]})),
        Answer(body=event({"error": {"message": "out of memory", "code": 500}})),
        Answer(body=b"data: {not json\n\n"),
        Answer(body=b"data: [1, 2]\n\n"),
        Answer(body=b'data: {"choices": 3}\n\n'),
        Answer(body=b"data: " + b"x" * 2_000_000),
        Answer(body=b'{"choices": []}', content_type="application/json"),
        Answer(steps=()),
    ],
)
def test_answers_that_are_none(answer: Answer) -> None:
    reply = ask(ScriptedOpenAI(answer))
    assert reply.error is not None
    assert reply.error.code == "VA483"


class _Dropping(ScriptedOpenAI):
    """Its first n connections end before an answer."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._n = n

    @property
    def transport(self) -> httpx2.AsyncBaseTransport:
        inner, outer = super().transport, self

        class Transport(httpx2.AsyncBaseTransport):
            async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
                outer._n -= 1
                if outer._n >= 0:
                    raise httpx2.RemoteProtocolError("gone")
                return await inner.handle_async_request(request)

        return Transport()


def test_a_dropped_connection_is_tried_once_more() -> None:
    reply = ask(_Dropping(1))
    assert "".join(reply.texts) == "It is noon."
    reply = ask(_Dropping(2))
    assert reply.error is not None
    assert reply.error.code == "VA483"


def test_cancel_while_waiting_leaves_at_once() -> None:
    server = ScriptedOpenAI(Answer(["It ", 60.0, "is"]))

    async def cancel(reply: Reply) -> None:
        asyncio.get_running_loop().call_later(0.5, reply.scope.cancel)

    reply = ask(server, on_text=cancel)
    assert (reply.error, reply.texts) == (None, ["It "])
    assert reply.took_s == pytest.approx(0.5)
    assert server.cancelled == 1


def test_cancel_before_the_first_word_and_before_the_request() -> None:
    server = ScriptedOpenAI(Answer(head_s=60.0))
    reply = Reply()

    async def run() -> None:
        remote = RemoteSection(base_url="http://scripted/v1", model="m", first_token_s=20.0)
        thinker = RemoteThinker("far", remote, reply.loop, transport=server.transport)
        asyncio.get_running_loop().call_later(0.25, reply.scope.cancel)
        for _ in range(2):
            thinking = thinker.think(
                PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=reply.scope
            )
            assert [t async for t in thinking] == []
        reply.took_s = reply.loop.now() - 1000.0

    run_virtual(run(), reply.loop)
    assert reply.took_s == pytest.approx(0.25)
    assert (len(server.requests), server.cancelled, server.running) == (1, 1, 0)


def test_prepare_asks_for_one_token_and_is_patient() -> None:
    server = ScriptedOpenAI(Answer(steps=(), head_s=8.0, finish="length"))
    loop = VirtualLoop()

    async def run() -> None:
        remote = RemoteSection(base_url="http://scripted/v1/", model="m")
        thinker = RemoteThinker("far", remote, loop, transport=server.transport)
        await thinker.prepare(Prompt(((Role.SYSTEM, "Hi."),), ()), agent="a", tenant="t")
        server.answers = [Answer(status=404, body=b'{"error": "no such model"}')]
        with pytest.raises(RemoteError, match="VA480") as caught:
            await thinker.prepare(Prompt(((Role.SYSTEM, "Hi."),), ()), agent="a", tenant="t")
        assert caught.value.detail == "HTTP 404 no such model"

    run_virtual(run(), loop)
    assert server.requests[0]["max_tokens"] == 1


def test_no_key_in_logs_or_records(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        reply = ask(ScriptedOpenAI(Answer(status=401, body=KEY.encode())))
    assert KEY not in caplog.text
    assert KEY not in repr(reply.error)
    assert KEY not in repr(RemoteSection(api_key=KEY))


async def test_over_a_socket_the_server_sees_the_cancel() -> None:
    server = ScriptedOpenAI(Answer(["It ", "is ", 600.0, "noon."]), Answer())
    async with server.listening() as url:
        clock = asyncio.get_running_loop()
        remote = RemoteSection(base_url=url, model="m", first_token_s=30.0, stall_s=30.0)
        thinker = RemoteThinker("far", remote, _LoopClock(clock))
        scope = CancelScope("reply")
        thinking = thinker.think(
            PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=scope
        )
        texts = []
        async for thought in thinking:
            texts.append(thought.text)
            if len(texts) == 2:
                clock.call_soon(scope.cancel)
        assert texts == ["It ", "is "]
        while server.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert server.cancelled == 1
        again = thinker.think(
            PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0,
            scope=CancelScope("next"),
        )  # fmt: skip
        assert "".join([t.text async for t in again]) == "It is noon."
        await thinker.close()


async def test_a_call_may_be_interrupted_again_and_again() -> None:
    """As a call does it: the scope cancels the task and then the reply. No connection is lost."""
    server = ScriptedOpenAI(Answer(["It ", "is ", 600.0, "noon."]))
    async with server.listening() as url:
        loop = asyncio.get_running_loop()
        remote = RemoteSection(
            base_url=url, model="m", connect_s=10.0, first_token_s=30.0, stall_s=30.0
        )
        thinker = RemoteThinker("far", remote, _LoopClock(loop), max_connections=2)

        async def read(scope: CancelScope, texts: list[str]) -> None:
            thinking = thinker.think(
                PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=scope
            )
            async with aclosing(thinking.__aiter__()) as thoughts:
                async for thought in thoughts:
                    texts.append(thought.text)
                    if len(texts) == 2:
                        loop.call_soon(scope.cancel)

        for _ in range(10):
            scope, texts = CancelScope("reply"), list[str]()
            task = asyncio.create_task(read(scope, texts))
            scope.on_cancel(task.cancel)  # type: ignore[arg-type]
            await asyncio.wait({task})
            assert texts == ["It ", "is "]
        while server.running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert server.cancelled == 10
        server.answers = [Answer()]
        texts = []
        await read(CancelScope("last"), texts)
        assert "".join(texts) == "It is noon."
        await thinker.close()


async def test_nobody_listens() -> None:
    remote = RemoteSection(base_url="http://127.0.0.1:9/v1", model="m")
    thinker = RemoteThinker("far", remote, _LoopClock(asyncio.get_running_loop()))
    thinking = thinker.think(
        PROMPT, SamplingParams(), call="c", tenant="t", deadline_s=0.0, scope=CancelScope("x")
    )
    with pytest.raises(RemoteError, match="VA481"):
        _ = [t async for t in thinking]
    await thinker.close()
