"""What the operator wrote is spoken once; what a model says is looked up and never kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from tests.support.fakes import FakeSpeaker
from voice_agent.clauses import ClauseSplitter
from voice_agent.scope import CancelScope
from voice_agent.tts.base import AudioPiece, Clause
from voice_agent.tts.cache import CachedSpeaker, ClauseCache

pytestmark = pytest.mark.unit


def clause(text: str) -> Clause:
    (only,) = [*(s := ClauseSplitter()).push(text), *s.finish()]
    return only


def run(job: Awaitable[object]) -> object:
    async def main() -> object:
        return await job

    return asyncio.run(main())


async def spoken(speaker: CachedSpeaker, text: str, **how: float) -> list[AudioPiece]:
    scope = CancelScope("test")
    speed = how.get("speed", 1.0)
    heard = speaker.speak(clause(text), speed=speed, deadline_s=lambda: 0.0, scope=scope)
    return [piece async for piece in heard]


async def made(speaker: CachedSpeaker, text: str) -> object:
    return await speaker.make(clause(text), speed=1.0, deadline_s=lambda: 0.0)


def test_what_was_made_comes_back_sample_for_sample() -> None:
    voice, cache = FakeSpeaker(0.0), ClauseCache(60.0)
    speaker = CachedSpeaker(voice, "joe", cache)

    async def scene() -> tuple[list[AudioPiece], list[AudioPiece]]:
        fresh = await spoken(speaker, "One moment please.")
        await made(speaker, "One moment please.")
        return fresh, await spoken(speaker, "One moment please.")

    fresh, again = run(scene())  # type: ignore[misc]
    assert [p.pcm.tobytes() for p in fresh] == [p.pcm.tobytes() for p in again]
    assert [p.words for p in fresh] == [p.words for p in again]
    assert voice.said == ["One moment please."] * 2, "asked, made, and then no more"
    assert cache.hits == 1


def test_only_what_is_made_is_kept() -> None:
    cache = ClauseCache(60.0)
    speaker = CachedSpeaker(FakeSpeaker(0.0), "joe", cache)
    run(spoken(speaker, "You live in Elm Street."))
    assert (len(cache), cache.hits, cache.seconds) == (0, 0, 0.0)


def test_voice_and_speed_make_another_sound() -> None:
    cache = ClauseCache(60.0)
    voice = FakeSpeaker(0.0)
    joe, amy = CachedSpeaker(voice, "joe", cache), CachedSpeaker(voice, "amy", cache)

    async def scene() -> None:
        await made(joe, "Hello there.")
        await spoken(amy, "Hello there.")
        await spoken(joe, "Hello there.", speed=1.2)
        await spoken(joe, "Hello there!")

    run(scene())
    assert cache.hits == 0


def test_it_is_bounded_and_says_what_it_refused() -> None:
    cache = ClauseCache(1.0)  # the fake voice takes 0.2 s a word
    speaker = CachedSpeaker(FakeSpeaker(0.0), "joe", cache)

    async def scene() -> None:
        await made(speaker, "One two three.")
        await made(speaker, "Four five six.")
        await made(speaker, "Seven.")

    run(scene())
    assert (len(cache), cache.refused) == (2, 1)
    assert cache.seconds == pytest.approx(0.8)


def test_what_no_agent_needs_goes() -> None:
    cache = ClauseCache(60.0)
    speaker = CachedSpeaker(FakeSpeaker(0.0), "joe", cache)

    async def scene() -> None:
        hello, bye = await made(speaker, "Hello there."), await made(speaker, "Bye now.")
        cache.keep("one", [hello, bye])  # type: ignore[list-item]
        cache.keep("two", [bye])  # type: ignore[list-item]
        cache.keep("one", [hello])  # type: ignore[list-item]
        assert len(cache) == 2, "another agent needs it"
        cache.keep("two", [])

    run(scene())
    assert len(cache) == 1
    assert cache.seconds == pytest.approx(0.4)


def test_a_cancelled_reply_gets_no_more() -> None:
    cache = ClauseCache(60.0)
    speaker = CachedSpeaker(FakeSpeaker(0.0), "joe", cache)

    async def scene() -> int:
        await made(speaker, "One two three.")
        scope = CancelScope("test")
        n = 0
        async for _ in speaker.speak(
            clause("One two three."), speed=1.0, deadline_s=lambda: 0.0, scope=scope
        ):
            n += 1
            scope.cancel()
        return n

    assert run(scene()) == 1
