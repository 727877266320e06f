"""The link between the core and one media worker: a bundle each way for every 20 ms tick.

    bundle = u32 length of the rest | u32 records | records | messages: a JSON array or nothing

A *line* is one caller's connection in one worker, by a number that whoever opened it chose (the
core even ones, the worker odd ones; none is used twice). Records carry sound, one per line and
tick upwards, as much as fits the window downwards; they are decoded as one numpy array. Messages
carry all else: `{"line": 4, "type": "hold"}`, small, in order; line 0 is the worker itself.

A bundle's messages count before its records. Their order among each other never matters all the
same: sound is tagged with reply and offset, and what does not fit the line's reply and the end of
its sound is dropped by whoever gets it.

Up, records of `UP`: the caller's frame, and what this tick played. Down, records of `DOWN`: our
voice ahead of the ear, `LEAD` samples at most beyond what was reported as played.

Messages down                              | up
------------------------------------------ | ----------------------------------------------------
open {..}: what a transport needs          | opened {..}, refused {code, text, why}: to open
begin {reply}                              | connected {..}: media flows, a record each tick
end {reply, total}: `total` samples is all | gone {why}: the other side left, why: hung_up or lost
hold, resume, seek {reply, at},            | lost {ms}, back {}: nothing arrives since so many ms,
  duck {gain}, flush {reply}: see Player   |   and again; no records between the two
text {text}: to the client's own channel   | text {text}: of the client's own channel
close {}                                   | echo {verdict, note}: of the line's echo guard
                                           | ready {}, of line 0: the worker takes lines
                                           | closed {}: the line is no more
                                           | alive {late_ms}, of line 0: twice a second
------------------------------------------ | ----------------------------------------------------
A transport adds its own (SIP: transfer, dtmf down; incoming, digit, held up).
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from voice_agent.types import IN_FRAME, OUT_FRAME, OUT_RATE, FrameFlag, Pcm16

log = logging.getLogger(__name__)

LEAD = OUT_RATE // 5  # 200 ms of our voice in the worker: what a stall of the core may last
MAX_BUNDLE = 8 << 20
STUCK_BYTES = 4 << 20  # unsent: the other side has not read for seconds
HEAD = struct.Struct("<II")

UP = np.dtype(
    [
        ("line", "<u4"),
        ("reply", "<i4"),  # being played, -1: none
        ("offset", "<u8"),  # of this tick's first sample of ours, 24 kHz
        ("played", "<u2"),  # samples of the reply in this tick
        ("state", "u1"),  # FINISHED, UNDERRUN
        ("take", "u1"),  # begins and seeks of the line so far, modulo TAKES
        ("flag", "u1"),  # index in FLAGS
        ("pcm", "<i2", (IN_FRAME,)),  # of the caller, 16 kHz
    ]
)
DOWN = np.dtype(
    [
        ("line", "<u4"),
        ("reply", "<i4"),
        ("offset", "<u8"),
        ("samples", "<u2"),
        ("pcm", "<i2", (OUT_FRAME,)),
    ]
)
FINISHED, UNDERRUN = 1, 2
"""FINISHED stays in every record until the line begins another reply, so that it can't get lost."""
TAKES = 256
FLAGS = tuple(FrameFlag)

Message: TypeAlias = dict[str, Any]
Records: TypeAlias = NDArray[np.void]


class LinkError(ValueError):
    """What came over the link is no bundle; the other side is broken."""


@dataclass(frozen=True, slots=True)
class UpFrame:
    """One line's tick: the caller's 20 ms, int16 [320], and what of ours was played in it."""

    line: int
    pcm: Pcm16
    flag: FrameFlag = FrameFlag.RECEIVED
    reply: int = -1
    offset: int = 0
    played: int = 0
    state: int = 0
    take: int = 0


@dataclass(frozen=True, slots=True)
class DownFrame:
    """Up to 20 ms of our voice. pcm: int16 [n <= 480], 24 kHz, `offset` its first sample."""

    line: int
    reply: int
    offset: int
    pcm: Pcm16


def up_records(frames: list[UpFrame]) -> Records:
    out = np.zeros(len(frames), UP)
    if frames:
        out["line"] = [f.line for f in frames]
        out["reply"] = [f.reply for f in frames]
        out["offset"] = [f.offset for f in frames]
        out["played"] = [f.played for f in frames]
        out["state"] = [f.state for f in frames]
        out["take"] = [f.take for f in frames]
        out["flag"] = [FLAGS.index(f.flag) for f in frames]
        out["pcm"] = [f.pcm for f in frames]
    return out


