"""A step's numbers on the device: fixed memory, filled by one asynchronous copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.device import Device, Mark
from engine.errors import InternalError
from engine.gpu_step import Pick
from engine.inputs import Row
from kernels.sample.spec import Settings

_RING = 2
"""Host copies: one may still be on its way to the device while the next is filled."""
SKIP = -1
"""A place in the cache where nothing is written."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of each that a step may have. width: blocks of one request."""

    n_tokens: int
    n_rows: int
    width: int
    block_size: int
    dummy_block: int
    """Fills block tables past their end, and those of padding: nobody's keys and values."""
    dummy_lane: int
    """Where tokens go that nobody will ask for."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Views of the device's memory, as long as the limits.

    Per token, int64: `ids` (PENDING: what is in `tokens[sources]`), `sources`, `positions` and
    `slots` (block * block_size + offset in the cache, or SKIP).
    Per place of the logits: `wanted` int64 (its token's number), `lanes` int64 (where in `tokens`
    the choice goes), and the settings of its draw if the step draws (`kernels.sample`).
    Per row, int32: `seen` (positions, this step's included; 0 is padding), `starts` (of its tokens;
    one more at the end), `tables` [rows, width].
    """

    ids: Tensor
    sources: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor
    lanes: Tensor
    seeds: Tensor
    draws: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seen: Tensor
    starts: Tensor
    tables: Tensor

    def settings(self, n: int) -> Settings:
        """Of the first n places."""
        return Settings(
            temperature=self.temperature[:n],
            top_k=self.top_k[:n],
            top_p=self.top_p[:n],
            min_p=self.min_p[:n],
            seeds=self.seeds[:n],
            positions=self.draws[:n],
        )


