"""The link's wire: what goes in comes out, however the stream is cut, and nonsense is refused."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.workers.link import (
    DOWN,
    FINISHED,
    MAX_BUNDLE,
    STUCK_BYTES,
    UP,
    DownFrame,
    Link,
    LinkError,
    Message,
    Records,
    Splitter,
    UpFrame,
    decode,
    down_frames,
    down_records,
    encode,
    up_frames,
    up_records,
)
from voice_agent.types import SILENT_IN, FrameFlag

pytestmark = pytest.mark.unit


def up(line: int, **more: int) -> UpFrame:
    pcm = np.arange(320, dtype=np.int16) + line
    return UpFrame(line, pcm, FrameFlag.CONCEALED, **more)


def same_up(a: UpFrame, b: UpFrame) -> bool:
    fields = ("line", "flag", "reply", "offset", "played", "state", "take")
    return np.array_equal(a.pcm, b.pcm) and all(getattr(a, f) == getattr(b, f) for f in fields)


def test_a_bundle_there_and_back() -> None:
    frames = [up(2), up(7, reply=3, offset=1 << 40, played=480, state=FINISHED, take=255)]
    messages: list[Message] = [{"line": 2, "type": "text", "text": "grüß"}, {"line": 0}]
    (body,) = Splitter().feed(encode(up_records(frames), messages))
    records, got = decode(body, UP)
    assert got == messages
    assert all(same_up(a, b) for a, b in zip(up_frames(records), frames, strict=True))
    voice = [DownFrame(4, 1, 960, np.full(480, 9, np.int16)), DownFrame(4, 1, 0, SILENT_IN[:7])]
    (body,) = Splitter().feed(encode(down_records(voice), []))
    back = list(down_frames(decode(body, DOWN)[0]))
    assert [(f.line, f.reply, f.offset, f.pcm.tolist()) for f in back] == [
        (f.line, f.reply, f.offset, f.pcm.tolist()) for f in voice
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=60), st.integers(1, 5))
def test_the_stream_may_be_cut_anywhere(cuts: list[int], n: int) -> None:
    stream = b"".join(encode(up_records([up(i)]), [{"line": i}]) for i in range(n))
    splitter, bundles, at = Splitter(), [], 0
    for size in [*cuts, len(stream)]:
        bundles += splitter.feed(stream[at : at + size])
        at += size
    assert [decode(b, UP)[1] for b in bundles] == [[{"line": i}] for i in range(n)]


@pytest.mark.parametrize(
    "body",
    [b"", b"\x01\0\0\0", b"\0\0\0\0{}", b"\0\0\0\0[1]", b"\0\0\0\0[", b"\xff\xff\xff\xff" * 9],
)
def test_nonsense_is_refused(body: bytes) -> None:
    with pytest.raises(LinkError):
        decode(body, UP)


@pytest.mark.parametrize("size", [0, 3, MAX_BUNDLE + 1])
def test_a_length_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(LinkError):
        Splitter().feed(size.to_bytes(4, "little") + b"x" * 8)


class Ends:
    """A core's and a worker's end, and what each has got."""

    def __init__(self) -> None:
        self.at_core: list[tuple[Records, list[Message]]] = []
        self.at_worker: list[tuple[Records, list[Message]]] = []
        self.lost = asyncio.Event()
        self.core = Link(UP, lambda r, m: self.at_core.append((r, m)), self.lost.set)
        self.worker = Link(DOWN, lambda r, m: self.at_worker.append((r, m)), lambda: None)

    async def connect(self) -> Ends:
        loop = asyncio.get_running_loop()
        a, b = socket.socketpair()
        await loop.create_unix_connection(lambda: self.core, sock=a)
        await loop.create_unix_connection(lambda: self.worker, sock=b)
        return self

    async def settle(self) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.core.close()
        self.worker.close()
        await self.settle()


async def test_a_tick_of_many_lines_is_one_bundle() -> None:
    ends = await Ends().connect()
    for line in range(40):
        ends.worker.put(up(line))
    ends.worker.tell(3, "gone", why="lost")
    await ends.settle()
    assert len(ends.at_core) == 1
    records, messages = ends.at_core[0]
    assert records["line"].tolist() == list(range(40))
    assert messages == [{"line": 3, "type": "gone", "why": "lost"}]
    ends.core.tell(4, "hold")
    await ends.settle()
    assert ends.at_worker[0][1] == [{"line": 4, "type": "hold"}]
    await ends.close()


async def test_the_end_of_a_side_is_told_once_and_nonsense_ends_it() -> None:
    ends = await Ends().connect()
    ends.worker._transport.write(b"\0\0\0\0")  # type: ignore[union-attr]
    async with asyncio.timeout(5):
        await ends.lost.wait()
    ends.core.tell(2, "hold")  # too late: no error
    await ends.close()


async def test_a_side_that_does_not_read_costs_frames_and_no_message() -> None:
    ends = await Ends().connect()
    ends.core._transport.pause_reading()  # type: ignore[union-attr]
    sent = 0
    while not ends.worker.dropped:
        sent += 100
        for _ in range(100):
            ends.worker.put(up(2))
        ends.worker.tell(2, "text", n=sent)
        ends.worker.flush()
    assert sent * UP.itemsize < STUCK_BYTES + (2 << 20)  # no more than that is kept
    ends.core._transport.resume_reading()  # type: ignore[union-attr]
    async with asyncio.timeout(5):
        while sum(len(m) for _, m in ends.at_core) < sent // 100:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert sum(len(r) for r, _ in ends.at_core) == sent - ends.worker.dropped
    await ends.close()
