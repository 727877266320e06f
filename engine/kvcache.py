"""The KV cache's single door: block tables are opened, grown, cut, committed and closed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.block_hash import BlockHashCache
from engine.blocks import BlockPool
from engine.errors import InternalError
from engine.pins import Pins, Tally
from engine.prefix import Entry, NoCache, PrefixCache, PrefixKind, Scope
from engine.radix import RadixCache


@dataclass(slots=True)
class BlockTable:
    """A request's handle on its blocks: token i is row i % block_size of blocks[i // size]."""

    scope: Scope
    path: list[Entry] = field(default_factory=list)
    """The cache's entries that stand for the leading blocks."""
    blocks: list[int] = field(default_factory=list)
    n_shared: int = 0
    """Leading blocks that came from the cache when the table was opened."""
    capacity: int = 0
    """Tokens that fit `blocks`."""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy rows [0, n_rows) of block `src` to block `dst` before the step runs."""

    src: int
    dst: int
    n_rows: int


class KvCache:
    """Pool and prefix cache together; every method runs on the engine thread."""

    def __init__(
        self, n_blocks: int, block_size: int, *, max_pinned: int, prefix_cache: PrefixKind = "radix"
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(n_blocks)
        self.pins = Pins(self.pool, max_pinned)
        self.prefix = _prefix_cache(prefix_cache, self.pins, block_size)
        self._copies: list[Copy] = []
        self._copying: list[Copy] = []  # launched and not read

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def open(
        self, scope: Scope, tokens: Sequence[int], limit: int, now: float, *, partial: bool = True
    ) -> tuple[BlockTable, int]:
        """A table that starts with the cached prefix of `tokens[:limit]`, and that prefix's length.

        A partly matching block is copied into a private one (see `take_copies`), if there is room.
        """
        match = self.prefix.match(scope, tokens, limit, now)
        blocks = self.prefix.lock(match)
        table = BlockTable(scope, list(match.path), blocks, len(blocks))
        table.capacity = n_cached = len(blocks) * self.block_size
        self.pins.shared.add(blocks)
        if match.partial is not None and partial:
            self.pool.retain([match.partial.block])  # until copied: it must not be evicted
            if self._copy_into(table, match.partial.block, match.partial.n_rows):
                n_cached += match.partial.n_rows
        return table, n_cached

    def _copy_into(self, table: BlockTable, src: int, n_rows: int) -> bool:
        """Go on in a private copy of `src`, on which a reference is held until it is copied."""
        if self._allocate(table, 1):
            self._copies.append(Copy(src, table.blocks[-1], n_rows))
            return True
        self.prefix.unlock([src])
        return False

    def take_copies(self) -> tuple[Copy, ...]:
        """The copies the next step must start with, in order; call `copied` when they are done."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def copied(self, copies: Sequence[Copy]) -> None:
        self.pool.release([copy.src for copy in copies])

    def launched(self, copies: Sequence[Copy]) -> None:
        """The step that makes them is launched: from now on its fence protects their sources."""
        if copies:
            self._copying += copies
            self.copied(copies)

    def landed(self, copies: Sequence[Copy]) -> None:
        """The step that made them has been read: the rows are there."""
        if copies:
            self._copying = [copy for copy in self._copying if copy not in copies]

    def _cancel_copies(self, blocks: Sequence[int]) -> bool:
        """Blocks that are given back before their copy was made must not be written to.

        Whether there were any; those of a step in flight are made, but count as well.
        """
        if not self._copies and not self._copying:
            return False
        own = set(blocks)
        cancelled = [copy for copy in self._copies if copy.dst in own]
        self._copies = [copy for copy in self._copies if copy.dst not in own]
        self.copied(cancelled)
        return bool(cancelled) or any(copy.dst in own for copy in self._copying)

    def grow(self, table: BlockTable, n_tokens: int) -> bool:
        """Make the table cover `n_tokens`, evicting if needed; False changes nothing."""
        return self._allocate(table, self.blocks_for(n_tokens) - len(table.blocks))

    def _allocate(self, table: BlockTable, n: int) -> bool:
        if n <= 0:
            return True
        short = n - self.pool.n_free
        if short > self.pool.n_cached:
            return False
        if short > 0:
            self.prefix.evict(short)
            if self.pool.n_free < n:  # what is fenced comes later
                return False
        table.blocks.extend(self.pool.allocate(n, table.blocks[-1] if table.blocks else None))
        table.capacity = len(table.blocks) * self.block_size
        return True

    def shrink(self, table: BlockTable, n_tokens: int) -> None:
        """Give back the blocks beyond the first `n_tokens`, which are all that is computed."""
        n_blocks = self.blocks_for(n_tokens)
        gone = table.blocks[n_blocks:]
        del table.blocks[n_blocks:]
        table.capacity = n_blocks * self.block_size
        self.pool.release(gone)

    def could_come(self, table: BlockTable, n_tokens: int) -> bool:
        """Whether `grow` will succeed once the fence opens, with no help from anybody."""
        pool = self.pool
        need = self.blocks_for(n_tokens) - len(table.blocks)
        return need <= pool.n_free + pool.n_cached + pool.n_fenced

    def commit(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Cache the whole blocks of `tokens[:computed]` that are not cached yet."""
        size = self.block_size
        while (len(table.path) + 1) * size <= computed:
            at = len(table.path) * size
            self._insert(table, tokens[at : at + size])

    def _insert(self, table: BlockTable, tokens: Sequence[int]) -> None:
        at = len(table.path)
        own = table.blocks[at]
        parent = table.path[-1] if table.path else None
        entry = self.prefix.insert(table.scope, parent, tokens, own)
        table.path.append(entry)
        if entry.block != own:  # somebody computed the same tokens first: use theirs
            self.pool.retain([entry.block])
            self.pool.release([own])
            table.blocks[at] = entry.block

    def cut(self, table: BlockTable, computed: int, keep: int) -> int:
        """Forget the rows from `keep` on; returns how many of the `computed` tokens stand.

        A cut inside a block that others may read goes on in a private copy of it; only when there
        is no block for the copy do the rows before the cut have to be computed again.
        """
        keep = min(keep, computed)
        n_whole, n_rows = divmod(keep, self.block_size)
        n_blocks = n_whole + (n_rows > 0)
        dropped, gone = table.blocks[n_blocks:], table.path[n_whole:]
        self._cancel_copies(dropped)
        if n_whole < table.n_shared:
            self.pins.shared.remove(table.blocks[n_whole : table.n_shared])
            table.n_shared = n_whole
        del table.blocks[n_blocks:], table.path[n_whole:]
        self.prefix.unlock(dropped)
        inside = n_rows > 0 and self.pool.is_cached(table.blocks[-1])
        self.prefix.drop(gone[1:] if inside else gone)
        shown = inside and not self.prefix.withdraw(gone[0])
        if shown and not self._copy_into(table, table.blocks.pop(), n_rows):
            keep = n_whole * self.block_size
        table.capacity = len(table.blocks) * self.block_size
        return keep

    def close(self, table: BlockTable, tokens: Sequence[int], computed: int, keep: bool) -> None:
        """Give every block back, once; a second call does nothing.

        With `keep`, what was computed stays cached, the unfinished tail block included where the
        cache can, so that the next turn goes on from its last token.
        """
        if table.closed:
            return
        table.closed = True
        if self._cancel_copies(table.blocks):
            computed = len(table.path) * self.block_size
        self.pins.shared.remove(table.blocks[: table.n_shared])
        if keep:
            self.commit(table, tokens, computed)
            tail = tokens[len(table.path) * self.block_size : computed]
            if tail and self.prefix.keeps_tails:
                self._insert(table, tail)
        blocks, table.blocks = table.blocks, []
        self.prefix.unlock(blocks)

    def truncate(
        self, scope: Scope, tokens: Sequence[int], keep: int, pin_key: str, ttl_s: float, now: float
    ) -> None:
        """Free what a call cached of `tokens` beyond `keep`, and shrink its pin to what is left."""
        if pin_key in self.pins:
            self.prefix.pin(pin_key, scope, tokens[:keep], ttl_s, now)
        if scope.call is not None:
            self.prefix.trim(scope.call, keep)

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Raise `InternalError` unless pool, cache and the live handles account for each other."""
        self.pool.check()
        self.prefix.check()
        refs, shared = Tally(), Tally()
        for blocks in self.pins.paths():
            refs.add(blocks)
            shared.add(blocks)
        for table in tables:
            refs.add(table.blocks)
            shared.add(table.blocks[: table.n_shared])
            if table.capacity != len(table.blocks) * self.block_size:
                raise InternalError(f"{len(table.blocks)} blocks hold {table.capacity} tokens")
        refs.add([copy.src for copy in self._copies])
        for block in range(self.pool.n_total):
            if self.pool.refs(block) != refs.count(block):
                raise InternalError(
                    f"block {block}: {self.pool.refs(block)} references, "
                    f"{refs.count(block)} live handles"
                )
            if self.pins.shared.count(block) != shared.count(block):
                raise InternalError(f"block {block} is miscounted as shared")


def _prefix_cache(kind: PrefixKind, pins: Pins, block_size: int) -> PrefixCache:
    match kind:
        case "radix":
            return RadixCache(pins, block_size)
        case "block-hash":
            return BlockHashCache(pins, block_size)
        case "none":
            return NoCache(pins)
