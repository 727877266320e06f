"""The real recogniser on recorded speech, silence and noise."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator
from pathlib import Path

import jiwer
import numpy as np
import pytest
import soxr
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from voice_agent.audio import read_wav, to_float
from voice_agent.endpointing import PRESETS, EdgeKind, Endpointer
from voice_agent.errors import CapacityError, InternalError, UsageError
from voice_agent.mel import whisper_features
from voice_agent.models import ModelStore
from voice_agent.stt.partials import PartialPolicy
from voice_agent.stt.streaming import PRE_ROLL_MS, Utterance
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.types import IN_RATE, Pcm16, PcmF32
from voice_agent.vad import WINDOW, SileroVad

pytestmark = pytest.mark.model

CLIPS = Path(__file__).parents[2] / "data" / "clips"
CLEAN = ("ms_beckett", "ps_austen")
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def recognizer() -> Iterator[WhisperRecognizer]:
    recognizer = WhisperRecognizer(ModelStore().path("whisper-tiny.en"))
    recognizer.warm()
    yield recognizer
    recognizer.close()


def clip(name: str) -> Pcm16:
    return read_wav(CLIPS / f"{name}.wav").pcm


def references() -> dict[str, str]:
    with (CLIPS / "transcripts.tsv").open(newline="") as f:
        return {Path(r["file"]).stem: r["transcript"] for r in csv.DictReader(f, delimiter="\t")}


def test_features_are_whispers() -> None:
    from faster_whisper.feature_extractor import FeatureExtractor

    for n in (1_601, 16_000, 83_333):
        pcm = (RNG.standard_normal(n) * 0.1).astype(np.float32)
        theirs = FeatureExtractor()(np.pad(pcm, (0, 1_200 * 160 - n)), padding=0)
        ours = whisper_features(pcm, 1_200)
        assert ours.dtype == np.float32
        assert np.abs(ours - theirs[:, :1_200]).max() < 1e-4


NOISES: dict[str, PcmF32] = {
    "silence": np.zeros(32_000, np.float32),
    "hiss": (RNG.standard_normal(32_000) * 0.0003).astype(np.float32),
    "white": (RNG.standard_normal(32_000) * 0.01).astype(np.float32),
    "loud": (RNG.standard_normal(48_000) * 0.2).astype(np.float32),
    "short": (RNG.standard_normal(9_000) * 0.05).astype(np.float32),
    "brown": (np.cumsum(RNG.standard_normal(64_000)) * 0.001).astype(np.float32),
    "hum": (0.1 * np.sin(np.arange(48_000) * 2 * np.pi * 100 / IN_RATE)).astype(np.float32),
    "clicks": np.where(np.arange(32_000) % 8_000 < 20, 0.8, 0.0).astype(np.float32),
    "square": np.sign(np.sin(np.arange(32_000) / 9)).astype(np.float32),
    "empty": np.zeros(0, np.float32),
    "one sample": np.ones(1, np.float32),
}


@pytest.mark.parametrize("name", sorted(NOISES))
def test_nothing_is_heard_where_nobody_speaks(recognizer: WhisperRecognizer, name: str) -> None:
    assert recognizer.recognize(NOISES[name]).words == ()


def test_clipped_speech_is_still_heard(recognizer: WhisperRecognizer) -> None:
    pcm = np.clip(to_float(clip("ps_austen_0930")) * 20, -1, 1)
    assert "himself" in recognizer.recognize(pcm).text.lower()


def test_very_fast_speech_is_heard_to_its_end(recognizer: WhisperRecognizer) -> None:
    pcm = to_float(clip("ps_austen_0870"))
    fast = soxr.resample(pcm, 1.8 * IN_RATE, IN_RATE).astype(np.float32)
    decoded = recognizer.model.decode(fast)
    assert decoded.n_generated > 6 * len(fast) / IN_RATE
    assert " ".join(decoded.words).endswith("for them.")


def test_a_prefix_is_forced_and_returned_unchanged(recognizer: WhisperRecognizer) -> None:
    pcm = to_float(clip("ps_austen_0920"))
    free = recognizer.recognize(pcm)
    for n in (1, 5, len(free.words)):
        forced = recognizer.recognize(pcm, free.words[:n])
        assert forced.words[:n] == free.words[:n]
        assert forced.n_confirmed == n
        assert len(forced.words) <= len(free.words) + 1
    odd = recognizer.recognize(pcm, ("Has", "he"))
    assert odd.words[:2] == ("Has", "he")


async def test_streamed_transcripts_of_clean_speech(recognizer: WhisperRecognizer) -> None:
    """The whole hearing path in media time: error rate, early confirmation, passes per final."""
    normalise = EnglishTextNormalizer({})
    wanted = {n: t for n, t in references().items() if n.startswith(CLEAN)}
    said, heard, passes, finals, shares = [], [], 0, 0, {}
    for name, text in wanted.items():
        words = []
        for turn in await listen(recognizer, clip(name)):
            words.append(turn.text)
            passes += turn.passes
            finals += 1
            shares[name] = turn.confirmed_share
        said.append(normalise(text))
        heard.append(normalise(" ".join(words)))
    assert jiwer.wer(said, heard) <= 0.08
    assert passes / finals <= 2.5
    assert shares["ps_austen_0920"] >= 0.6  # six seconds


class HeardTurn:
    def __init__(self) -> None:
        self.text = ""
        self.passes = 0
        self.confirmed_share = 0.0


async def listen(recognizer: WhisperRecognizer, pcm: Pcm16) -> list[HeardTurn]:
    pcm = np.concatenate([np.zeros(8_000, np.int16), pcm, np.zeros(32_000, np.int16)])
    probs = SileroVad().probabilities(to_float(pcm))
    endpointer, policy = Endpointer(PRESETS["balanced"]), PartialPolicy()
    utterance = Utterance(recognizer)
    turns: list[HeardTurn] = []
    n_confirmed = 0
    for i, prob in enumerate(probs):
        start, end = i * WINDOW, (i + 1) * WINDOW
        voiced = bool(prob >= 0.35)
        if endpointer.in_speech:
            utterance.append(pcm[start:end], voiced=voiced)
        for edge in endpointer.on_window(float(prob), end):
            if edge.kind is EdgeKind.ONSET:
                utterance.reset()
                pre_roll = max(0, edge.sample - PRE_ROLL_MS * IN_RATE // 1000)
                utterance.append(pcm[pre_roll:end], voiced=True)
                policy.begin(edge.sample)
                turns.append(HeardTurn())
                n_confirmed = 0
            elif edge.kind is EdgeKind.PAUSE and policy.pause(edge.sample, end):
                result = await utterance.transcribe(pause=True)
                endpointer.set_evidence(result.text)
            elif edge.kind is EdgeKind.ENDED:
                final = await utterance.transcribe(final=True)
                turns[-1].text = final.text
                turns[-1].confirmed_share = n_confirmed / max(1, len(final.words))
        if endpointer.in_speech and policy.due(start, end, voiced=voiced, agent_speaking=False):
            n_confirmed = (await utterance.transcribe()).n_confirmed
            turns[-1].passes += 1
    return turns


async def test_a_long_monologue_keeps_its_words(recognizer: WhisperRecognizer) -> None:
    """About 27 s with hardly a pause: the window slides and little is lost or doubled."""
    names = [n for n in references() if n.startswith("ps_austen")]
    pcm = np.concatenate([clip(n) for n in names] + [clip("ps_something")])
    utterance = Utterance(recognizer)
    confirmed: tuple[str, ...] = ()
    for at in range(0, len(pcm), 3 * IN_RATE):
        utterance.append(pcm[at : at + 3 * IN_RATE], voiced=True)
        result = await utterance.transcribe()
        assert result.words[: len(confirmed)] == confirmed
        confirmed = result.words[: result.n_confirmed]
        assert utterance.held_samples <= 23 * IN_RATE
    final = await utterance.transcribe(final=True)
    normalise = EnglishTextNormalizer({})
    said = normalise(" ".join(references()[n] for n in [*names, "ps_something"]))
    assert jiwer.wer(said, normalise(final.text)) <= 0.15


async def test_two_utterances_at_once_hear_only_themselves(recognizer: WhisperRecognizer) -> None:
    one, two = Utterance(recognizer), Utterance(recognizer)
    one.append(clip("ps_austen_0930"), voiced=True)
    two.append(clip("ps_something"), voiced=True)
    first, second = await asyncio.gather(one.transcribe(final=True), two.transcribe(final=True))
    assert "amiable" in first.text
    assert "somewhere" in second.text


async def test_cancelled_before_it_starts_it_never_runs(recognizer: WhisperRecognizer) -> None:
    pcm = to_float(clip("ps_austen_0870"))
    before = recognizer.passes
    running = asyncio.ensure_future(recognizer.transcribe(pcm, final=True))
    waiting = [asyncio.ensure_future(recognizer.transcribe(pcm)) for _ in range(5)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await running
    assert recognizer.n_waiting == 0
    assert recognizer.passes - before <= 2


async def test_a_failing_model_is_an_internal_error(
    recognizer: WhisperRecognizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(recognizer.model, "decode", broken)
        with pytest.raises(InternalError, match="no memory"):
            await recognizer.transcribe(to_float(clip("ps_something")))
    assert (await recognizer.transcribe(to_float(clip("ps_something")))).words


async def test_closing_answers_everyone() -> None:
    recognizer = WhisperRecognizer(ModelStore().path("whisper-tiny.en"))
    recognizer.close()
    recognizer.close()
    with pytest.raises(CapacityError):
        await recognizer.transcribe(np.zeros(16_000, np.float32))


def test_incomplete_model_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model\.bin"):
        WhisperRecognizer(tmp_path)
