"""Sound of clauses that the operator wrote, made once: greetings, recoveries, declared phrases.

The nearest thing to a prefix cache that sound allows. What a model says is looked up here and never
put here: a call leaves nothing for the next one. All on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from voice_agent.scope import CancelScope
from voice_agent.types import OUT_RATE

from .base import AudioPiece, Clause

log = logging.getLogger(__name__)


class _Speaker(Protocol):
    def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]: ...


@dataclass(frozen=True, slots=True)
class Key:
    """What makes a clause sound as it does. words: as the ear gets them."""

    voice: str
    words: tuple[str, ...]
    pause_ms: int
    speed: float


class ClauseCache:
    """At most `max_s` seconds of sound, shared by all calls. What does not fit is not kept: the
    first texts of an agent are those that must never be missing."""

    def __init__(self, max_s: float) -> None:
        self._max_samples = int(max_s * OUT_RATE)
        self._sounds: dict[Key, tuple[AudioPiece, ...]] = {}
        self._owners: dict[str, frozenset[Key]] = {}
        self._samples = 0
        self.hits = 0
        self.refused = 0

    def __len__(self) -> int:
        return len(self._sounds)

    @property
    def seconds(self) -> float:
        """Sound kept."""
        return self._samples / OUT_RATE

    def __contains__(self, key: Key) -> bool:
        return key in self._sounds

    def get(self, key: Key) -> tuple[AudioPiece, ...] | None:
        """The clause's pieces; counts a hit."""
        pieces = self._sounds.get(key)
        self.hits += pieces is not None
        return pieces

    def put(self, key: Key, pieces: Iterable[AudioPiece]) -> bool:
        """Keep a clause. False (and counted) when there is no room for it, or no sound in it."""
        kept = tuple(pieces)
        samples = sum(len(piece.pcm) for piece in kept)
        if key in self._sounds:
            return True
        if not samples or self._samples + samples > self._max_samples:
            self.refused += 1
            return False
        self._sounds[key] = kept
        self._samples += samples
        return True

    def keep(self, owner: str, keys: Iterable[Key]) -> None:
        """All that `owner` needs from now on; what nobody needs goes."""
        self._owners[owner] = frozenset(keys)
        needed = frozenset[Key]().union(*self._owners.values())
        for key in [key for key in self._sounds if key not in needed]:
            self._samples -= sum(len(piece.pcm) for piece in self._sounds.pop(key))


class CachedSpeaker:
    """A voice as a reply sees it, that looks before it speaks."""

    def __init__(self, speaker: _Speaker, voice: str, cache: ClauseCache) -> None:
        self._speaker = speaker
        self._voice = voice
        self._cache = cache

    def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        """Cached pieces come at once; else like the voice itself."""
        made = self._cache.get(self._key(clause, speed))
        if made is not None:
            return _replay(made, scope)
        return self._speaker.speak(clause, speed=speed, deadline_s=deadline_s, scope=scope)

    async def make(self, clause: Clause, *, speed: float, deadline_s: Callable[[], float]) -> Key:
        """Have the clause in the cache, if it fits. Raises what the voice raises."""
        key = self._key(clause, speed)
        if key not in self._cache:
            scope = CancelScope("clause for the cache")
            speech = self._speaker.speak(clause, speed=speed, deadline_s=deadline_s, scope=scope)
            if not self._cache.put(key, [piece async for piece in speech]):
                log.warning("not kept in the voice cache: %s", clause.text.strip())
        return key

    def _key(self, clause: Clause, speed: float) -> Key:
        words = tuple(word.text for word in clause.words)
        return Key(self._voice, words, clause.pause_ms, speed)


async def _replay(pieces: tuple[AudioPiece, ...], scope: CancelScope) -> AsyncIterator[AudioPiece]:
    for piece in pieces:
        if scope.cancelled:
            return
        yield piece
