"""Whoever answers: our engine in this process, or a server over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Protocol

from engine.client import Engine
from engine.errors import EngineError
from engine.sampling import SamplingParams
from loadtest.bench.llm.measure import Reply
from loadtest.bench.llm.workload import Ask


class Target(Protocol):
    """Answers greedily with exactly `n_out` tokens, ends of sentence or not."""

    name: str

    async def answer(self, ask: Ask) -> Reply: ...


async def play(target: Target, asks: Sequence[Ask]) -> list[Reply]:
    """Send each at its time and wait for all."""
    start = time.perf_counter()

    async def one(ask: Ask) -> Reply:
        await asyncio.sleep(max(0.0, start + ask.at_s - time.perf_counter()))
        return await target.answer(ask)

    return list(await asyncio.gather(*(one(ask) for ask in asks)))


class InProcess:
    """Through `Engine.submit`."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine

    async def answer(self, ask: Ask) -> Reply:
        reply = Reply(time.perf_counter())
        try:
            generation = self.engine.submit(
                ask.prompt, SamplingParams(max_tokens=ask.n_out, ignore_eos=True)
            )
        except EngineError as error:
            reply.error = str(error)
            return reply
        async for delta in generation:
            now = time.perf_counter()
            if delta.token_ids:
                reply.times.append(now)
                reply.n_tokens += len(delta.token_ids)
            if reply.first_text_s is None and delta.text:
                reply.first_text_s = now
        reply.n_cached = generation.usage.cached_tokens
        if generation.error is not None:
            reply.error = str(generation.error)
        return reply


class OverHttp:
    """Through a server's `/v1/completions`, prompts as token ids, streamed."""

    def __init__(self, name: str, port: int, *, model: str = "bench") -> None:
        self.name = name
        self._port = port
        self._model = model

    async def answer(self, ask: Ask) -> Reply:
        reply = Reply(time.perf_counter())
        try:
            async for event in self.events(ask):
                _note(reply, event)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            reply.error = f"{type(error).__name__}: {error}"
        if not reply.error and reply.n_tokens < ask.n_out:
            reply.error = f"{reply.n_tokens} tokens came, {ask.n_out} were asked for"
        return reply

    def events(self, ask: Ask) -> AsyncGenerator[dict[str, Any]]:
        """The reply's events; closing the generator closes the connection."""
        body = {
            "model": self._model, "prompt": list(ask.prompt), "max_tokens": ask.n_out,
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        return _events(self._port, json.dumps(body).encode())


def _note(reply: Reply, event: dict[str, Any]) -> None:
    now = time.perf_counter()
    if "error" in event:
        reply.error = str(event["error"])
        return
    usage = event.get("usage")
    if usage:
        reply.n_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        reply.n_cached = details.get("cached_tokens") or 0
    for choice in event.get("choices", ()):
        if choice.get("text"):
            reply.times.append(now)
            if reply.first_text_s is None:
                reply.first_text_s = now


async def _events(port: int, body: bytes) -> AsyncGenerator[dict[str, Any]]:
    """Server-sent events of one POST. A client of a few lines: it shares the server's cores."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        status = (await reader.readline()).split(b" ")
        chunked = False
        while (line := (await reader.readline()).strip().lower()) != b"":
            chunked |= line.startswith(b"transfer-encoding") and b"chunked" in line
        if status[1:2] != [b"200"]:
            rest = await reader.read(400)
            raise ValueError(f"status {status[1:2]}: {rest.decode('utf-8', 'replace')}")
        left = b""
        async for piece in _pieces(reader, chunked):
            *lines, left = (left + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and b"[DONE]" not in line:
                    yield json.loads(line[6:])
    finally:
        writer.close()


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while True:
        if not chunked:
            piece = await reader.read(65536)
        else:
            size = int(await reader.readline() or b"0", 16)
            piece = (await reader.readexactly(size + 2))[:-2] if size else b""
        if not piece:
            return
        yield piece
