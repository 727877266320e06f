"""The radix cache with its order of eviction taken away, to see what that order is worth."""

from __future__ import annotations

from engine.radix import Node, RadixCache


class OldestFirst(RadixCache):
    """Evicts leaves in the order in which they came, however lately they were used."""

    def _touch(self, node: Node, now: float) -> None:
        self.pins.touch(node.block, now)

    def _mark_used(self, node: Node) -> None:
        if not node.last_used:
            super()._mark_used(node)
