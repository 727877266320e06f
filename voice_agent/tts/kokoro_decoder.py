"""Kokoro's second half in PyTorch: features of 25 ms frames -> 24 kHz sound.

Style-conditioned convolutions (StyleTTS 2, arXiv:2306.07691) and a harmonic source with an inverse
short-time Fourier transform at the end (iSTFTNet, arXiv:2203.02395). Attribute names are those of
the published checkpoint. A width may be padded: with a `Level` per width the result is that of
the unpadded one, so a GPU needs few shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 24_000
HARMONICS = 9
SINE, NOISE, VOICED_HZ = 0.1, 0.003, 10.0
N_FFT, HOP = 20, 5
BINS = N_FFT // 2 + 1
UPSAMPLES = ((10, 20), (6, 12))  # (stride, kernel)
FRAME = 600  # samples of one frame
F0_HOP = 300  # samples of one pitch value, two a frame
RESBLOCKS = (3, 7, 11)
DILATIONS = (1, 3, 5)
_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Level:
    """Which positions of a padded width count. mask fp32 [1, 1, width]; n fp32 [], how many."""

    mask: Tensor
    n: Tensor


def level(n: Tensor | None, width: int) -> Level | None:
    """n: int64 [], positions that count; None: all of them."""
    if n is None:
        return None
    mask = (torch.arange(width, device=n.device) < n).float().view(1, 1, width)
    return Level(mask, n.float())


def masked(x: Tensor, where: Level | None) -> Tensor:
    return x if where is None else x * where.mask


class AdaIN(nn.Module):
    """Instance norm whose gain and offset come from the style. x fp32 [1, channels, width]."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(style, 2 * channels)

    def forward(self, x: Tensor, style: Tensor, where: Level | None) -> Tensor:
        gain, offset = self.fc(style).unsqueeze(2).chunk(2, 1)
        if where is None:
            normed = F.instance_norm(x, eps=_EPS)
        else:
            mean = (x * where.mask).sum(2, keepdim=True) / where.n
            centred = (x - mean) * where.mask
            variance = centred.square().sum(2, keepdim=True) / where.n
            normed = centred * torch.rsqrt(variance + _EPS)
        return torch.addcmul(offset, normed, 1 + gain)


class StyledBlock(nn.Module):
    """Residual block of the decoder and of the pitch and energy predictors; may double the width.

    [1, n_in, width] -> [1, n_out, width or 2 width].
    """

    def __init__(self, n_in: int, n_out: int, style: int, *, double: bool = False) -> None:
        super().__init__()
        self.doubles = double
        self.conv1 = nn.Conv1d(n_in, n_out, 3, padding=1)
        self.conv2 = nn.Conv1d(n_out, n_out, 3, padding=1)
        self.norm1 = AdaIN(style, n_in)
        self.norm2 = AdaIN(style, n_out)
        self.conv1x1 = nn.Conv1d(n_in, n_out, 1, bias=False) if n_in != n_out else None
        self.pool = (
            nn.ConvTranspose1d(n_in, n_in, 3, 2, padding=1, output_padding=1, groups=n_in)
            if double
            else None
        )

    def forward(self, x: Tensor, style: Tensor, here: Level | None, after: Level | None) -> Tensor:
        """after: the level of the result; `here` unless the width doubles."""
        y = masked(F.leaky_relu(self.norm1(x, style, here), 0.2), here)
        if self.pool is not None:
            y, x = masked(self.pool(y), after), x.repeat_interleave(2, 2)
        y = masked(F.leaky_relu(self.norm2(self.conv1(y), style, after), 0.2), after)
        if self.conv1x1 is not None:
            x = self.conv1x1(x)
        out: Tensor = (self.conv2(y) + x) * math.sqrt(0.5)
        return out


class SnakeBlock(nn.Module):
    """Residual block of the generator, three dilations, periodic activation (arXiv:2006.08195)."""

    def __init__(self, channels: int, kernel: int, style: int) -> None:
        super().__init__()

        def convs(dilations: Sequence[int]) -> nn.ModuleList:
            pads = [(kernel - 1) * d // 2 for d in dilations]
            return nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, padding=p, dilation=d)
                for p, d in zip(pads, dilations, strict=True)
            )

        def alphas() -> nn.ParameterList:
            return nn.ParameterList(nn.Parameter(torch.ones(1, channels, 1)) for _ in DILATIONS)

        self.convs1, self.convs2 = convs(DILATIONS), convs([1] * len(DILATIONS))
        self.adain1 = nn.ModuleList(AdaIN(style, channels) for _ in DILATIONS)
        self.adain2 = nn.ModuleList(AdaIN(style, channels) for _ in DILATIONS)
        self.alpha1, self.alpha2 = alphas(), alphas()

    def forward(self, x: Tensor, style: Tensor, where: Level | None) -> Tensor:
        for i, (conv1, conv2) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            y = _snake(self.adain1[i](x, style, where), self.alpha1[i])
            y = _snake(self.adain2[i](conv1(masked(y, where)), style, where), self.alpha2[i])
            x = x + conv2(masked(y, where))
        return x


