"""How a real browser's own receiver hears us over a line that loses and delays packets.

VOICE_AGENT_LINE_S=300 pytest -s -m slow tests/browser/test_bad_line.py
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loadtest.bench.__main__ import CLIPS
from loadtest.bench.transport.impaired import BAD, CALM
from loadtest.bench.transport.namespaces import Namespace, lacking, namespaces
from loadtest.bench.transport.talker import TalkingStack
from loadtest.bench.transport.voice import speech_24k
from loadtest.bench.transport.wan import FAR, Wan, wan
from tests.support.live_server import serving_on_thread

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WARM_S, LEARN_S = 3.0, 10.0
RATE = 48_000


@contextlib.contextmanager
def line_on_thread(near: Namespace, far: Namespace) -> Iterator[Wan]:
    """A good one at first."""
    made: list[Wan] = []
    up, over = threading.Event(), threading.Event()

    async def carry() -> None:
        with wan(near, far, CALM) as line:
            made.append(line)
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(carry()))
    thread.start()
    try:
        assert up.wait(10)
        yield made[0]
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def bad_once_they_talk(stack: TalkingStack, line: Wan) -> Iterator[None]:
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if stack.calls and stack.calls[0].played > WARM_S * RATE / 2:
                line.impairment = BAD
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def test_a_browser_hears_us_over_a_bad_line(drive: Callable[..., dict[str, Any]]) -> None:
    if lack := lacking():
        pytest.skip(f"NOT RUN: needs {lack}")
    seconds = float(os.environ.get("VOICE_AGENT_LINE_S", "60"))
    stack: Any = TalkingStack(speech_24k(CLIPS))
    door = {"host": FAR, "page": "public", "api_keys": ("a-key-of-nobody-here",)}
    with (
        namespaces(("near", "far")) as (near, far),
        line_on_thread(near, far) as line,
        serving_on_thread(stack, far.entered, media_workers=1, **door) as server,
        near.entered(),
        bad_once_they_talk(stack, line),
    ):
        saw = drive(server.url, "line", secure=server.url, learn_s=WARM_S + LEARN_S,
                    seconds=seconds)  # fmt: skip
        assert 0.03 < line.lost / line.sent < 0.07
    told = saw["line"]
    concealed = told["concealedSamples"] - told["silentConcealedSamples"]
    heard, emitted = told["totalSamplesReceived"], told["jitterBufferEmittedCount"]
    row = {
        "seconds": round(heard / RATE, 1),
        "packets lost": told["packetsLost"] / (told["packetsLost"] + told["packetsReceived"]),
        "concealed": concealed / heard,
        "silent for want of sound": told["silentConcealedSamples"] / heard,
        "concealments a minute": 60 * RATE * told["concealmentEvents"] / heard,
        "stretched": told["insertedSamplesForDeceleration"] / heard,
        "shortened": told["removedSamplesForAcceleration"] / heard,
        "jitter buffer, mean ms": 1000 * told["jitterBufferDelay"] / emitted,
        "its target, mean ms": 1000 * told["jitterBufferTargetDelay"] / emitted,
    }
    print("\n" + "\n".join(f"| {name} | {value:.4g} |" for name, value in row.items()))
    assert row["seconds"] > 0.9 * seconds
    assert row["packets lost"] > 0.03
    assert row["concealed"] < row["packets lost"], "copies are used"
