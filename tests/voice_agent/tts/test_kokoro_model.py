"""The GPU voice's arithmetic on the CPU, random weights: padding changes nothing that is heard."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from voice_agent.tts.kokoro_cuda import FrameGraphs
from voice_agent.tts.kokoro_decoder import BINS, Decoder, Fourier, level
from voice_agent.tts.kokoro_model import STYLE, WIDTH, KokoroModel

pytestmark = pytest.mark.unit


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No noise, which would differ between two calls; nothing to train."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    with torch.inference_mode():
        yield


def padded(x: Tensor, n: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, n))


def test_the_transform_is_that_of_torch(quiet: None) -> None:
    torch.manual_seed(1)
    sound = torch.randn(600)
    fourier, window = Fourier(), torch.hann_window(20)
    both = fourier.analyse(sound.view(1, 1, -1), None)
    theirs = torch.stft(sound, 20, 5, window=window, return_complex=True)
    torch.testing.assert_close(both[0, :BINS], theirs.abs(), atol=1e-5, rtol=1e-5)
    ours = torch.polar(both[0, :BINS], both[0, BINS:])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    back = fourier.synthesise(both[:, :BINS], both[:, BINS:], None)
    torch.testing.assert_close(back, sound, atol=1e-5, rtol=1e-5)


def test_a_cut_sound_is_mirrored_at_its_own_end(quiet: None) -> None:
    torch.manual_seed(2)
    sound, n = torch.randn(1, 1, 600), torch.tensor(400)
    fourier = Fourier()
    alone, cut = fourier.analyse(sound[:, :, :400], None), fourier.analyse(sound, n)
    torch.testing.assert_close(cut[:, :, :81], alone)
    where = level(torch.tensor(81), 121)
    back = fourier.synthesise(cut[:, :BINS], cut[:, BINS:], where)
    torch.testing.assert_close(back[:400], sound[0, 0, :400], atol=1e-5, rtol=1e-5)
    assert not back[415:].any()


def test_padding_the_decoder_changes_nothing(quiet: None) -> None:
    torch.manual_seed(3)
    decoder = Decoder(width=32, style=8).eval()
    frames, spare = 5, 3
    asr, style = torch.randn(1, 32, frames), torch.randn(1, 8)
    f0 = 100 + 50 * torch.rand(1, 2 * frames)
    energy = torch.rand(1, 2 * frames)
    alone = decoder(asr, f0, energy, style)
    assert alone.shape == (600 * frames,)
    assert alone.abs().max() > 1e-4
    wide = decoder(
        padded(asr, spare), padded(f0, 2 * spare), padded(energy, 2 * spare), style,
        torch.tensor(frames),
    )  # fmt: skip
    error = (wide[: 600 * frames] - alone).abs().max()
    assert error <= 1e-3 * alone.abs().max()
    assert not wide[600 * frames + 20 :].any()


def test_a_phrase_takes_the_next_width_that_holds_it(
    quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(4)
    model = KokoroModel().eval()
    rhythm, asr, style = (
        torch.randn(1, WIDTH, 5),
        torch.randn(1, WIDTH, 5),
        torch.randn(1, 2 * STYLE),
    )
    seen: list[tuple[int, int | None]] = []

    def sound(rhythm: Tensor, asr: Tensor, style: Tensor, n: Tensor | None = None) -> Tensor:
        seen.append((asr.shape[2], None if n is None else int(n)))
        return torch.arange(600.0 * asr.shape[2])

    monkeypatch.setattr(model, "sound", sound)
    graphs = FrameGraphs(model, (4, 8), graphs=False)
    assert len(graphs(rhythm, asr, style)) == 3000
    graphs.capture()
    assert len(graphs(rhythm, asr, style)) == 3000
    assert len(graphs(*(torch.cat((x, x), 2) for x in (rhythm, asr)), style)) == 6000
    assert seen == [(5, None), (8, 5), (10, None)]


class FakeGraph:
    """Stands for torch.cuda.CUDAGraph; the fake `graph` runs what is captured, once."""

    made: ClassVar[list[FakeGraph]] = []

    def __init__(self) -> None:
        self.replays = 0
        FakeGraph.made.append(self)

    def pool(self) -> str:
        return "the first one's pool"

    def replay(self) -> None:
        self.replays += 1


def test_graphs_are_captured_from_the_widest_down_in_one_pool(
    quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, given = inspect.signature(torch.cuda.graph.__init__), []

    @contextlib.contextmanager
    def graph(*args: Any, **options: Any) -> Iterator[None]:
        given.append(real.bind(None, *args, **options).arguments)
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    FakeGraph.made.clear()
    monkeypatch.setattr(torch.cuda, "Stream", lambda priority: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda s: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    model = KokoroModel().eval()
    monkeypatch.setattr(model, "sound", lambda rhythm, *rest: rhythm[0, 0].repeat_interleave(600))
    graphs = FrameGraphs(model, (2, 4))
    graphs.capture()
    assert [call["pool"] for call in given] == [None, "the first one's pool"]
    assert all(call["stream"] is stream for call in given)
    ones = torch.ones(1, WIDTH, 3)
    graphs(ones, ones, torch.zeros(1, 2 * STYLE))
    assert [made.replays for made in FakeGraph.made] == [1, 0]
    assert graphs.longest_ms() > 0
    assert [made.replays for made in FakeGraph.made] == [3, 0]


def test_durations_cut_the_text_into_frames(quiet: None) -> None:
    torch.manual_seed(5)
    model = KokoroModel().eval()
    ids, style = torch.tensor([[0, 50, 0]]), torch.zeros(1, 2 * STYLE)
    made = model.features(ids, style, 4.0)
    n, first = int(made.durations.sum()), int(made.durations[0])
    assert made.durations.shape == (3,)
    assert int(made.durations.min()) >= 1
    assert made.rhythm.shape == made.asr.shape == (1, WIDTH, n)
    torch.testing.assert_close(made.asr[:, :, :first], made.asr[:, :, :1].expand(-1, -1, first))
    assert n < int(model.features(ids, style, 2.0).durations.sum())
