"""An adaptive jitter buffer for one audio stream: packets in at any time, media out by the clock.

Pure: arrival times are parameters and nothing is decoded. RTP timestamps run at 48 kHz (RFC 7587).
Loss inside the stream advances the play position (from FEC when the next packet is there); a dry
buffer does not, so late speech is heard late rather than lost, and the delay this leaves is
worked off by leaving out packets once the buffer has been too full for half a second: a few when a
little too full (a drifting clock), one in five after a stall. Where packets are being lost the
buffer is a packet deeper, so that the one with the copy is there when it is needed. A sender that
says nothing (discontinuous transmission) is silence, not loss.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto

RATE = 48_000
TICK = RATE * 20 // 1000
MIN_DEPTH_MS, MAX_DEPTH_MS = 40.0, 200.0
MAX_PACKETS = 100  # 2 s at 20 ms: what is older is dropped and counted
REBASE = RATE // 5  # a hole longer than 200 ms is a pause of the sender, not loss
DRY_CONCEAL_TICKS = 3  # 60 ms of concealment, then silence
WINDOW = 250  # packets (5 s) over which delay variation is judged: follows clock drift
SURPLUS_TICKS = 25
SURPLUS_MS, LARGE_SURPLUS_MS = 25.0, 65.0
HURRY_TICKS = 5  # between packets left out of a buffer that is much too full
LOSSY = 0.01
LOSS_MEMORY = 0.995  # per packet: 4 s


class Kind(Enum):
    PACKET = auto()  # decode payload
    FEC = auto()  # recover `samples` from payload, which is the packet after the loss
    CONCEAL = auto()  # conceal `samples`
    SKIP = auto()  # decode payload to keep the decoder's state, but throw the sound away
    SILENCE = auto()  # nothing is being sent: `samples` of silence


@dataclass(frozen=True, slots=True)
class Popped:
    """samples: duration in 48 kHz samples."""

    kind: Kind
    samples: int
    payload: bytes | None = None


@dataclass(slots=True)
class JitterStats:
    received: int = 0
    duplicate: int = 0
    late: int = 0
    overflow: int = 0
    recovered: int = 0
    concealed: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    payload: bytes
    samples: int
    fec: bool
    silent: bool


class JitterBuffer:
    """Owns the packets of one stream between arrival and the play clock."""

    def __init__(self) -> None:
        self.stats = JitterStats()
        self._packets: dict[int, _Held] = {}  # by unwrapped timestamp
        self._newest: int | None = None  # unwrapped
        self._next: int | None = None  # unwrapped timestamp of the next sample to play
        self._filling = True
        self._dry_ticks = 0
        self._transits: deque[float] = deque(maxlen=WINDOW)
        self._target_ms = MIN_DEPTH_MS
        self._spread_ms = 0.0  # of the delays
        self._depths: deque[float] = deque(maxlen=SURPLUS_TICKS)
        self._since_skip = 0
        self._loss = 0.0
        self._silent = False  # the sender said that nothing follows

    @property
    def target_ms(self) -> float:
        return self._target_ms

    @property
    def depth_ms(self) -> float:
        """Media held: from the play position (or the oldest packet) to the newest sample."""
        if not self._packets:
            return 0.0
        start = min(self._packets) if self._next is None or self._filling else self._next
        last = max(self._packets)
        return max(0, last + self._packets[last].samples - start) * 1000.0 / RATE

    def add(
        self,
        timestamp: int,
        payload: bytes,
        samples: int,
        arrival_ms: float,
        *,
        fec: bool = True,
        silent: bool = False,
    ) -> None:
        """timestamp: 32-bit RTP; samples: at 48 kHz; fec: it holds a copy of the one before;
        silent: it says that the sender has nothing to say for a while."""
        self.stats.received += 1
        ts = self._unwrap(timestamp)
        self._observe(arrival_ms - ts * 1000.0 / RATE)
        if ts in self._packets:
            self.stats.duplicate += 1
            return
        if self._next is not None and not self._filling and ts < self._next:
            if self._next - ts > RATE:  # the sender restarted its clock
                self._restart(ts)
            else:
                self.stats.late += 1
                return
        if len(self._packets) >= MAX_PACKETS:
            self.stats.overflow += 1
            oldest = min(self._packets)
            del self._packets[oldest]
        self._packets[ts] = _Held(payload, samples, fec, silent)

    def pop(self) -> Popped:
        """The next stretch of media; called whenever the clock needs more samples."""
        if self._filling:
            if self.depth_ms < self._target_ms:
                return self._dry()
            self._filling = False
            self._next = min(self._packets)
            self._depths.clear()
        assert self._next is not None
        held = self._packets.pop(self._next, None)
        if held is not None:
            self._next += held.samples
            self._dry_ticks = 0
            self._loss *= LOSS_MEMORY
            self._silent = held.silent
            if self._too_full():
                self.stats.skipped += 1
                return Popped(Kind.SKIP, held.samples, held.payload)
            return Popped(Kind.PACKET, held.samples, held.payload)
        for late in [ts for ts in self._packets if ts < self._next]:
            self.stats.late += 1
            del self._packets[late]
        if not self._packets:
            return self._dry()
        return self._hole(min(self._packets))

    def _hole(self, following: int) -> Popped:
        """Lost or paused before `following`, the oldest packet held."""
        assert self._next is not None
        # What was concealed while nothing came has covered part of the loss already, unless the
        # buffer is to be deeper: then the loss is played too, from its copy.
        if self.depth_ms >= self._target_ms:
            self._next += min(following - self._next, self._dry_ticks * TICK)
        self._dry_ticks = 0
        gap = following - self._next
        if gap == 0:
            return self.pop()
        if gap > REBASE or self._silent:
            self._next = following
            return Popped(Kind.SILENCE, min(gap, TICK))
        self._loss = 1.0 - (1.0 - self._loss) * LOSS_MEMORY
        samples = min(gap, TICK)
        held = self._packets[following]
        if gap == samples and held.fec and samples == held.samples:
            self._next = following
            self.stats.recovered += 1
            return Popped(Kind.FEC, samples, held.payload)
        self._next += samples
        self.stats.concealed += 1
        return Popped(Kind.CONCEAL, samples)

    def _dry(self) -> Popped:
        self._dry_ticks += 1
        if self._next is not None and self._dry_ticks <= DRY_CONCEAL_TICKS and not self._silent:
            self.stats.concealed += 1
            return Popped(Kind.CONCEAL, TICK)
        self._filling = True
        return Popped(Kind.SILENCE, TICK)

    def _too_full(self) -> bool:
        """Whether even the lowest depth of the last half second left more than the target does when
        the most delayed packets come."""
        self._since_skip += 1
        self._depths.append(self.depth_ms)
        surplus = min(self._depths) + 20.0 - (self._target_ms - self._spread_ms)
        wait = HURRY_TICKS if surplus >= LARGE_SURPLUS_MS else SURPLUS_TICKS
        full = len(self._depths) == SURPLUS_TICKS
        if not full or surplus < SURPLUS_MS or self._since_skip < wait:
            return False
        self._since_skip = 0
        self._depths = deque((d - 20.0 for d in self._depths), SURPLUS_TICKS)
        return True

    def _unwrap(self, timestamp: int) -> int:
        """Timestamps beyond 32 bits, nearest to the newest seen (RFC 3550's wrap-around)."""
        if self._newest is None:
            self._newest = timestamp
            return timestamp
        delta = (timestamp - self._newest + (1 << 31)) % (1 << 32) - (1 << 31)
        ts = self._newest + delta
        self._newest = max(self._newest, ts)
        return ts

    def _restart(self, ts: int) -> None:
        self._packets.clear()
        self._transits.clear()
        self._newest = self._next = ts
        self._filling = True

    def _observe(self, transit_ms: float) -> None:
        """Depth follows the 97th percentile of delay above the best of the last five seconds, and
        loss."""
        self._transits.append(transit_ms)
        n = len(self._transits)
        if n >= 10 and self.stats.received % 10 == 0:
            ordered = sorted(self._transits)
            spread = ordered[int(0.97 * (n - 1))] - ordered[0]
            self._spread_ms = min(spread, MAX_DEPTH_MS - MIN_DEPTH_MS)
            for_fec = 20.0 if self._loss > LOSSY else 0.0
            self._target_ms = min(MAX_DEPTH_MS, max(MIN_DEPTH_MS, spread + 20.0 + for_fec))
