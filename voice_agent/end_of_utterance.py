"""Whether the caller's words are all they want to say, by the model that is to answer them.

A chat model goes on with the caller's message. What it gives to a full stop, a question mark or the
message's end after words without closing punctuation tells a whole sentence from a beginning, what
was said before included (a language model's turn-taking, cf. TurnGPT, arXiv 2010.10874). How the
words sounded, and the punctuation that a recogniser guessed from it, are no part of this.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.client import Engine
from engine.sampling import MAX_LOGPROBS, SamplingParams

if TYPE_CHECKING:
    from engine.text.chat import ChatFormat
    from engine.text.tokenizer import Tokenizer

ENDINGS = (".", "?", "!")
ONE_STEP = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=MAX_LOGPROBS)
"""ignore_eos: the model's end of message is a token like others here, and is told."""
_CLOSING = " .?!,;:…-—"
_SURE = 1e-4  # nearer to 0 or 1 a probability tells no more


def unpunctuated(text: str) -> str:
    """Words without what a recogniser closed them with."""
    return text.strip().rstrip(_CLOSING)


@dataclass(frozen=True, slots=True)
class Calibration:
    """How a model's log-odds of an ending become those of a whole message: slope * x + offset."""

    slope: float
    offset: float

    def __call__(self, log_odds: float) -> float:
        return self.slope * log_odds + self.offset


CALIBRATION = Calibration(1.2, 2.8)
"""Of any model: near the mean (1.19, 2.9) of SmolLM2-135M and Qwen2.5-0.5B, which differ less from
each other than between a call's first words (offset 3.2 and 3.8) and a dialogue (2.6 and 2.1).
`python -m loadtest.bench.utterances` repeats it."""


def log_odds(top: Iterable[tuple[int, float]], ends: frozenset[int]) -> float:
    """Of an ending. top: ids and log-probabilities of the likeliest next tokens, the likeliest
    first. Without an ending among them it is at most as likely as the last of them."""
    told = list(top)
    p = sum(math.exp(logprob) for token, logprob in told if token in ends)
    if not p and told:
        p = math.exp(told[-1][1])
    p = min(1.0 - _SURE, max(_SURE, p))
    return math.log(p / (1.0 - p))


class EndModel:
    """The engine's model, asked one step over words that may be all."""

    def __init__(self, engine: Engine, calibration: Calibration = CALIBRATION) -> None:
        self._engine = engine
        self._calibration = calibration
        self._ends = ends_of(engine.chat, engine.tokenizer)

    async def log_odds(
        self,
        ids: Sequence[int],
        *,
        tenant: str = "default",
        call: str | None = None,
        deadline_s: float | None = None,
    ) -> float | None:
        """Of a whole message. ids: a prompt that ends in the caller's words, unpunctuated and
        open. None: the engine was closed or the call over first. Raises like `Engine.submit`."""
        generation = self._engine.submit(
            ids, ONE_STEP, tenant=tenant, call=call, deadline_s=deadline_s
        )
        async with aclosing(generation):
            told = [row async for delta in generation for row in delta.top]
        return self._calibration(log_odds(told[0], self._ends)) if told else None


def ends_of(chat: ChatFormat, tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that end a sentence of the caller's or their message."""
    closed, opened = chat.user("Yes"), chat.user_open("Yes")
    marks = (tokenizer.encode(mark) for mark in ENDINGS)
    return frozenset((*closed[len(opened) :][:1], *(ids[0] for ids in marks if len(ids) == 1)))
