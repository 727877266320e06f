"""What the engine's loop asks of whatever runs the model: a step is launched, then read.

    launch N   read N   launch N+1   read N+1            a runner that is done when it returns
    launch N   launch N+1   read N   launch N+2   ...    one that `overlaps`: the host plans and
                                                         launches while the device computes

At most two steps are launched and not read. They are read in the order they were launched, each
once, also those whose tokens nobody wants any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.inputs import Row, Sampled


class Launched(Protocol):
    """A step under way."""

    def read(self) -> list[Sampled | None]:
        """Wait for the step; what was chosen, in the order of its rows. Raises what it met."""
        ...


class StepRunner(Protocol):
    """The model's side of a step. Used by one thread.

    What is asked for is done in that order: a copy after the steps launched before it, and before
    those launched later; so a row may attend to what a step that is not read yet has computed.
    """

    @property
    def overlaps(self) -> bool:
        """Whether `launch` returns before the step is done, and understands `PENDING`."""
        ...

    @property
    def n_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    def launch(self, rows: Sequence[Row]) -> Launched:
        """Start a step over at least one row.

        Where `overlaps`: what is chosen for a row with a `slot` is kept under it on the device, and
        a row whose one token is `PENDING` takes it from there. `SampleRow.history` and `counts`
        stand still until `read` for rows with penalties, log probabilities or a grammar, which the
        loop reads before it plans again; other rows' history must not be read.
        """
        ...

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        """Launch and read."""
        ...

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copy the first `n_rows` positions of block `src` into block `dst`, in every layer."""
        ...


class Done:
    """A step that was over when it was launched."""

    __slots__ = ("_results",)

    def __init__(self, results: list[Sampled | None]) -> None:
        self._results = results

    def read(self) -> list[Sampled | None]:
        return self._results


class AtOnce:
    """Makes a runner of one that has `run` only."""

    overlaps = False

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        raise NotImplementedError

    def launch(self, rows: Sequence[Row]) -> Done:
        return Done(self.run(rows))
