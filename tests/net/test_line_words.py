"""What is understood over a line that loses and delays packets: real Opus, real recognition."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.media.receive import OpusReceiver
from loadtest.bench.__main__ import CLIPS
from loadtest.bench.transport.impaired import (
    AFTER,
    BEFORE,
    LAG,
    over_a_good_line,
    script,
    transcribe,
)
from loadtest.bench.transport.quality import GOALS
from tests.support.lossy_channel import channel, ticks

pytestmark = pytest.mark.model


async def test_the_words_survive_loss_and_jitter() -> None:
    said = script(CLIPS)
    receiver, heard = OpusReceiver(), []

    def arrive(n: int, at: float) -> None:
        receiver.add(n * 960, said.packets[n], at)

    n = len(said.packets)
    for _ in ticks(channel(n, seed=11), n + LAG + AFTER, arrive):
        heard.append(receiver.frame().pcm)
    assert receiver.jitter.stats.recovered + receiver.jitter.stats.concealed > 0.03 * n
    cuts = [(c, np.concatenate(heard[c.first + LAG - BEFORE : c.end + LAG + AFTER]))
            for c in said.clips if len(c.words.split()) > 3]  # fmt: skip
    words = await transcribe(over_a_good_line(said), cuts)
    assert words.words > 80
    assert words.good < 25.0
    assert words.points <= GOALS["wer_points"]
