"""The end-of-turn model: features as Whisper's, sense on recorded speech, bounded waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from voice_agent.audio import read_wav, to_float
from voice_agent.errors import InternalError, UsageError
from voice_agent.models import ModelStore
from voice_agent.smart_turn import MAX_WAITING, SmartTurn

pytestmark = pytest.mark.model

CLIPS = Path(__file__).parents[1] / "data" / "clips"
PAUSE = np.zeros(2048, np.float32)


@pytest.fixture(scope="module")
def smart_turn() -> Iterator[SmartTurn]:
    model = SmartTurn(ModelStore().path("smart-turn-v3.2"))
    model.warm()
    yield model
    model.close()


def test_finished_sentences_score_above_cut_ones(smart_turn: SmartTurn) -> None:
    ends, cuts = [], []
    for name, last_s in (
        ("ps_something", 2.21),
        ("ps_austen_0920", 5.86),
        ("ps_austen_0890", 5.15),
    ):
        pcm = to_float(read_wav(CLIPS / f"{name}.wav").pcm)
        last = int(last_s * 16_000)
        ends.append(smart_turn.predict(np.concatenate([pcm[:last], PAUSE])))
        cuts.append(smart_turn.predict(np.concatenate([pcm[: int(last * 0.7)], PAUSE])))
    assert min(ends) > 0.5
    assert np.mean(ends) > np.mean(cuts) + 0.2


@pytest.mark.parametrize("n", [0, 1, 100, 16_000, 16_000 * 20])
def test_any_length_gives_a_probability(smart_turn: SmartTurn, n: int) -> None:
    noise = np.random.default_rng(0).standard_normal(n).astype(np.float32) * 0.1
    assert 0.0 <= smart_turn.predict(noise) <= 1.0


def test_only_the_last_eight_seconds_count(smart_turn: SmartTurn) -> None:
    pcm = to_float(read_wav(CLIPS / "ms_beckett.wav").pcm)
    assert smart_turn.predict(pcm) == smart_turn.predict(pcm[-8 * 16_000 :])


async def test_scores_wait_their_turn_up_to_a_bound(smart_turn: SmartTurn) -> None:
    pcm = np.zeros(1600, np.float32)
    smart_turn._waiting = MAX_WAITING
    assert await smart_turn.score(pcm) is None
    smart_turn._waiting = 0
    both = await asyncio.gather(smart_turn.score(pcm), smart_turn.score(pcm))
    assert both[0] == both[1] is not None
    assert smart_turn._waiting == 0


def test_a_missing_or_broken_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        SmartTurn(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"junk")
    with pytest.raises(InternalError, match="cannot be loaded"):
        SmartTurn(tmp_path / "bad.onnx")
