"""A step under way on the device, and what is chosen in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from engine.choice import choose
from engine.device import Mark
from engine.inputs import Row, Sampled, SampleRow


@dataclass(frozen=True, slots=True)
class Pick:
    """A token to choose. row: of the step; token: whose logits; at: their place in the result."""

    row: int
    token: int
    at: int
    sample: SampleRow

    @property
    def on_host(self) -> bool:
        """Whether the host chooses: it also tells probabilities."""
        return self.sample.params.logprobs is not None

    @property
    def plain(self) -> bool:
        """Whether the largest logit is the choice."""
        sample = self.sample
        return sample.params.greedy and not sample.params.shaped and sample.constraint is None


def picks_of(rows: Sequence[Row], *, every_row: bool) -> list[Pick]:
    """What is chosen in a step; a row with guesses also chooses what follows each of them.

    every_row: the step computes one token and its logits in every row, wanted or not.
    """
    picks: list[Pick] = []
    end = 0
    for i, row in enumerate(rows):
        end += len(row.token_ids)
        sample = row.sample
        if sample is None:
            continue
        picks.append(Pick(i, end - 1 - row.n_proposed, i if every_row else len(picks), sample))
        for n in range(1, row.n_proposed + 1):
            after = replace(sample, position=sample.position + n)
            picks.append(Pick(i, end - 1 - row.n_proposed + n, len(picks), after))
    return picks


class GpuStep:
    """What `launch` returns. `read` waits for this step only, not for later ones."""

    __slots__ = ("_done", "_give_back", "_host_logits", "_picks", "_rows", "_tokens")

    def __init__(
        self,
        rows: Sequence[Row],
        picks: Sequence[Pick],
        tokens: Tensor,
        host_logits: Tensor | None,
        done: Mark,
        give_back: Callable[[], None],
    ) -> None:
        """tokens int64 [picks' places] on the host, there once `done` is passed; then `give_back`
        is called. host_logits [n, vocab] on the device, of the picks that the host makes."""
        self._rows = rows
        self._picks = picks
        self._tokens = tokens
        self._host_logits = host_logits
        self._done = done
        self._give_back = give_back

    def read(self) -> list[Sampled | None]:
        """Wait, and choose what only the host can; in the order of the rows."""
        self._done.synchronize()
        tokens = self._tokens.tolist()
        self._give_back()
        chosen = [Sampled(tokens[pick.at]) for pick in self._picks]
        if self._host_logits is not None:
            ours = [i for i, pick in enumerate(self._picks) if pick.on_host]
            made = choose(self._host_logits.float().cpu(), [self._picks[i].sample for i in ours])
            for i, sampled in zip(ours, made, strict=True):
                chosen[i] = sampled
        results: list[Sampled | None] = [None] * len(self._rows)
        for pick, sampled in zip(self._picks, chosen, strict=True):
            first = results[pick.row]
            results[pick.row] = (
                sampled if first is None
                else replace(first, beyond=(*first.beyond, sampled.token))
            )  # fmt: skip
        return results
