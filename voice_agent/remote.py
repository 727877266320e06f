"""A language model in another process: vLLM, SGLang, TensorRT-LLM, llama.cpp or a hosted one.

One streamed request of the OpenAI protocol per reply. Cancelling the reply's scope closes the
connection, which is how such servers learn that nobody listens any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import httpx2

from engine.sampling import SamplingParams

from .clock import Clock
from .context import Prompt, Role
from .llm_section import RemoteSection
from .remote_wire import (
    DONE,
    CallText,
    Chunk,
    RemoteError,
    chat_body,
    finish_of,
    parse_chunk,
    status_error,
)
from .scope import CancelScope
from .think import Ahead, Source, Thought, ThoughtUsage

T = TypeVar("T")

PREPARE_S = 30.0
"""A first request may find a model that is still being loaded or compiled."""
USAGE_S = 0.3
"""How long the token counts may follow the last word, and an error's text its status."""
ERROR_BODY_BYTES = 4096
KEEP_ALIVE_S = 60.0
"""Turns of one call are seconds apart: their connection is kept."""


class RemoteThinker:
    """Owns the connections to one endpoint. `clock` must be the running loop's time or advance
    like it. transport: another way to the server, for tests."""

    def __init__(
        self,
        name: str,
        remote: RemoteSection,
        clock: Clock,
        *,
        max_connections: int = 64,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = name
        self.remote = remote
        self._clock = clock
        headers = {"Authorization": f"Bearer {remote.api_key}"} if remote.api_key else {}
        self._client = httpx2.AsyncClient(
            base_url=remote.base_url,
            headers=headers,
            timeout=httpx2.Timeout(
                None, connect=remote.connect_s, write=remote.connect_s, pool=remote.connect_s
            ),
            limits=httpx2.Limits(
                max_connections=max_connections,
                max_keepalive_connections=max_connections,
                keepalive_expiry=KEEP_ALIVE_S,
            ),
            transport=transport,
        )

    def think(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        call: str,
        tenant: str,
        deadline_s: float,
        scope: CancelScope,
    ) -> RemoteThinking:
        body = chat_body(self.remote, prompt, sampling)
        return RemoteThinking(self.name, self.remote, self._client, body, self._clock, scope)

    def expect(self, ids: Sequence[int], *, call: str, tenant: str) -> Ahead:
        """The protocol has no word for it."""
        return Ahead()

    def forget(self, call: str) -> None:
        """What the endpoint caches is its own affair."""

    async def prepare(self, prefix: Prompt, *, agent: str, tenant: str) -> None:
        """A reply of one token: the endpoint answers, knows the model and the key, and has the
        agent's prefix in its cache if it keeps one. Raises RemoteError."""
        question = replace(prefix, messages=(*prefix.messages, (Role.USER, "Hello.")), ids=())
        patient = self.remote.model_copy(update={"first_token_s": PREPARE_S, "stall_s": PREPARE_S})
        body = chat_body(self.remote, question, SamplingParams(max_tokens=1))
        scope = CancelScope(f"prepare {agent}")
        thinking = RemoteThinking(
            self.name, patient, self._client, body, self._clock, scope, may_be_empty=True
        )
        async with aclosing(thinking.__aiter__()) as thoughts:
            async for _ in thoughts:
                pass

    async def close(self) -> None:
        await self._client.aclose()


class RemoteThinking:
    """One streamed reply."""

    def __init__(
        self,
        name: str,
        remote: RemoteSection,
        client: httpx2.AsyncClient,
        body: dict[str, Any],
        clock: Clock,
        scope: CancelScope,
        *,
        may_be_empty: bool = False,
    ) -> None:
        self._may_be_empty = may_be_empty
        self._name = name
        self._remote = remote
        self._client = client
        self._body = body
        self._clock = clock
        self._scope = scope
        self._usage: ThoughtUsage | None = None
        self._n_chunks = 0
        self._waiting: asyncio.Timeout | None = None
        scope.on_cancel(self._stop_waiting)

    async def __aiter__(self) -> AsyncGenerator[Thought]:
        """Raises RemoteError. Ends without a word once the scope is cancelled."""
        first_by_s = self._clock.now() + self._remote.first_token_s
        response = await self._wait(self._send, first_by_s)
        if response is None:
            return
        try:
            if response.status_code != 200:
                raise await self._refused(response)
            finish, calls = "stop", CallText()
            async with aclosing(self._chunks(response, first_by_s)) as chunks:
                async for chunk in chunks:
                    self._usage = chunk.usage or self._usage
                    finish = chunk.finish or finish
                    if text := chunk.text + calls.push(chunk.calls):
                        self._n_chunks += 1
                        yield Thought(text, (), None)
            if self._scope.cancelled:
                return
            if text := calls.finish():
                yield Thought(text, (), None)
            if not self._n_chunks and not self._may_be_empty:
                raise self._error("answered without a word", "VA483")
            yield Thought("", (), finish_of(finish))
        finally:
            await response.aclose()

    def set_deadline(self, deadline_s: float) -> None:
        """The protocol has no word for it."""

    def keep(self) -> None:
        """Nothing else could take over."""

    @property
    def usage(self) -> ThoughtUsage:
        """The endpoint's figures once they have come; until then pieces of text count as tokens."""
        return self._usage or ThoughtUsage(0, 0, self._n_chunks)

    @property
    def source(self) -> Source:
        return Source(self._name)

    async def _send(self) -> httpx2.Response:
        """Everything before the answer's body. A connection that had been kept may be gone: once
        more on a new one."""
        request = self._client.build_request("POST", "chat/completions", json=self._body)
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.WriteError):
            request = self._client.build_request("POST", "chat/completions", json=self._body)
            return await self._client.send(request, stream=True)

    async def _chunks(self, response: httpx2.Response, due_s: float) -> AsyncGenerator[Chunk]:
        """The stream to its end, text due at `due_s` and then every `stall_s`."""
        finished = False
        events = httpx2.EventSource(response).__aiter__()
        assert isinstance(events, AsyncGenerator)
        async with aclosing(events):
            while True:
                event = await self._wait(lambda: anext(events, None), due_s, must=not finished)
                if self._scope.cancelled:
                    return
                if event is None and not finished:
                    raise self._error("broke off its answer", "VA483")
                if event is None or event.data.strip() == DONE:
                    return
                if not event.data:
                    continue
                chunk = parse_chunk(self._name, event.data)
                yield chunk
                if chunk.text or chunk.calls:
                    due_s = self._clock.now() + self._remote.stall_s
                if chunk.finish is not None:
                    finished, due_s = True, self._clock.now() + USAGE_S

    async def _refused(self, response: httpx2.Response) -> RemoteError:
        async def beginning() -> bytes:
            body = b""
            async with aclosing(response.aiter_bytes()) as parts:
                async for part in parts:
                    body += part
                    if len(body) >= ERROR_BODY_BYTES:
                        break
            return body[:ERROR_BODY_BYTES]

        body = await self._wait(beginning, self._clock.now() + USAGE_S, must=False)
        return status_error(self._name, response.status_code, body or b"", self._remote.api_key)

    async def _wait(
        self, work: Callable[[], Awaitable[T]], due_s: float, *, must: bool = True
    ) -> T | None:
        """work's result; None when the scope was cancelled, or not in time and not a must.

        Raises RemoteError: VA482 when it is late, and for what goes wrong on the way.
        """
        if self._scope.cancelled:
            return None
        try:
            async with asyncio.timeout(max(0.0, due_s - self._clock.now())) as self._waiting:
                return await work()
        except TimeoutError:
            if self._cancelled() or not must:
                return None
            raise self._late() from None
        except httpx2.RequestError as e:
            if self._cancelled():
                return None
            raise self._lost(e) from e
        finally:
            self._waiting = None

    def _cancelled(self) -> bool:
        return self._scope.cancelled

    def _stop_waiting(self) -> None:
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(0.0)

    def _late(self) -> RemoteError:
        if self._n_chunks:
            return self._error("stopped in the middle of its answer", "VA482")
        return self._error(f"said nothing within {self._remote.first_token_s:g} s", "VA482")

    def _lost(self, error: httpx2.RequestError) -> RemoteError:
        what, code = "broke off its answer", "VA483"
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
            what, code = "cannot be reached", "VA481"
        elif isinstance(error, httpx2.PoolTimeout):
            what, code = "has no connection to spare", "VA484"
        elif isinstance(error, httpx2.SSEError):
            what = "sent something that is no answer"
        return self._error(what, code, f"{type(error).__name__}: {error}")

    def _error(self, what: str, code: str, detail: str = "") -> RemoteError:
        return RemoteError(f"the language model {self._name!r} {what}", code=code, detail=detail)
