"""One launch of a Triton kernel as a record: the same one is run, and compiled in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KernelCall:
    """kernel: a `@triton.jit` function; arguments: all its parameters by name; options: num_warps
    and num_stages. Nothing is launched for a grid with a 0 in it.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, object]
    options: Mapping[str, int]

    def run(self) -> None:
        if all(self.grid):
            self.kernel[self.grid](**self.arguments, **self.options)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n (n > 0). Triton's own is slow on the host."""
    return 1 << (n - 1).bit_length()
