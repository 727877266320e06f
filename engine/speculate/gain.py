"""How many guesses are worth their time (pure)."""

from __future__ import annotations

HOPE = 0.7
"""Share of guesses that are taken to be right while none has been checked."""
_LEARN, _FADE = 1 / 8, 1 / 64


def learned(rate: float, n_right: int, n_proposed: int) -> float:
    """The moving average of right guesses after a step: `n_right`, then a wrong one if any is left.

    Guesses beyond the first wrong one were never judged.
    """
    for _ in range(n_right):
        rate += (1.0 - rate) * _LEARN
    return rate if n_right == n_proposed else rate * (1.0 - _LEARN)


def faded(rate: float) -> float:
    """The average after a step without a guess: it drifts to `HOPE`, so that bad luck is tried
    again some dozens of tokens later."""
    return rate + (HOPE - rate) * _FADE


def worth(rate: float, most: int, n_tokens: float, step_ms: float, guess_ms: float) -> int:
    """How many of `most` guesses make the step yield more tokens a millisecond.

    rate: chance that a guess is right, given that all before it are. n_tokens, step_ms: what the
    step yields and takes without them. guess_ms: what a guess adds, its making included.
    """
    chance = 1.0
    for k in range(most):
        chance *= rate
        if chance * step_ms <= n_tokens * guess_ms:
            return k
        n_tokens += chance
        step_ms += guess_ms
    return most
