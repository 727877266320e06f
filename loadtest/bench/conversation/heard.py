"""How well a call knows which words were heard, against the sound that its client recorded.

Run: python -m loadtest.bench.conversation.heard [--voice NAME] [--cuts N] [--json F]

Clients play the agent's voice with a buffer of 0, 60, 200 or 400 ms and record what they play. A
reply is cut at some moment; what tells the client so arrives after the network's delay, and at that
instant it stops its player. Where the recording ends in the reply's sound is found by
cross-correlation, which words that sound holds by the recogniser's attention (alignment.py). What
the call remembers is read from its next prompt. The error is words remembered less words heard; a
word is heard once half of it was played.

Clients are those of heard_call.py. In virtual time; each call is the server's own, the session on
the wire included. In process: `measure(Words.of_voice(...))`, or `Words` of any voice whose word
ends are known.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.report import hardware, quantile, write_json
from voice_agent.errors import InternalError
from voice_agent.models import ModelStore
from voice_agent.reply import Speaker
from voice_agent.tts.piper import PiperVoice
from voice_agent.types import Pcm16

from .alignment import Aligner
from .heard_call import Client, Cut, talk
from .player import PER_MS, end_of
from .scene import REPLIES
from .virtual import StageTimes, Studio, VirtualSpeaker

BUFFERS_MS = (0, 60, 200, 400)
NETWORK_MS = (8, 45)  # one way; drawn anew for every cut
FIRST_CUT_MS, LAST_CUT_MS = 700, 600  # from the reply's first sound, and before its last


@dataclass(frozen=True, slots=True)
class Words:
    """A voice, the whole sound of a text in it, and for each of the text's words the sample at
    which half of it has been played (from the sound alone)."""

    speaker: Callable[[], Speaker]
    sound: Callable[[str], Pcm16]
    ends: Callable[[str, Pcm16], Sequence[int]]

    @classmethod
    def of_voice(cls, model: Path, aligner: Path) -> Words:
        """Piper's, with a Whisper model for the words' places."""
        studio, align = Studio(PiperVoice(model)), Aligner(aligner)
        known: dict[str, list[int]] = {}

        def ends(text: str, sound: Pcm16) -> list[int]:
            if text not in known:
                known[text] = align.heard_at(text, sound)
            return known[text]

        return cls(lambda: VirtualSpeaker(studio, StageTimes()), studio.reply, ends)


@dataclass(frozen=True, slots=True)
class Outcome:
    """remembered: our words as the next prompt has them. played: the reply's sample at which the
    client's recording ends."""

    cut: Cut
    remembered: str
    played: int
    error: int


def run(cut: Cut, words: Words) -> Outcome:
    """One call with one reply that is cut."""
    recording, remembered = talk(cut, words.speaker())
    if not cut.text.startswith(remembered):
        raise InternalError(f"remembered what was never said: {remembered!r}")
    sound = words.sound(cut.text)
    played = end_of(recording, sound)
    heard = sum(at <= played for at in words.ends(cut.text, sound))
    return Outcome(cut, remembered, played, len(remembered.split()) - heard)


def cuts(words: Words, n: int, seed: int = 0, texts: Sequence[str] = REPLIES) -> list[Cut]:
    """n for every client and buffer, at the same moments of the same replies for all."""
    rng, drawn = random.Random(seed), []
    for i in range(n):
        text = texts[i % len(texts)]
        length_ms = len(words.sound(text)) // PER_MS
        after = rng.randint(FIRST_CUT_MS, max(FIRST_CUT_MS, length_ms - LAST_CUT_MS))
        drawn.append((text, after, rng.randint(*NETWORK_MS), rng.getrandbits(32)))
    return [Cut(c, b, *rest) for c in Client for b in BUFFERS_MS for rest in drawn]


def measure(
    words: Words, n: int = 40, seed: int = 0, texts: Sequence[str] = REPLIES
) -> list[Outcome]:
    """Every cut of `cuts`, in process."""
    return [run(cut, words) for cut in cuts(words, n, seed, texts)]


def totals(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Signed error in words. abs_p95 needs 20 cuts at least, else None; over: share of the cuts in
    which more than one word too many is remembered."""
    errors = [o.error for o in outcomes]
    n = len(errors)
    return {
        "n": n,
        "mean": round(sum(errors) / n, 2),
        "min": min(errors),
        "max": max(errors),
        "abs_p95": quantile([abs(e) for e in errors], 0.95) if n >= 20 else None,
        "exact": round(errors.count(0) / n, 3),
        "over": round(sum(e > 1 for e in errors) / n, 3),
    }


def report(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """`totals` by client and buffer, and of each client over all buffers."""
    out: dict[str, dict[str, Any]] = {}
    for client in Client:
        ours = [o for o in outcomes if o.cut.client is client]
        out[client.value] = {
            **{str(b): totals([o for o in ours if o.cut.buffer_ms == b]) for b in BUFFERS_MS},
            "all": totals(ours),
        }
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--voice", default="piper-joe")
    parser.add_argument("--aligner", default="whisper-tiny.en")
    parser.add_argument("--cuts", type=int, default=40, help="for every client and buffer")
    parser.add_argument("--json", type=Path, help="write every figure here")
    a = parser.parse_args()
    store = ModelStore()
    outcomes = measure(Words.of_voice(store.path(a.voice), store.path(a.aligner)), a.cuts)
    figures = report(outcomes)
    print(f"{'client':10} {'buffer':>7} {'n':>4} {'mean':>6} {'min':>4} {'max':>4} {'|p95|':>6}")
    for client, by_buffer in figures.items():
        for buffer, t in by_buffer.items():
            p95 = "-" if t["abs_p95"] is None else t["abs_p95"]
            ends = f"{t['min']:4} {t['max']:4} {p95:>6}"
            print(f"{client:10} {buffer:>7} {t['n']:4} {t['mean']:6.2f} {ends}")
    rows = [asdict(o) for o in outcomes]
    write_json(a.json, {"hardware": hardware(), "error_words": figures, "cuts": rows})


if __name__ == "__main__":
    main()
