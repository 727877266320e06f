"""Which words will not change: local agreement over consecutive passes (Macháček et al. 2023).
Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .guards import plain


def same_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Words at the start of both that are equal but for case and punctuation."""
    n = 0
    for left, right in zip(a, b, strict=False):
        if plain(left) != plain(right):
            break
        n += 1
    return n


def _distances(a: Sequence[str], b: Sequence[str]) -> list[list[int]]:
    """Edit distances of every pair of prefixes, [len(a) + 1][len(b) + 1]."""
    left, right = [plain(w) for w in a], [plain(w) for w in b]
    table = [list(range(len(right) + 1))]
    for i, word in enumerate(left, 1):
        row = [i]
        for j, other in enumerate(right, 1):
            row.append(min(table[-1][j] + 1, row[-1] + 1, table[-1][j - 1] + (word != other)))
        table.append(row)
    return table


def split_at(known: Sequence[str], heard: Sequence[str]) -> tuple[int, int]:
    """(k, j): `heard` covers known[:k], and heard[j:] is news beyond `known`.

    Either k < len(known), and `heard` ends inside what is known (j == len(heard)), or k ==
    len(known).
    """
    table = _distances(known, heard)
    n, m = len(known), len(heard)
    k = min(range(n + 1), key=lambda i: (table[i][m], -i))
    if k < n:
        return k, m
    j = min(range(m + 1), key=lambda i: (table[n][i], -i))
    return n, j


class Agreement:
    """The words of one stretch of audio over successive passes that each see more of it.

    A word is confirmed when two consecutive passes agree on it and another word follows it (the
    last word of a pass may be cut off in the middle). When a pass repeats what the one before said
    but for its last `loose` words, which are guesses at half-heard sound, the reading is stable:
    the newer pass's own words are then confirmed too, all but the last `margin`.
    """

    def __init__(self, margin: int = 3, loose: int = 2) -> None:
        self._margin = margin
        self._loose = loose
        self.words: tuple[str, ...] = ()
        self.n_confirmed = 0

    @property
    def confirmed(self) -> tuple[str, ...]:
        return self.words[: self.n_confirmed]

    def update(self, heard: Sequence[str]) -> None:
        """Take in a newer pass. Confirmed words stay as they are, whatever it says about them."""
        n = self.n_confirmed
        if same_length(self.confirmed, heard) == n:
            news = tuple(heard[n:])
        else:
            news = tuple(heard[split_at(self.confirmed, heard)[1] :])
        before = self.words[n:]
        agreed = same_length(before, news)
        sure = min(agreed, len(news) - 1)
        if before and agreed >= len(before) - self._loose:
            sure = max(sure, len(news) - self._margin)
        self.words = self.confirmed + news
        self.n_confirmed = n + max(0, sure)

    def keep_from(self, k: int) -> None:
        """Forget the first k words: their audio is gone."""
        self.words = self.words[k:]
        self.n_confirmed = max(0, self.n_confirmed - k)
