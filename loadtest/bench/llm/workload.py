"""What is asked of every engine: token ids, reply lengths and arrival times, from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

SYSTEM = 200
"""Tokens of the shared system prompt."""
FIXED_PROMPT, FIXED_REPLY = 32, 64
PREFIX, SHORT_REPLY = 410, 24
"""Tokens of a prefix that several requests begin with, not a whole number of blocks."""
BURST = 4.5
"""Calls of a burst, on average."""
LARGEST_BURST = 8
SHORTEST, LONGEST = 20, 300
"""Tokens of a reply in the spoken workload."""


@dataclass(frozen=True, slots=True)
class Ask:
    """prompt: token ids. n_out: tokens of the reply, exactly. at_s: after the round's start."""

    prompt: tuple[int, ...]
    n_out: int
    at_s: float = 0.0


class Workload:
    """Cuts prompts out of real text at random places, so that no two begin alike by chance."""

    def __init__(self, text: Sequence[int], seed: int) -> None:
        self._text = tuple(text)
        self._rng = random.Random(seed)

    def piece(self, n: int) -> tuple[int, ...]:
        """n tokens of the text; a long piece goes round."""
        at = self._rng.randrange(len(self._text))
        return tuple(self._text[(at + i) % len(self._text)] for i in range(n))

    def fixed(self, n: int) -> list[Ask]:
        """n requests at once: 32 tokens in, nothing shared, 64 out."""
        return [Ask(self.piece(FIXED_PROMPT), FIXED_REPLY) for _ in range(n)]

    def spoken(self, n: int, *, longest: int = LONGEST) -> list[Ask]:
        """n calls in bursts: one new 200-token system prompt, a short turn each, 20-300 out."""
        system = self.piece(SYSTEM)
        times = self.bursts(n)
        return [
            Ask(system + self.turn(), self._rng.randint(SHORTEST, longest), at_s) for at_s in times
        ]

    def turn(self) -> tuple[int, ...]:
        return self.piece(self._rng.randint(8, 24))

    def bursts(self, n: int, *, apart_s: float = 0.15) -> list[float]:
        """Arrival times: one to eight calls within 20 ms, then an exponential pause."""
        times: list[float] = []
        at_s = 0.0
        while len(times) < n:
            for _ in range(min(self._rng.randint(1, LARGEST_BURST), n - len(times))):
                times.append(at_s + self._rng.uniform(0.0, 0.02))
            at_s += self._rng.expovariate(1.0 / apart_s)
        return sorted(times)

    def partly_shared(self, n: int, share: float, apart_s: float) -> list[Ask]:
        """`share` of the requests begin with one of three prefixes, the rest with none of them."""
        prefixes = [self.piece(PREFIX) for _ in range(3)]
        asks = []
        for at_s in self.bursts(n, apart_s=apart_s):
            shares = self._rng.random() < share
            prefix = self._rng.choice(prefixes) if shares else self.unique(PREFIX)
            asks.append(Ask(prefix + self.turn(), SHORT_REPLY, at_s))
        return asks

    def unique(self, n: int) -> tuple[int, ...]:
        """n tokens that begin like nothing before."""
        return (*(self._rng.choice(self._text) for _ in range(4)), *self.piece(n - 4))
