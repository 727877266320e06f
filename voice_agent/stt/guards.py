"""What a recogniser must not be believed: loops, and words made up over silence or noise. Pure."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

from voice_agent.types import IN_RATE, PcmF32

_KEEP = re.compile(r"[^\w']+|_")

QUIET_RMS = 10 ** (-55 / 20)  # no 30 ms of a recording louder than this: nobody spoke
_FRAME = IN_RATE * 30 // 1000
MAX_PERIOD = 12  # words; longer loops do not fit the length cap
COMPRESSION, LOOP_BYTES = 2.4, 60
NO_SPEECH, UNSURE = 0.6, -0.6
"""Beyond both it is not a caller. By whisper-tiny.en, sentences of the recorded callers lie at 0.25
and below (0.56 with a cafe 10 dB below them), nine of ten passes over a cafe alone at 0.6 and
above; seldom is one as sure of its words as -0.6."""

HALLUCINATED = frozenset(
    {
        "you",
        "thank you",
        "thank you very much",
        "thank you so much",
        "thanks for watching",
        "thank you for watching",
        "thanks",
        "bye",
        "bye bye",
        "the end",
        "i'm sorry",
        "oh",
        "so",
        "okay",
        "please subscribe",
        "subtitles by the amara org community",
    }
)
"""What Whisper says over silence; each can also be said by a person, so these only raise
suspicion."""


def plain(word: str) -> str:
    """A word as two passes are compared: no case, no punctuation."""
    return _KEEP.sub("", word).casefold()


def plain_text(words: Sequence[str]) -> str:
    return " ".join(filter(None, (plain(w) for w in words)))


def is_quiet(pcm: PcmF32) -> bool:
    """No 30 ms frame reaches -55 dBFS. pcm: float32 [n]."""
    n = len(pcm) // _FRAME
    if n == 0:
        return True
    power = np.square(pcm[: n * _FRAME].reshape(n, _FRAME)).mean(axis=1)
    return bool(power.max() < QUIET_RMS**2)


def trim_repeats(words: Sequence[str], *, capped: bool) -> tuple[str, ...]:
    """Cut a decoder's loop off the end, keeping its first round.

    capped: the decoder stopped at its length limit, so two rounds are enough to call it a loop;
    else people do say "no no no", and four rounds of one word or three of several are needed.
    """
    keys = [plain(w) for w in words]
    for period in range(1, min(MAX_PERIOD, len(keys) // 2) + 1):
        run = 0  # words at the end that equal the word one period earlier
        while run < len(keys) - period and keys[-1 - run] == keys[-1 - run - period]:
            run += 1
        rounds = 2 if capped else (4 if period == 1 else 3)
        if run >= (rounds - 1) * period:
            return tuple(words[: len(words) - run])
    return tuple(words)


def is_loop(words: Sequence[str]) -> bool:
    """A decoder that went round and round over several passes: nobody said that.

    The test and its limit are Whisper's own (Radford et al. 2022, section 4.5).
    """
    text = " ".join(words).encode()
    return len(text) >= LOOP_BYTES and len(text) > COMPRESSION * len(zlib.compress(text))


def is_suspicious(words: Sequence[str], no_speech_prob: float, avg_logprob: float) -> bool:
    """The words need the voice detector's word for it before they are believed."""
    return no_speech_prob > 0.5 or avg_logprob < -0.9 or plain_text(words) in HALLUCINATED


def is_made_up(no_speech_prob: float, avg_logprob: float, voiced_s: float) -> bool:
    """Verdict over suspicious words. voiced_s: seconds the voice detector calls speech."""
    if voiced_s < 0.1:
        return True
    return no_speech_prob > NO_SPEECH and avg_logprob < UNSURE
