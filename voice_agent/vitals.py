"""Whether every stage lives: its thread runs, and what waits for it gets done.

A thread that ends, or that hangs in native code, leaves the process running and its callers in
silence. Nothing in the process can mend it, so the server ends and is started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import InternalError

if TYPE_CHECKING:
    from .stack import Stack

STUCK_CHECKS = 60
"""Looks, a second apart, at a stage with work that finished nothing: no single step takes so long.
Looks are counted, not seconds: a process that was stopped and goes on has not hung."""


@dataclass(frozen=True, slots=True)
class Sign:
    """alive: the stage's thread runs. busy: work waits for it. done: what it has finished."""

    stage: str
    alive: bool
    busy: bool
    done: int


class Vitals:
    """`check` is called once a second."""

    def __init__(self, read: Callable[[], Iterator[Sign]], stuck_checks: int = STUCK_CHECKS):
        self._read = read
        self._stuck_checks = stuck_checks
        self._last: dict[str, tuple[int, int]] = {}  # stage -> (done, looks since it moved)

    def check(self) -> str:
        """What is wrong, or ""."""
        for sign in self._read():
            if not sign.alive:
                return f"the thread of the {sign.stage} has ended"
            done, looks = self._last.get(sign.stage, (-1, 0))
            looks = looks + 1 if sign.busy and sign.done == done else 0
            self._last[sign.stage] = sign.done, looks
            if looks >= self._stuck_checks:
                return f"the {sign.stage} has work and has finished nothing for {looks} s"
        return ""


async def watched(work: Coroutine[Any, Any, None], vitals: Vitals, *, look_s: float = 1.0) -> None:
    """Do what a stage that died would leave waiting for ever. Raises InternalError VA493 then, and
    what `work` raises."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=look_s))[0]:
            if why := vitals.check():
                raise InternalError(f"{why} while the server was starting", code="VA493")
        task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def signs(stack: Stack) -> Iterator[Sign]:
    """Of every stage that has a thread of its own. A part of a program's own has none of ours."""
    recognizer = stack.recognizer
    alive = getattr(recognizer, "alive", None)
    if alive is not None:
        waiting = getattr(recognizer, "n_waiting", 0)
        yield Sign("recogniser", alive, waiting > 0, getattr(recognizer, "passes", 0))
    if stack.engine is not None:
        yield Sign("engine", *stack.engine.pulse())
    if stack.voices is not None:
        voice = stack.voices.stats()  # a clause that has begun may wait for its listener
        yield Sign("voice", stack.voices.alive, voice.unbegun > 0, voice.pieces + voice.failed)
