"""How often somebody may knock: a token bucket for each key and each address."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

MAX_NAMES = 10_000


class Rate:
    """`per_minute` on average and as many at once, for each name; 0: no limit.

    At most MAX_NAMES names are remembered; the one not seen for longest is forgotten first.
    """

    def __init__(self, per_minute: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (left, seen at)
        self.change(per_minute)

    def change(self, per_minute: float) -> None:
        """From now on. Who has used up the old rate waits as the new one says."""
        self._most = float(per_minute)
        self._per_s = per_minute / 60.0

    def take(self, name: str) -> float:
        """Seconds until `name` may come again; 0.0: it may now, and this time is counted."""
        if not self._most:
            return 0.0
        left = self._refilled(name)
        if left < 1.0:
            return (1.0 - left) / self._per_s
        self._put(name, left - 1.0)
        return 0.0

    def wait_s(self, name: str) -> float:
        """What `take` would say, without counting."""
        if not self._most:
            return 0.0
        return max(0.0, (1.0 - self._refilled(name)) / self._per_s)

    def _refilled(self, name: str) -> float:
        left, seen_s = self._left.get(name, (self._most, 0.0))
        return min(self._most, left + (self._now() - seen_s) * self._per_s)

    def _put(self, name: str, left: float) -> None:
        self._left[name] = (left, self._now())
        self._left.move_to_end(name)
        if len(self._left) > MAX_NAMES:
            self._left.popitem(last=False)

    def __len__(self) -> int:
        return len(self._left)


def neighbourhood(address: str) -> str:
    """What one person can be thought to hold: an IPv4 address, or an IPv6 /64 network."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