class StepInputs:
    """Owns the device's memory and its staging. One user at a time."""

    def __init__(self, device: Device, limits: Limits) -> None:
        self._device = device
        self.limits = limits
        n_bytes = sum(-(-dtype.itemsize * n // 16) * 16 for _, dtype, n in _layout(limits))
        self._buffer = torch.zeros(n_bytes, dtype=torch.uint8, device=device.name)
        self._ring = [_Staging(device.staging(n_bytes), limits) for _ in range(_RING)]
        self._turn = 0
        self.fields = Fields(**_views(self._buffer, limits))

    def fits(self, n_rows: int, n_tokens: int) -> bool:
        return n_tokens <= self.limits.n_tokens and n_rows <= self.limits.n_rows

    def send(self, rows: Sequence[Row], picks: Sequence[Pick], n_rows: int, *, draws: bool) -> int:
        """Copy a step to the device, padded with empty rows of one token to `n_rows`.

        draws: whether the settings of the picks count. Called inside the device's `work`. Returns
        the number of tokens, without padding.
        """
        self._turn = (self._turn + 1) % _RING
        host = self._ring[self._turn]
        if host.sent is not None:
            host.sent.synchronize()
        n_tokens = host.fill(rows, n_rows)
        host.choose(rows, picks, max(n_rows, len(picks)), draws)
        used = len(self._buffer) - 4 * self.limits.width * (self.limits.n_rows - n_rows)
        self._buffer[:used].copy_(host.buffer[:used], non_blocking=True)
        host.sent = self._device.mark()
        return n_tokens


class _Staging:
    """One host copy. Block tables are written again only where they changed."""

    def __init__(self, buffer: Tensor, limits: Limits) -> None:
        self.buffer = buffer
        self.sent: Mark | None = None
        self._limits = limits
        self._of = {name: view.numpy() for name, view in _views(buffer, limits).items()}
        self._of["tables"].fill(limits.dummy_block)
        self._known: list[tuple[int, ...]] = [()] * limits.n_rows

    def fill(self, rows: Sequence[Row], n_rows: int) -> int:
        """What is computed. Returns the number of tokens without padding."""
        of, n, most = self._of, len(rows), self._limits
        for i in range(n_rows):
            self._table(i, rows[i].blocks if i < n else ())
        counts = np.fromiter((len(row.token_ids) for row in rows), np.int64, n)
        starts = np.fromiter((row.start for row in rows), np.int64, n)
        ends = np.cumsum(counts)
        n_tokens = int(ends[-1])
        owner = np.repeat(np.arange(n), counts)
        positions = np.arange(n_tokens) + np.repeat(starts - (ends - counts), counts)
        blocks = of["tables"][owner, positions // most.block_size].astype(np.int64)

        ids = chain.from_iterable(row.token_ids for row in rows)
        of["ids"][:n_tokens] = np.fromiter(ids, np.int64, n_tokens)
        of["sources"][:n_tokens] = self._lanes(rows)[owner]
        of["positions"][:n_tokens] = positions
        of["slots"][:n_tokens] = blocks * most.block_size + positions % most.block_size
        of["seen"][:n] = starts + counts
        of["seen"][n:n_rows] = 0
        padded = n_tokens + n_rows - n
        of["starts"][1 : n + 1] = ends
        of["starts"][n + 1 : n_rows + 1] = np.arange(n_tokens + 1, padded + 1)
        of["ids"][n_tokens:padded] = 0
        of["sources"][n_tokens:padded] = most.dummy_lane
        of["positions"][n_tokens:padded] = 0
        of["slots"][n_tokens:padded] = SKIP
        return n_tokens

    def choose(
        self, rows: Sequence[Row], picks: Sequence[Pick], n_places: int, draws: bool
    ) -> None:
        """What is chosen, and where it goes.

        Guesses leave open which choice counts, so theirs are kept nowhere: the loop reads them.
        """
        of, lanes = self._of, self._lanes(rows)
        of["lanes"][:n_places] = self._limits.dummy_lane
        for pick in picks:
            of["wanted"][pick.at] = pick.token
            if not rows[pick.row].n_proposed:
                of["lanes"][pick.at] = lanes[pick.row]
        if not draws:
            return
        of["temperature"][:n_places] = 0.0
        for pick in picks:
            params, at = pick.sample.params, pick.at
            of["temperature"][at] = 0.0 if pick.on_host else params.temperature
            of["top_k"][at] = params.top_k
            of["top_p"][at] = params.top_p
            of["min_p"][at] = params.min_p
            of["seeds"][at] = _signed(pick.sample.seed)
            of["draws"][at] = pick.sample.position

    def _lanes(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        lanes = np.fromiter((row.slot for row in rows), np.int64, len(rows))
        if int(lanes.max()) >= self._limits.dummy_lane:
            raise InternalError(f"slot {lanes.max()}, but there are {self._limits.dummy_lane}")
        lanes[lanes < 0] = self._limits.dummy_lane
        return lanes

    def _table(self, i: int, blocks: tuple[int, ...]) -> None:
        known = self._known[i]
        if known != blocks:
            row = self._of["tables"][i]
            row[: len(blocks)] = blocks
            row[len(blocks) : len(known)] = self._limits.dummy_block
            self._known[i] = blocks


def _signed(seed: int) -> int:
    """The same 64 bits as a signed number."""
    low = seed & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _layout(limits: Limits) -> list[tuple[str, torch.dtype, int]]:
    """(name, dtype, length) of each part; kernels like each to begin at 16 bytes."""
    tokens = ("ids", "sources", "positions", "slots", "wanted", "lanes", "seeds", "draws")
    parts = [(name, torch.int64, limits.n_tokens) for name in tokens]
    parts += [(name, torch.float32, limits.n_tokens) for name in ("temperature", "top_p", "min_p")]
    return [
        *parts,
        ("top_k", torch.int32, limits.n_tokens),
        ("seen", torch.int32, limits.n_rows),
        ("starts", torch.int32, limits.n_rows + 1),
        ("tables", torch.int32, limits.n_rows * limits.width),
    ]


def _views(buffer: Tensor, limits: Limits) -> dict[str, Tensor]:
    views, at = {}, 0
    for name, dtype, n in _layout(limits):
        views[name] = buffer[at : at + dtype.itemsize * n].view(dtype)
        at += -(-dtype.itemsize * n // 16) * 16
    views["tables"] = views["tables"].view(limits.n_rows, limits.width)
    return views
