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
_BITS = 2**64 - 1
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
        host.choose(picks, max(n_rows, len(picks)), draws)
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
        self._lanes = np.empty(0, np.int64)

    def fill(self, rows: Sequence[Row], n_rows: int) -> int:
        """What is computed. Returns the number of tokens without padding."""
        of, n, most = self._of, len(rows), self._limits
        for i, row in enumerate(rows):
            self._table(i, row.blocks)
        for i in range(n, n_rows):
            self._table(i, ())
        counts = np.fromiter((len(row.token_ids) for row in rows), np.int64, n)
        starts = np.fromiter((row.start for row in rows), np.int64, n)
        ends = np.cumsum(counts)
        n_tokens = int(ends[-1])
        owner = np.repeat(np.arange(n), counts)
        positions = np.arange(n_tokens) + np.repeat(starts - (ends - counts), counts)
        blocks = of["tables"][owner, positions // most.block_size].astype(np.int64)

        ids = chain.from_iterable(row.token_ids for row in rows)
        of["ids"][:n_tokens] = np.fromiter(ids, np.int64, n_tokens)
        self._lanes = self._lanes_of(rows)
        of["sources"][:n_tokens] = self._lanes[owner]
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

    def choose(self, picks: Sequence[Pick], n_places: int, draws: bool) -> None:
        """What is chosen, and where it goes; after `fill`."""
        of = self._of
        of["lanes"][:n_places] = self._limits.dummy_lane
        if not picks:
            return
        at = np.fromiter((pick.at for pick in picks), np.int64, len(picks))
        of["wanted"][at] = [pick.token for pick in picks]
        of["lanes"][at] = self._lanes[[pick.row for pick in picks]]
        if not draws:
            return
        of["temperature"][:n_places] = 0.0
        params = [pick.sample.params for pick in picks]
        of["temperature"][at] = [0.0 if p.logprobs is not None else p.temperature for p in params]
        of["top_k"][at] = [p.top_k for p in params]
        of["top_p"][at] = [p.top_p for p in params]
        of["min_p"][at] = [p.min_p for p in params]
        seeds = np.array([pick.sample.seed & _BITS for pick in picks], np.uint64)
        of["seeds"][at] = seeds.view(np.int64)
        of["draws"][at] = [pick.sample.position for pick in picks]

    def _lanes_of(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """Guesses leave open which choice counts: theirs are kept nowhere, the loop reads them."""
        nobody = self._limits.dummy_lane
        lanes = np.array([-1 if row.n_proposed else row.slot for row in rows], np.int64)
        if int(lanes.max()) >= nobody:
            raise InternalError(f"slot {lanes.max()}, but there are {nobody}")
        lanes[lanes < 0] = nobody
        return lanes

    def _table(self, i: int, blocks: tuple[int, ...]) -> None:
        known = self._known[i]
        if known != blocks:
            row = self._of["tables"][i]
            row[: len(blocks)] = blocks
            row[len(blocks) : len(known)] = self._limits.dummy_block
            self._known[i] = blocks


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
