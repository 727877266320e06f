"""The benchmark's client of a few lines, against a server that cuts its chunks anywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from loadtest.bench.llm.target import OverHttp, play
from loadtest.bench.llm.workload import Ask

pytestmark = pytest.mark.unit

ASK = Ask((5, 6, 7), 3)


def stream(*texts: str, tokens: int) -> bytes:
    events = [{"choices": [{"text": text}]} for text in texts]
    events.append(
        {
            "choices": [],
            "usage": {
                "completion_tokens": tokens,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        }
    )
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def asked(answer: bytes, head: str, check: Callable[[dict], None] = lambda body: None):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        length = int(request.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        check(json.loads(await reader.readexactly(length)))
        writer.write(head.encode() + answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return (await play(OverHttp("x", port, model="m"), [ASK]))[0]


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_text_and_usage_come_through_whatever_the_chunks(size: int) -> None:
    seen: list[dict] = []
    reply = await asked(
        chunked(stream("", "Hi", " you", tokens=3), size),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        seen.append,
    )
    assert not reply.error
    assert (reply.n_tokens, reply.n_cached, len(reply.times)) == (3, 2, 2)
    assert reply.first_text_s == reply.times[0], "the empty first piece is no text"
    assert seen[0]["prompt"] == [5, 6, 7]
    assert (seen[0]["max_tokens"], seen[0]["ignore_eos"], seen[0]["model"]) == (3, True, "m")


async def test_a_body_without_chunks_is_read_to_its_end() -> None:
    reply = await asked(stream("a", "b", "c", tokens=3), "HTTP/1.1 200 OK\r\n\r\n")
    assert (reply.error, reply.n_tokens) == ("", 3)


async def test_too_few_tokens_a_refusal_and_a_broken_stream_are_errors() -> None:
    short = await asked(stream("a", tokens=1), "HTTP/1.1 200 OK\r\n\r\n")
    assert "1 tokens came, 3 were asked for" in short.error
    refused = await asked(b"too many", "HTTP/1.1 429 Busy\r\n\r\n")
    assert "429" in refused.error
    assert "too many" in refused.error
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    broken = await asked(b"ff\r\ndata", head)
    assert broken.error
