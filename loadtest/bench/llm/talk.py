"""Many calls that talk: what each says and when, and what all of them hear.

Calls take turn after turn: a short prompt behind a shared one, a reply of 20-300 tokens that
becomes clauses, as some passage of the prose has them, and sound, then a pause while the caller
speaks. Turns begin in bursts, each as large a share of the calls as the largest of 32 in
`Workload.spoken`; every policy meets the same bursts, prompts and replies.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence
from typing import Any

from loadtest.bench.llm.measure import tail
from loadtest.bench.llm.voice import SERVICE_S, TOKENS_PER_S, Voice
from loadtest.bench.llm.workload import BURST, LARGEST_BURST, LONGEST, SHORTEST, Workload

PAUSE_S = (1.0, 3.0)
TARGET_S = 0.6 + SERVICE_S
"""A first sound later than this is late: the deadline of a request that names none, and the voice's
time."""
CYCLE_S = (SHORTEST + LONGEST) / 2 / TOKENS_PER_S + sum(PAUSE_S) / 2
"""From one turn of a call to its next, on average, where nothing waits."""
APART_S = CYCLE_S * LARGEST_BURST / 32
"""Between bursts on average: each brings a quarter of the calls."""
SMALLER_APART_S = CYCLE_S * BURST / 32
"""Each brings the share that one of `spoken` brings on average, a seventh."""
_JITTER_S = 0.02


class Bursts:
    """The moments at which waiting callers begin their turns, in seconds from a run's start."""

    def __init__(self, seed: int, lasts_s: float, apart_s: float) -> None:
        """apart_s 0: no bursts, everybody begins when they are ready."""
        rng = random.Random(seed)
        self._times: list[float] = []
        while apart_s and (not self._times or self._times[-1] < lasts_s):
            before_s = self._times[-1] if self._times else 0.0
            self._times.append(before_s + apart_s * rng.uniform(0.5, 1.5))

    def next_s(self, ready_s: float) -> float:
        """The first burst from `ready_s` on; after the last one nobody waits."""
        at = bisect.bisect_left(self._times, ready_s)
        return self._times[at] if at < len(self._times) else ready_s


class Script:
    """What one call says and when it would begin its turns."""

    def __init__(
        self,
        work: Workload,
        system: tuple[int, ...],
        passages: Sequence[tuple[int, ...]],
        seed: int,
        bursts: Bursts,
    ) -> None:
        """passages: what may be said, as tokens of each clause."""
        self._work = work
        self._system = system
        self._passages = passages
        self._rng = random.Random(seed)
        self._bursts = bursts

    def begin_s(self) -> float:
        """Calls begin evenly over a whole turn, so that the load is steady from then on."""
        return self._in_burst(self._rng.uniform(0.0, CYCLE_S))

    def turn(self) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        """(prompt, tokens of the reply, tokens of each of its clauses)."""
        n_out = self._rng.randint(SHORTEST, LONGEST)
        return self._system + self._work.turn(), n_out, self._rng.choice(self._passages)

    def again_s(self, heard_s: float) -> float:
        """When the next turn begins, once the last word was heard at `heard_s`."""
        return self._in_burst(heard_s + self._rng.uniform(*PAUSE_S))

    def _in_burst(self, ready_s: float) -> float:
        return self._bursts.next_s(ready_s) + self._rng.uniform(0.0, _JITTER_S)


class Ledger:
    """What all calls of a run add up to between two moments of its clock, in seconds."""

    def __init__(self, from_s: float, until_s: float) -> None:
        self._from_s, self._until_s = from_s, until_s
        self._tokens = self._all_tokens = 0
        self._turns: list[tuple[float, Voice]] = []

    def open(self, asked_s: float, cuts: Sequence[int]) -> Voice:
        """A turn begins; only its voice is judged that begins within the time."""
        voice = Voice(cuts)
        if self._from_s <= asked_s <= self._until_s:
            self._turns.append((asked_s, voice))
        return voice

    def note(self, now: float, n_tokens: int) -> None:
        self._all_tokens += n_tokens
        if self._from_s <= now <= self._until_s:
            self._tokens += n_tokens

    def body(self, decode_rate: float) -> dict[str, Any]:
        """decode_rate: tokens/s that the engine makes of nothing but decoding rows. all_tokens:
        from the run's start on, so that who makes them earlier has no advantage."""
        first = [
            1000 * (voice.started_s - asked_s)
            for asked_s, voice in self._turns
            if voice.started_s is not None
        ]
        rate = self._tokens / (self._until_s - self._from_s)
        return {
            "turns": len(self._turns),
            "underruns": sum(voice.underruns for _, voice in self._turns),
            "late": sum(start > 1000 * TARGET_S for start in first),
            "silent_s": sum(voice.dry_s for _, voice in self._turns),
            "silence_ms": tail([1000 * v.longest_dry_s for _, v in self._turns if v.underruns]),
            "tokens_per_s": rate,
            "all_tokens": self._all_tokens,
            "load": rate / decode_rate,
            "first_sound_ms": tail(first),
        }


def decode_rate(replies: Sequence[Sequence[float]]) -> float:
    """Tokens per second while every reply was decoding: no prompt left, and nobody finished.

    replies: of each the seconds at which its tokens came, one for every token. Raises ValueError if
    there was no such time.
    """
    begin = max(times[0] for times in replies)
    end = min(times[-1] for times in replies)
    if end <= begin:
        raise ValueError("the replies never decoded all together")
    return sum(begin < at <= end for times in replies for at in times) / (end - begin)