def up_frames(records: Records) -> Iterable[UpFrame]:
    """pcm: views of the records, read-only."""
    names = ("line", "flag", "reply", "offset", "played", "state", "take")
    columns = zip(*(records[name].tolist() for name in names), strict=True)
    for pcm, (line, flag, *report) in zip(records["pcm"], columns, strict=True):
        yield UpFrame(line, pcm, FLAGS[flag % len(FLAGS)], *report)


def down_records(frames: list[DownFrame]) -> Records:
    out = np.zeros(len(frames), DOWN)
    for i, frame in enumerate(frames):
        n = len(frame.pcm)
        record = out[i]
        record["line"], record["reply"] = frame.line, frame.reply
        record["offset"], record["samples"] = frame.offset, n
        record["pcm"][:n] = frame.pcm
    return out


def down_frames(records: Records) -> Iterable[DownFrame]:
    """pcm: views of the records, read-only."""
    names = ("line", "reply", "offset", "samples")
    columns = zip(*(records[name].tolist() for name in names), strict=True)
    for pcm, (line, reply, offset, n) in zip(records["pcm"], columns, strict=True):
        yield DownFrame(line, reply, offset, pcm[:n])


def encode(records: Records, messages: list[Message]) -> bytes:
    body = records.tobytes()
    text = json.dumps(messages, separators=(",", ":")).encode() if messages else b""
    return HEAD.pack(HEAD.size - 4 + len(body) + len(text), len(records)) + body + text


def decode(bundle: bytes, dtype: np.dtype[np.void]) -> tuple[Records, list[Message]]:
    """bundle: without its length. Raises LinkError."""
    try:
        (n,) = struct.unpack_from("<I", bundle)
        records = np.frombuffer(bundle, dtype, n, offset=4) if n else np.zeros(0, dtype)
        text = bundle[4 + n * dtype.itemsize :]
        messages = json.loads(text) if text else []
    except (struct.error, ValueError) as error:
        raise LinkError(f"no bundle: {error}") from error
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise LinkError("messages must be an array of objects")
    return records, messages


class Splitter:
    """A byte stream back into bundles."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bundles that are now whole, each without its length. Raises LinkError."""
        self._data += data
        out: list[bytes] = []
        while len(self._data) >= 4:
            size = int.from_bytes(self._data[:4], "little")
            if not 4 <= size <= MAX_BUNDLE:
                raise LinkError(f"a bundle of {size} bytes")
            if len(self._data) < 4 + size:
                break
            out.append(bytes(self._data[4 : 4 + size]))
            del self._data[: 4 + size]
        return out


OnBundle = Callable[[Records, list[Message]], None]


class Link(asyncio.Protocol):
    """One end: `loop.create_unix_connection(lambda: link, sock=one_of_a_pair)`.

    What is put and told goes out as one bundle when the event loop next gets round to it: however
    many lines a tick has, it is one. on_bundle: called for each bundle of the other side, in order;
    on_lost: once, when that side is gone or sent nonsense.
    """

    def __init__(
        self, gets: np.dtype[np.void], on_bundle: OnBundle, on_lost: Callable[[], None]
    ) -> None:
        """gets: UP in the core, DOWN in a worker."""
        self._gets = gets
        self._on_bundle = on_bundle
        self._on_lost = on_lost
        self._splitter = Splitter()
        self._up: list[UpFrame] = []
        self._down: list[DownFrame] = []
        self._messages: list[Message] = []
        self._transport: asyncio.Transport | None = None
        self._scheduled = False
        self._lost = False
        self.bundles = 0  # received
        self.dropped = 0  # frames not sent because the other side does not read

    # ------------------------------------------------------------ sending

    def put(self, frame: UpFrame | DownFrame) -> None:
        if isinstance(frame, UpFrame):
            self._up.append(frame)
        else:
            self._down.append(frame)
        self._schedule()

    def tell(self, line: int, kind: str, /, **fields: Any) -> None:
        self._messages.append({"line": line, "type": kind, **fields})
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._transport is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send now. While the other side does not read, frames are dropped and messages kept."""
        self._scheduled = False
        transport = self._transport
        if transport is None or self._lost:
            return
        if self.stuck:
            self.dropped += len(self._up) + len(self._down)
            self._up, self._down = [], []
        records = up_records(self._up) if self._gets is DOWN else down_records(self._down)
        if len(records) or self._messages:
            transport.write(encode(records, self._messages))
        self._up, self._down, self._messages = [], [], []

    @property
    def stuck(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > STUCK_BYTES

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for bundle in self._splitter.feed(data):
                records, messages = decode(bundle, self._gets)
                self.bundles += 1
                self._on_bundle(records, messages)
        except LinkError:
            log.exception("the link to a media worker is broken")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
