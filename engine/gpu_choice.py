"""Chooses tokens on the device, by the rules and random numbers of `engine.choice`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.counts import TokenCounts
from engine.device import Device
from engine.gpu_step import Pick
from kernels.resolve import resolve
from kernels.sample.spec import Biases, Penalties, Settings, Workspace, sample_workspace

_ROOM = 64
"""Penalised or biased tokens of a row come in multiples of this, so that few shapes exist."""


class DeviceChoice:
    """Owns the memory of choosing for up to `n_rows` rows at a time, used by one step at a time."""

    def __init__(self, device: Device, n_rows: int, vocab: int) -> None:
        self._device = device
        self._sample = resolve("sample", device.name)
        self._mask = resolve("logits_mask", device.name)
        self._workspace = sample_workspace(n_rows, vocab, device.name)
        self._n_rows = n_rows
        self._words = -(-vocab // 32)

    def prepare(self, logits: Tensor) -> None:
        """Load what grammars need; logits [b, vocab] stay as they are."""
        bits = np.zeros((1, self._words), np.int32)
        nobody = np.full(1, -1, np.int32)
        self._mask(logits[:1], self._device.send(bits), self._device.send(nobody))

    def likeliest(self, logits: Tensor) -> Tensor:
        """logits [b, vocab] -> the largest one's token of each row, int64 [b].

        The result is valid until the next call.
        """
        best: Tensor = self._sample(logits, None, self._room(logits))
        return best

    def draw(self, logits: Tensor, picks: Sequence[Pick], settings: Settings) -> Tensor:
        """logits [b, vocab], changed where a row has biases, penalties or a grammar -> int64 [b].

        settings: of b rows, already on the device. Waits for the grammars' masks, not for the
        device. Valid until the next call.
        """
        picks = [pick for pick in picks if not pick.on_host]
        b = logits.shape[0]
        self._rule_out(logits, [pick for pick in picks if pick.sample.constraint is not None])
        penalised = [pick for pick in picks if pick.sample.params.penalised]
        biased = [pick for pick in picks if pick.sample.params.logit_bias]
        settings = replace(
            settings,
            penalties=self._penalties(b, penalised) if penalised else None,
            biases=self._biases(b, biased) if biased else None,
        )
        drawn: Tensor = self._sample(logits, settings, self._room(logits))
        return drawn

    def _room(self, logits: Tensor) -> Workspace | None:
        """Memory for so many rows; None, to be taken anew, where guesses make them too many."""
        return self._workspace if len(logits) <= self._n_rows else None

    def _rule_out(self, logits: Tensor, picks: Sequence[Pick]) -> None:
        """What a grammar forbids; one that failed forbids nothing: its request ends anyway."""
        masks = []
        for pick in picks:
            assert pick.sample.constraint is not None
            banned = pick.sample.constraint.banned()
            if banned is not None:
                masks.append((pick.at, np.packbits(~banned, bitorder="little")))
        if not masks:
            return
        bits = np.zeros((len(masks), 4 * self._words), np.uint8)
        for i, (_, allowed) in enumerate(masks):
            bits[i, : len(allowed)] = allowed
        sent = self._device.send(bits.view(np.int32))
        first = self._device.send(np.zeros(1, np.int32))
        for i, (at, _) in enumerate(masks):
            self._mask(logits[at : at + 1], sent[i : i + 1], first)

    def _penalties(self, b: int, picks: Sequence[Pick]) -> Penalties:
        counts = []
        for pick in picks:
            count = pick.sample.counts or TokenCounts()
            count.catch_up(pick.sample.history, pick.sample.n_prompt)
            counts.append(count)
        room = _padded(max(len(count.seen) for count in counts))
        seen, said = np.full((b, room), -1, np.int32), np.zeros((b, room), np.float32)
        three = np.zeros((3, b), np.float64)
        three[0] = 1.0
        for pick, count in zip(picks, counts, strict=True):
            n, p = len(count.seen), pick.sample.params
            seen[pick.at, :n], said[pick.at, :n] = count.seen, count.said
            three[:, pick.at] = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
        repetition, presence, frequency = self._device.send(three)
        return Penalties(
            repetition=repetition.to(torch.float32),
            presence=presence,
            frequency=frequency.to(torch.float32),
            seen=self._device.send(seen),
            said=self._device.send(said),
        )

    def _biases(self, b: int, picks: Sequence[Pick]) -> Biases:
        sums: list[tuple[int, dict[int, float]]] = []
        for pick in picks:
            of: dict[int, float] = {}
            for token, value in pick.sample.params.logit_bias:
                of[token] = of.get(token, 0.0) + value
            sums.append((pick.at, of))
        room = _padded(max(len(of) for _, of in sums))
        tokens, values = np.full((b, room), -1, np.int32), np.zeros((b, room), np.float32)
        for at, of in sums:
            tokens[at, : len(of)] = list(of)
            values[at, : len(of)] = list(of.values())
        return Biases(self._device.send(tokens), self._device.send(values))


def _padded(n: int) -> int:
    return max(1, -(-n // _ROOM)) * _ROOM
