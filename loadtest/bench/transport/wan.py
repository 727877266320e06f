"""A line over which packets are lost, delayed and overtaken: two TUN devices and this event loop.

In place of `tc netem`, which many kernels have not. Whole IPv4 packets, each way alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from .namespaces import Namespace

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU = 1400
NEAR, FAR = "10.77.0.1", "10.77.0.2"


@dataclass(frozen=True, slots=True)
class Impairment:
    """loss: share of packets. delay_ms, each way, varies evenly by ± jitter_ms, so that packets
    overtake one another."""

    loss: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0

    def delay_s(self, rng: random.Random) -> float | None:
        """Of one packet; None: it is lost."""
        if rng.random() < self.loss:
            return None
        varied = self.delay_ms + rng.uniform(-self.jitter_ms, self.jitter_ms)
        return max(0.0, varied) / 1000.0


class Wan:
    """Joins two namespaces; `impairment` may be changed at any moment."""

    def __init__(
        self, near: Namespace, far: Namespace, impairment: Impairment, seed: int = 7
    ) -> None:
        """Call on the event loop that carries the packets."""
        self.impairment = impairment
        self.sent = self.lost = 0
        self._rng = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        a, b = self._ends = (_tun(near, NEAR), _tun(far, FAR))
        self._loop.add_reader(a, self._carry, a, b)
        self._loop.add_reader(b, self._carry, b, a)

    def _carry(self, source: int, sink: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = os.read(source, 2048)
                self.sent += 1
                delay_s = self.impairment.delay_s(self._rng)
                if delay_s is None:
                    self.lost += 1
                else:
                    self._loop.call_later(delay_s, self._arrive, sink, packet)

    def _arrive(self, sink: int, packet: bytes) -> None:
        if sink in self._ends:
            with contextlib.suppress(OSError):
                os.write(sink, packet)

    def close(self) -> None:
        ends, self._ends = self._ends, (-1, -1)
        for end in ends:
            self._loop.remove_reader(end)
            os.close(end)


@contextlib.contextmanager
def wan(near: Namespace, far: Namespace, impairment: Impairment, seed: int = 7) -> Iterator[Wan]:
    line = Wan(near, far, impairment, seed)
    try:
        yield line
    finally:
        line.close()


def _tun(namespace: Namespace, address: str) -> int:
    """A descriptor: reading it gives what the namespace sends, writing it arrives there."""
    with namespace.entered():
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", b"wan", IFF_TUN | IFF_NO_PI))
    namespace.run("ip", "address", "add", f"{address}/30", "dev", "wan")
    namespace.run("ip", "link", "set", "wan", "up", "mtu", str(MTU))
    return end
