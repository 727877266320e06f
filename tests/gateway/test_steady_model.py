"""What recognition makes of a telephone line that loses packets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gateway.media import g711
from gateway.media.resample import Resampler
from gateway.media.steady import Steady
from tests.support.clips import clip, room, transcripts, word_error_rate
from voice_agent.audio import to_float
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import IN_FRAME, IN_RATE, Pcm16

pytestmark = pytest.mark.model

NAMES = list(transcripts())
LOSS = 0.02
SEEDS = 3


@pytest.fixture(scope="module")
def recognizer() -> Iterator[WhisperRecognizer]:
    made = WhisperRecognizer(ModelStore().path("whisper-tiny.en"))
    yield made
    made.close()


def over_the_line(pcm: Pcm16, seed: int) -> tuple[Pcm16, int]:
    """16 kHz through mu-law packets of 20 ms, of which LOSS don't arrive, one after the other; and
    how many were concealed."""
    rng = np.random.default_rng(seed)
    down, up, steady = Resampler(IN_RATE, g711.RATE), Resampler(g711.RATE, IN_RATE), Steady()
    out = []
    for at in range(0, len(pcm) - IN_FRAME + 1, IN_FRAME):
        packet = g711.encode_ulaw(down.push(pcm[at : at + IN_FRAME]))
        if rng.random() >= LOSS:
            steady.push(up.push(g711.decode_ulaw(packet)))
        out.append(steady.frame().pcm)
    return np.concatenate(out), steady.stats.concealed


async def test_two_percent_of_loss_costs_at_most_four_points_of_word_error(
    recognizer: WhisperRecognizer,
) -> None:
    async def heard(sounds: list[Pcm16]) -> list[str]:
        return [(await recognizer.transcribe(to_float(s), final=True)).text for s in sounds]

    truth = [transcripts()[name] for name in NAMES]
    said = [np.concatenate([room(0.5), clip(name), room(0.5)]) for name in NAMES]
    clean = word_error_rate(truth, await heard(said))
    lossy: list[str] = []
    concealed = 0
    for seed in range(SEEDS):
        lines = [over_the_line(pcm, 100 * seed + k) for k, pcm in enumerate(said)]
        concealed += sum(n for _, n in lines)
        lossy += await heard([pcm for pcm, _ in lines])
    frames = SEEDS * sum(len(pcm) for pcm in said) / IN_FRAME
    assert 0.5 * LOSS < concealed / frames < 1.5 * LOSS
    assert word_error_rate(truth * SEEDS, lossy) <= clean + 0.04