def _snake(x: Tensor, alpha: Tensor) -> Tensor:
    return torch.addcdiv(x, torch.sin(alpha * x).square(), alpha)


class Source(nn.Module):
    """Pitch -> a sum of harmonics, and noise where nothing is voiced.

    f0 fp32 [1, n], Hz, 0 where unvoiced -> fp32 [1, 1, 300 n].
    """

    _times: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)
        times = torch.arange(1, HARMONICS + 1, dtype=torch.float32).view(1, -1, 1)
        self.register_buffer("_times", times, persistent=False)

    def forward(self, f0: Tensor) -> Tensor:
        turns = (f0.unsqueeze(1) * self._times / RATE) % 1
        phase = torch.cumsum(turns, 2) * (2 * torch.pi * F0_HOP)
        sines = torch.sin(F.interpolate(phase, scale_factor=F0_HOP, mode="linear")) * SINE
        voiced = (f0.repeat_interleave(F0_HOP, 1).unsqueeze(1) > VOICED_HZ).float()
        noise = torch.randn_like(sines) * (voiced * NOISE + (1 - voiced) * (SINE / 3))
        heard = sines * voiced + noise
        return torch.tanh(self.l_linear(heard.transpose(1, 2))).transpose(1, 2)


class Fourier(nn.Module):
    """Short-time Fourier transform of 20 samples every 5, as convolutions: any width, no plans."""

    _forward: Tensor
    _back: Tensor
    _square: Tensor

    def __init__(self) -> None:
        super().__init__()
        window = torch.hann_window(N_FFT, periodic=True, dtype=torch.float64)
        k = torch.arange(BINS, dtype=torch.float64)[:, None]
        angle = 2 * math.pi / N_FFT * k * torch.arange(N_FFT, dtype=torch.float64)
        cos, sin = angle.cos(), angle.sin()
        sin[0] = sin[-1] = 0.0  # these bins are real
        share = torch.full((BINS, 1), 2.0 / N_FFT, dtype=torch.float64)
        share[0] = share[-1] = 1.0 / N_FFT
        self._keep("_forward", torch.cat((cos, -sin)) * window)
        self._keep("_back", torch.cat((cos * share, -sin * share)) * window)
        self._keep("_square", window.square()[None])

    def _keep(self, name: str, basis: Tensor) -> None:
        self.register_buffer(name, basis.float().unsqueeze(1), persistent=False)

    def analyse(self, x: Tensor, n: Tensor | None) -> Tensor:
        """x fp32 [1, 1, width], its ends mirrored; n int64 []: samples that count.

        -> magnitudes and phases fp32 [1, 22, width / 5 + 1].
        """
        width = x.shape[2]
        at = torch.arange(-N_FFT // 2, width + N_FFT // 2, device=x.device).abs()
        last = width - 1 if n is None else n - 1
        at = torch.where(at > last, (2 * last - at).clamp(min=0), at)
        real, imaginary = F.conv1d(x[:, :, at], self._forward, stride=HOP).chunk(2, 1)
        # + 0: a negative zero would turn the phase of a real bin from pi to -pi.
        return torch.cat((torch.hypot(real, imaginary), torch.atan2(imaginary + 0.0, real)), 1)

    def synthesise(self, magnitude: Tensor, phase: Tensor, where: Level | None) -> Tensor:
        """Both fp32 [1, 11, frames] -> fp32 [5 (frames - 1)]."""
        spectrum = torch.cat((magnitude * phase.cos(), magnitude * phase.sin()), 1)
        ones = torch.ones_like(spectrum[:, :1]) if where is None else where.mask
        sound = F.conv_transpose1d(masked(spectrum, where), self._back, stride=HOP)
        weight = F.conv_transpose1d(ones, self._square, stride=HOP)
        edge = N_FFT // 2
        return (sound / weight.clamp(min=1e-8))[0, 0, edge:-edge]


class Generator(nn.Module):
    """Features of half frames -> sound."""

    def __init__(self, style: int, channels: int) -> None:
        super().__init__()
        self.m_source = Source()
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        self.noise_convs, self.noise_res = nn.ModuleList(), nn.ModuleList()
        for i, (stride, kernel) in enumerate(UPSAMPLES):
            n = channels >> (i + 1)
            pad = (kernel - stride) // 2
            self.ups.append(nn.ConvTranspose1d(2 * n, n, kernel, stride, padding=pad))
            self.resblocks.extend(SnakeBlock(n, k, style) for k in RESBLOCKS)
            rest = math.prod(s for s, _ in UPSAMPLES[i + 1 :])
            size, pad = (2 * rest, (rest + 1) // 2) if rest > 1 else (1, 0)
            self.noise_convs.append(nn.Conv1d(2 * BINS, n, size, rest, padding=pad))
            self.noise_res.append(SnakeBlock(n, 7 if rest > 1 else 11, style))
        self.conv_post = nn.Conv1d(n, 2 * BINS, 7, padding=3)
        self.stft = Fourier()

    def forward(self, x: Tensor, style: Tensor, f0: Tensor, n: Tensor | None) -> Tensor:
        """x fp32 [1, channels, width] and f0 fp32 [1, width]; both zero beyond n.

        n: int64 [], positions that count -> fp32 [300 width].
        """
        counts = [None if n is None else n * times for times in (F0_HOP, F0_HOP // HOP)]
        source, ends = self.m_source(f0), counts[1] + 1 if counts[1] is not None else None
        harmonics = self.stft.analyse(source, counts[0])
        whole = level(ends, harmonics.shape[2])
        harmonics = masked(harmonics, whole)
        for i, (stride, _) in enumerate(UPSAMPLES):
            final = i == len(UPSAMPLES) - 1
            n = None if n is None else n * stride
            x = self.ups[i](F.leaky_relu(x, 0.1))
            if final:
                x = F.pad(x, (1, 0), mode="reflect")
            where = whole if final else level(n, x.shape[2])
            x = masked(x + self.noise_res[i](self.noise_convs[i](harmonics), style, where), where)
            blocks = self.resblocks[len(RESBLOCKS) * i : len(RESBLOCKS) * (i + 1)]
            x = sum(block(x, style, where) for block in blocks) / len(RESBLOCKS)
            x = masked(x, where)
        x = self.conv_post(F.leaky_relu(x))
        return self.stft.synthesise(x[:, :BINS].exp(), x[:, BINS:].sin(), whole)


class Decoder(nn.Module):
    """Phoneme features, pitch and energy -> sound."""

    def __init__(self, width: int = 512, style: int = 128) -> None:
        super().__init__()
        inner = 2 * width
        more = 64 + 2
        self.encode = StyledBlock(width + 2, inner, style)
        self.decode = nn.ModuleList(
            [StyledBlock(inner + more, inner, style) for _ in range(3)]
            + [StyledBlock(inner + more, width, style, double=True)]
        )
        self.F0_conv = nn.Conv1d(1, 1, 3, 2, padding=1)
        self.N_conv = nn.Conv1d(1, 1, 3, 2, padding=1)
        self.asr_res = nn.Sequential(nn.Conv1d(width, 64, 1))
        self.generator = Generator(style, width)

    def forward(
        self, asr: Tensor, f0: Tensor, energy: Tensor, style: Tensor, n: Tensor | None = None
    ) -> Tensor:
        """asr fp32 [1, 512, frames], f0 and energy fp32 [1, 2 frames], style fp32 [1, 128].

        n: int64 [], frames that count, the inputs zero beyond; None: all -> fp32 [600 frames],
        silent beyond 600 n.
        """
        frames = asr.shape[2]
        here = level(n, frames)
        after = level(None if n is None else 2 * n, 2 * frames)
        pitch = masked(self.F0_conv(f0.unsqueeze(1)), here)
        force = masked(self.N_conv(energy.unsqueeze(1)), here)
        x = self.encode(torch.cat((asr, pitch, force), 1), style, here, here)
        beside = torch.cat((self.asr_res(asr), pitch, force), 1)
        for block in self.decode:
            level_after = after if block.doubles else here
            x = block(torch.cat((x, beside), 1), style, here, level_after)
        twice = None if n is None else 2 * n
        out: Tensor = self.generator(masked(x, after), style, f0, twice)
        return out
