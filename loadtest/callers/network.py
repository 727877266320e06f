"""A slow network in front of any line: delay, jitter and stalls, both ways.

On a stream (WebSocket) nothing overtakes: what comes behind a stall waits for it, then all arrives
at once. Packets (RTP) are late each for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .clip import Pcm
from .ear import Ear
from .line import Line


@dataclass(frozen=True, slots=True)
class Network:
    """Milliseconds, each way. jitter_ms: mean of an exponential. A stall lasts stall_ms and comes
    about every stall_every_s (0: never)."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    stall_ms: float = 0.0
    stall_every_s: float = 0.0


class Path:
    """When what is sent now arrives; pure but for its random numbers."""

    def __init__(self, network: Network, seed: int, *, stream: bool) -> None:
        self._n = network
        self._stream = stream
        self._rng = np.random.default_rng(seed)
        self._last_s = 0.0
        self._stall_from_s: float | None = None

    def arrival(self, now_s: float) -> float:
        """Seconds of the same clock."""
        n = self._n
        at = now_s + (n.delay_ms + float(self._rng.exponential(n.jitter_ms or 1e-9))) / 1000.0
        if n.stall_every_s:
            if self._stall_from_s is None:
                self._stall_from_s = now_s + float(self._rng.exponential(n.stall_every_s))
            end_s = self._stall_from_s + n.stall_ms / 1000.0
            if self._stall_from_s <= now_s < end_s:
                at = max(at, end_s)
            elif now_s >= end_s:
                self._stall_from_s = now_s + float(self._rng.exponential(n.stall_every_s))
        if self._stream:
            at = self._last_s = max(at, self._last_s)
        return at


class LateEar(Ear):
    """Hears what `play` and `cut` bring as late as the path makes it."""

    def __init__(self, behind: Ear, path: Path) -> None:
        super().__init__()
        self._behind = behind
        self._path = path

    def own(self, reply: str) -> None:
        self._behind.own(reply)

    def play(self, pcm: Pcm, now_s: float, reply: str) -> None:
        at = self._path.arrival(now_s)
        self._later(at, lambda: self._behind.play(pcm, at, reply))

    def cut(self, now_s: float) -> None:
        at = self._path.arrival(now_s)
        self._later(at, lambda: self._behind.cut(at))

    def _later(self, at_s: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_at(at_s, act)


class SlowLine:
    """A line behind a slow network."""

    def __init__(self, line: Line, network: Network, seed: int) -> None:
        """For lines that use `Ear.play`; those that carry packets take a Path themselves."""
        self._line = line
        self._up = Path(network, seed, stream=True)
        self._down = Path(network, seed + 1, stream=True)
        self._waiting: deque[tuple[float, Pcm]] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def lost(self) -> str:
        return self._line.lost

    async def open(self, ear: Ear, hold_s: float) -> None:
        await self._line.open(LateEar(ear, self._down), hold_s)
        self._sender = asyncio.ensure_future(self._deliver())

    async def send(self, frame: Pcm) -> None:
        at = self._up.arrival(asyncio.get_running_loop().time())
        self._waiting.append((at, frame))
        self._news.set()

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        await self._line.close()

    async def _deliver(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._line.lost:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            at, frame = self._waiting.popleft()
            await asyncio.sleep(max(0.0, at - loop.time()))
            await self._line.send(frame)
