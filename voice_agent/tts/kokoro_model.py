"""Kokoro-82M in PyTorch: phoneme ids and a style -> durations and sound (StyleTTS 2's layout).

Attribute names are those of the published checkpoint. Inference only, one phrase at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kokoro_decoder import Decoder, StyledBlock, level, masked

N_SYMBOLS, WIDTH, STYLE = 178, 512, 128
BERT_WIDTH, BERT_EMBED, BERT_INNER, BERT_HEADS, BERT_LAYERS, BERT_LEN = 768, 128, 2048, 12, 12, 512
MAX_DURATION = 50
_CONV_MULTIPLE = 32
"""Phonemes are padded to this for convolutions, so that a GPU sees few shapes."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the second half makes sound of. durations int64 [ids], in frames of 25 ms; rhythm and
    asr fp32 [1, 512, frames]."""

    durations: Tensor
    rhythm: Tensor
    asr: Tensor


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(BERT_WIDTH, BERT_WIDTH)
        self.key = nn.Linear(BERT_WIDTH, BERT_WIDTH)
        self.value = nn.Linear(BERT_WIDTH, BERT_WIDTH)
        self.dense = nn.Linear(BERT_WIDTH, BERT_WIDTH)
        self.LayerNorm = nn.LayerNorm(BERT_WIDTH, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            part(x).view(b, n, BERT_HEADS, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, BERT_WIDTH)
        out: Tensor = self.LayerNorm(x + self.dense(y))
        return out


class _AlbertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = _Attention()
        self.ffn = nn.Linear(BERT_WIDTH, BERT_INNER)
        self.ffn_output = nn.Linear(BERT_INNER, BERT_WIDTH)
        self.full_layer_layer_norm = nn.LayerNorm(BERT_WIDTH, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(x)
        inner = F.gelu(self.ffn(y), approximate="tanh")
        out: Tensor = self.full_layer_layer_norm(self.ffn_output(inner) + y)
        return out


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(N_SYMBOLS, BERT_EMBED)
        self.position_embeddings = nn.Embedding(BERT_LEN, BERT_EMBED)
        self.token_type_embeddings = nn.Embedding(2, BERT_EMBED)
        self.LayerNorm = nn.LayerNorm(BERT_EMBED, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word_embeddings(ids) + self.token_type_embeddings.weight[0]
        out: Tensor = self.LayerNorm(x + self.position_embeddings.weight[: ids.shape[1]])
        return out


class _Group(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList([_AlbertLayer()])


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = nn.Linear(BERT_EMBED, BERT_WIDTH)
        self.albert_layer_groups = nn.ModuleList([_Group()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding_hidden_mapping_in(x)
        layer = self.get_submodule("albert_layer_groups.0.albert_layers.0")
        for _ in range(BERT_LAYERS):
            x = layer(x)
        return x


class Albert(nn.Module):
    """One layer, twelve times (arXiv:1909.11942). ids int64 [1, n] -> fp32 [1, n, 768]."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = _Embeddings()
        self.encoder = _Encoder()

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.encoder(self.embeddings(ids))
        return out


