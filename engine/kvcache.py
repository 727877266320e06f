"""The KV cache's single door: block tables are opened, grown, committed and closed here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.blocks import BlockPool
from engine.errors import InternalError
from engine.radix import Node, RadixCache


@dataclass(slots=True)
class BlockTable:
    """A request's handle on its blocks: token i is row i % block_size of blocks[i // size]."""

    tenant: str
    node: Node
    """Deepest tree node that stands for `blocks[:n_inserted]`."""
    blocks: list[int] = field(default_factory=list)
    n_inserted: int = 0
    n_shared: int = 0
    """Leading blocks that came from the tree when the table was opened."""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy rows [0, n_rows) of block `src` to block `dst` before the step runs."""

    src: int
    dst: int
    n_rows: int


class KvCache:
    """Pool and prefix tree together; every method runs on the engine thread."""

    def __init__(
        self, n_blocks: int, block_size: int, *, max_pinned: int, prefix_cache: bool = True
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(n_blocks)
        self.radix = RadixCache(self.pool, block_size, max_pinned)
        self._prefix_cache = prefix_cache
        self._copies: list[Copy] = []

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)

    def open(
        self, tenant: str, tokens: Sequence[int], limit: int, now: float, *, partial: bool = True
    ) -> tuple[BlockTable, int]:
        """A table that starts with the cached prefix of `tokens[:limit]`, and that prefix's length.

        A partly matching block is copied into a private one (see `take_copies`), if there is room.
        """
        radix = self.radix
        if not self._prefix_cache:
            return BlockTable(tenant, radix.root(tenant)), 0
        match = radix.match(tenant, tokens, limit, now)
        blocks = radix.lock(match)
        n_whole = len(blocks)
        table = BlockTable(tenant, match.node, blocks, n_whole, n_whole)
        n_cached = n_whole * self.block_size
        if match.partial is not None and partial:
            src, n_rows = match.partial.block, match.partial.n_rows
            self.pool.retain([src])  # until copied: eviction must not hand it out
            if self._allocate(table, 1):
                self._copies.append(Copy(src, blocks[-1], n_rows))
                n_cached += n_rows
            else:
                self.pool.release([src])
        return table, n_cached

    def take_copies(self) -> tuple[Copy, ...]:
        """The copies the next step must start with, in order; call `copied` when they are done."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def copied(self, copies: Sequence[Copy]) -> None:
        self.pool.release([copy.src for copy in copies])

    def _cancel_copies(self, table: BlockTable) -> bool:
        """A table that closes before its copy was made must not be written to."""
        own = set(table.blocks) if self._copies else set()
        cancelled = [copy for copy in self._copies if copy.dst in own]
        self.copied(cancelled)
        self._copies = [copy for copy in self._copies if copy not in cancelled]
        return bool(cancelled)

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
            self.radix.evict(short - self.pool.n_fenced)
            if self.pool.n_free < n:  # what is fenced comes later
                return False
        table.blocks.extend(self.pool.allocate(n))
        return True

    def could_come(self, table: BlockTable, n_tokens: int) -> bool:
        """Whether `grow` will succeed once the fence opens, with no help from anybody."""
        pool = self.pool
        need = self.blocks_for(n_tokens) - len(table.blocks)
        return need <= pool.n_free + pool.n_cached + pool.n_fenced

    def commit(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Share the whole blocks of `tokens[:computed]` that are not in the tree yet."""
        if not self._prefix_cache:
            return
        size = self.block_size
        while (table.n_inserted + 1) * size <= computed:
            at = table.n_inserted
            self._insert(table, at, tokens[at * size : (at + 1) * size])
            table.n_inserted += 1

    def _insert(self, table: BlockTable, at: int, tokens: Sequence[int]) -> None:
        own = table.blocks[at]
        table.node = self.radix.insert(table.node, tokens, own)
        shared = table.node.block
        if shared != own:  # somebody computed the same tokens first: use theirs
            self.pool.retain([shared])
            self.pool.release([own])
            table.blocks[at] = shared

    def close(self, table: BlockTable, tokens: Sequence[int], computed: int, keep: bool) -> None:
        """Give every block back, once; a second call does nothing.

        With `keep`, what was computed stays in the tree, the unfinished tail block included, so
        that the next turn goes on from its last token.
        """
        if table.closed:
            return
        table.closed = True
        if self._cancel_copies(table):
            computed = table.n_inserted * self.block_size
        if keep and self._prefix_cache:
            self.commit(table, tokens, computed)
            tail = tokens[table.n_inserted * self.block_size : computed]
            if tail:
                self._insert(table, table.n_inserted, tail)
        blocks, table.blocks = table.blocks, []
        self.radix.unlock(blocks)

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Raise `InternalError` unless pool, tree and the live handles account for each other."""
        self.pool.check()
        self.radix.check()
        refs: dict[int, int] = {}
        handles = [t.blocks for t in tables] + [list(b) for b in self.radix.pin_blocks()]
        handles.append([copy.src for copy in self._copies])
        for blocks in handles:
            for block in blocks:
                refs[block] = refs.get(block, 0) + 1
        for block in range(self.pool.n_total):
            if self.pool.refs(block) != refs.get(block, 0):
                raise InternalError(
                    f"block {block}: {self.pool.refs(block)} references, "
                    f"{refs.get(block, 0)} live handles"
                )
