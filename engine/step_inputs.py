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
from engine.inputs import Row

_Ints = NDArray[np.int64]
_Shorts = NDArray[np.int32]
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
    """Views of the device's memory, all as long as the limits.

    Per token, int64: `ids` (PENDING: what is in `tokens[sources]`), `sources`, `positions` and
    `slots` (block * block_size + offset in the cache, or SKIP).
    Per token whose logits are wanted, int64: `wanted` (its number), `lanes` (where in `tokens` the
    choice goes). Per row, int32: `seen` (positions, this step's included; 0 is padding), `starts`
    (of its tokens; one more at the end), `tables` [rows, width].
    """

    ids: Tensor
    sources: Tensor
    positions: Tensor
    slots: Tensor
    wanted: Tensor
    lanes: Tensor
    seen: Tensor
    starts: Tensor
    tables: Tensor


class StepInputs:
    """Owns the device's memory and its staging. One user at a time."""

    def __init__(self, device: Device, limits: Limits) -> None:
        self._device = device
        self.limits = limits
        self._header, n_bytes = _layout(limits)
        self._buffer = torch.zeros(n_bytes, dtype=torch.uint8, device=device.name)
        self._ring = [_Staging(device.staging(n_bytes), limits) for _ in range(_RING)]
        self._turn = 0
        self.fields = Fields(**_views(self._buffer, limits))

    def fits(self, rows: Sequence[Row], n_tokens: int) -> bool:
        most = self.limits
        return n_tokens <= most.n_tokens and len(rows) <= most.n_rows

    def send(
        self, rows: Sequence[Row], picks: Sequence[int], lanes: Sequence[int], n_rows: int = 0
    ) -> int:
        """Copy a step to the device, padded with empty rows of one token to `n_rows`.

        picks: numbers of the tokens whose logits are wanted; lanes: where their choices go. Called
        inside the device's `work`. Returns the number of tokens, without padding.
        """
        self._turn = (self._turn + 1) % _RING
        host = self._ring[self._turn]
        host.sent.synchronize()
        n_tokens = host.fill(rows, max(n_rows, len(rows)))
        host.choose(picks, lanes, n_rows)
        n_bytes = self._header + 4 * self.limits.width * max(n_rows, len(rows))
        self._buffer[:n_bytes].copy_(host.buffer[:n_bytes], non_blocking=True)
        host.sent = self._device.mark()
        return n_tokens


class _Staging:
    """One host copy. Block tables are written again only where they changed."""

    def __init__(self, buffer: Tensor, limits: Limits) -> None:
        self.buffer = buffer
        self.sent: Mark = _Never()
        self._limits = limits
        views = {name: view.numpy() for name, view in _views(buffer, limits).items()}
        self._ids: _Ints = views["ids"]
        self._sources: _Ints = views["sources"]
        self._positions: _Ints = views["positions"]
        self._slots: _Ints = views["slots"]
        self._wanted: _Ints = views["wanted"]
        self._lanes: _Ints = views["lanes"]
        self._seen: _Shorts = views["seen"]
        self._starts: _Shorts = views["starts"]
        self._tables: _Shorts = views["tables"]
        self._tables.fill(limits.dummy_block)
        self._known: list[tuple[int, ...]] = [()] * limits.n_rows

    def fill(self, rows: Sequence[Row], n_rows: int) -> int:
        n, most = len(rows), self._limits
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
        slots = np.array([row.slot for row in rows], np.int64)
        slots[slots < 0] = most.dummy_lane

        self._ids[:n_tokens] = np.fromiter(
            chain.from_iterable(row.token_ids for row in rows), np.int64, n_tokens
        )
        self._sources[:n_tokens] = slots[owner]
        self._positions[:n_tokens] = positions
        blocks = self._tables[owner, positions // most.block_size].astype(np.int64)
        self._slots[:n_tokens] = blocks * most.block_size + positions % most.block_size
        self._seen[:n] = starts + counts
        self._seen[n:n_rows] = 0
        self._starts[0] = 0
        self._starts[1 : n + 1] = ends
        padded = n_tokens + n_rows - n
        self._starts[n + 1 : n_rows + 1] = np.arange(n_tokens + 1, padded + 1)
        self._ids[n_tokens:padded] = 0
        self._sources[n_tokens:padded] = most.dummy_lane
        self._positions[n_tokens:padded] = 0
        self._slots[n_tokens:padded] = SKIP
        return n_tokens

    def choose(self, picks: Sequence[int], lanes: Sequence[int], n_rows: int) -> None:
        n = len(picks)
        self._wanted[:n] = picks
        self._lanes[:n] = lanes
        self._lanes[n:n_rows] = self._limits.dummy_lane

    def _table(self, i: int, blocks: tuple[int, ...]) -> None:
        known = self._known[i]
        if known != blocks:
            self._tables[i, : len(blocks)] = blocks
            self._tables[i, len(blocks) : len(known)] = self._limits.dummy_block
            self._known[i] = blocks


class _Never:
    """Stands for a copy that was never begun."""

    def synchronize(self) -> None:
        pass


def _layout(limits: Limits) -> tuple[int, int]:
    """(bytes before the tables, bytes altogether)."""
    header = 8 * 6 * limits.n_tokens + 4 * sum(_row_counts(limits))
    return header, header + 4 * limits.n_rows * limits.width


def _row_counts(limits: Limits) -> tuple[int, int]:
    """Lengths of `seen` and `starts`: whole times 16 bytes, as kernels like their pointers."""
    return -(-limits.n_rows // 4) * 4, (limits.n_rows // 4 + 1) * 4


def _views(buffer: Tensor, limits: Limits) -> dict[str, Tensor]:
    views, at = {}, 0
    for name in ("ids", "sources", "positions", "slots", "wanted", "lanes"):
        views[name] = buffer[at : at + 8 * limits.n_tokens].view(torch.int64)
        at += 8 * limits.n_tokens
    for name, n in zip(("seen", "starts"), _row_counts(limits), strict=True):
        views[name] = buffer[at : at + 4 * n].view(torch.int32)
        at += 4 * n
    views["tables"] = buffer[at:].view(torch.int32).view(limits.n_rows, limits.width)
    return views