class StyledNorm(nn.Module):
    """Layer norm whose gain and offset come from the style. x fp32 [1, n, channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(STYLE, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gain, offset = self.fc(style).unsqueeze(1).chunk(2, 2)
        return torch.addcmul(offset, F.layer_norm(x, x.shape[-1:]), 1 + gain)


class DurationEncoder(nn.Module):
    """[1, n, 512] and a style -> [1, n, 640], the style appended."""

    def __init__(self) -> None:
        super().__init__()
        self.lstms = nn.ModuleList()
        for _ in range(3):
            self.lstms.extend((_both_ways(WIDTH + STYLE), StyledNorm(WIDTH)))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        beside = style.unsqueeze(1).expand(-1, x.shape[1], -1)
        x = torch.cat((x, beside), 2)
        for lstm, norm in zip(self.lstms[::2], self.lstms[1::2], strict=True):
            x = torch.cat((norm(lstm(x)[0], style), beside), 2)
        return x


class _Projection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_layer = nn.Linear(WIDTH, MAX_DURATION)


class Predictor(nn.Module):
    """Durations, pitch and energy."""

    def __init__(self) -> None:
        super().__init__()
        self.text_encoder = DurationEncoder()
        self.lstm = _both_ways(WIDTH + STYLE)
        self.duration_proj = _Projection()
        self.shared = _both_ways(WIDTH + STYLE)
        self.F0, self.N = _curve(), _curve()
        self.F0_proj = nn.Conv1d(WIDTH // 2, 1, 1)
        self.N_proj = nn.Conv1d(WIDTH // 2, 1, 1)

    def durations(self, encoded: Tensor, speed: float) -> Tensor:
        """encoded fp32 [1, n, 640] -> int64 [n], frames of each id, at least one."""
        scores = self.duration_proj.linear_layer(self.lstm(encoded)[0])
        out: Tensor = (scores.sigmoid().sum(2) / speed).round().clamp(min=1).long()[0]
        return out

    def curves(self, rhythm: Tensor, style: Tensor, n: Tensor | None) -> tuple[Tensor, Tensor]:
        """rhythm fp32 [1, 512, frames], n int64 []: frames that count.

        -> pitch (Hz) and energy fp32 [1, 2 frames], zero beyond 2 n.
        """
        width = rhythm.shape[2]
        here, after = level(n, width), level(None if n is None else 2 * n, 2 * width)
        out = []
        for blocks, last in ((self.F0, self.F0_proj), (self.N, self.N_proj)):
            x, where = rhythm, here
            for block in blocks:
                then = after if block.doubles else where
                x, where = block(x, style, where, then), then
            out.append(masked(last(x), after)[:, 0])
        return out[0], out[1]


class TextEncoder(nn.Module):
    """ids int64 [1, n] -> fp32 [1, n, 512]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(N_SYMBOLS, WIDTH)
        self.cnn = nn.ModuleList(
            nn.ModuleList([nn.Conv1d(WIDTH, WIDTH, 5, padding=2), _Norm(WIDTH)]) for _ in range(3)
        )
        self.lstm = _both_ways(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.embedding(ids)
        for layer in self.cnn:
            assert isinstance(layer, nn.ModuleList)
            conv, norm = layer
            padded = F.pad(x.transpose(1, 2), (0, -n % _CONV_MULTIPLE))
            x = F.leaky_relu(norm(conv(padded)[:, :, :n].transpose(1, 2)), 0.2)
        out: Tensor = self.lstm(x)[0]
        return out


class _Norm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)


class KokoroModel(nn.Module):
    """The whole model, 82 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = Albert()
        self.bert_encoder = nn.Linear(BERT_WIDTH, WIDTH)
        self.predictor = Predictor()
        self.text_encoder = TextEncoder()
        self.decoder = Decoder(WIDTH, STYLE)

    def features(self, ids: Tensor, style: Tensor, speed: float) -> Features:
        """ids int64 [1, n], the two boundary zeros included; style fp32 [1, 256]."""
        prosody = style[:, STYLE:]
        encoded = self.predictor.text_encoder(self.bert_encoder(self.bert(ids)), prosody)
        durations = self.predictor.durations(encoded, speed)
        n = int(durations.sum())  # the one time that a GPU is waited for
        spread = partial(torch.repeat_interleave, repeats=durations, dim=1, output_size=n)
        rhythm = self.predictor.shared(spread(encoded))[0]
        asr = spread(self.text_encoder(ids))
        return Features(durations, rhythm.transpose(1, 2), asr.transpose(1, 2))

    def sound(self, rhythm: Tensor, asr: Tensor, style: Tensor, n: Tensor | None = None) -> Tensor:
        """rhythm and asr fp32 [1, 512, frames]; n int64 []: frames that count, the inputs zero
        beyond; None: all -> fp32 [600 frames]."""
        f0, energy = self.predictor.curves(rhythm, style[:, STYLE:], n)
        out: Tensor = self.decoder(asr, f0, energy, style[:, :STYLE], n)
        return out


def _both_ways(n_in: int) -> nn.LSTM:
    return nn.LSTM(n_in, WIDTH // 2, batch_first=True, bidirectional=True)


def _curve() -> nn.ModuleList:
    half = WIDTH // 2
    return nn.ModuleList(
        [
            StyledBlock(WIDTH, WIDTH, STYLE),
            StyledBlock(WIDTH, half, STYLE, double=True),
            StyledBlock(half, half, STYLE),
        ]
    )
