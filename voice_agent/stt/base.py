"""What recognition promises to the conversation: records and one Protocol."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from voice_agent.types import PcmF32


@dataclass(frozen=True, slots=True)
class Transcript:
    """Words of one utterance so far.

    words: as written (with punctuation), in order. The first `n_confirmed` of them never change
    again within the utterance. Empty words: nothing was said (noise, silence, hallucination gate).
    audio_s: seconds of utterance audio it covers. compute_s: seconds of recogniser time it took.
    logprob: mean of its tokens, as the recogniser judges itself; 0: sure, or it does not say.
    """

    words: tuple[str, ...]
    n_confirmed: int
    audio_s: float
    compute_s: float
    no_speech_prob: float = 0.0
    final: bool = False
    logprob: float = 0.0

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def confirmed(self) -> str:
        return " ".join(self.words[: self.n_confirmed])

    @property
    def tail(self) -> str:
        return " ".join(self.words[self.n_confirmed :])


class Recognizer(Protocol):
    """A loaded recognition model, shared by all calls; owns its worker thread(s) and queue.

    The queue is ordered by (finals first, deadline_s). Cancelling the awaiting task drops a job
    that has not started. Raises voice_agent.errors.InternalError when the model fails.
    """

    name: str
    sample_rate: int

    async def transcribe(
        self,
        pcm: PcmF32,
        *,
        prefix: Sequence[str] = (),
        final: bool = False,
        deadline_s: float = 0.0,
        key: Hashable | None = None,
    ) -> Transcript:
        """pcm: float32 [n] at 16 kHz. prefix: confirmed words, forced so only the tail is
        generated.

        key: the utterance; a newer request with the same key replaces one that has not started.
        """
        ...

    def warm(self) -> None:
        """Blocking: run every shape once so that the first caller is not slower than the second."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Demoter(Protocol):
    """A recogniser whose queue can be told that what waits as a final is none after all."""

    def demote(self, key: Hashable) -> None:
        """A final of `key` that has not started is from now on a partial: it is ordered like one,
        and replaced by the next request of `key`."""
        ...


@runtime_checkable
class Promoter(Protocol):
    """A recogniser whose queue can be told that a waiting partial turned out to be a final."""

    def promote(self, key: Hashable) -> None:
        """A partial of `key` that has not started is from now on ordered like a final."""
        ...
