"""A tokenizer and chat format without a model: about 1.3 tokens a word, as subword ones have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from voice_agent.context import Declaration

EOS = 0
OPEN_TURN, CLOSE_TURN = 1, 2
_FIRST = 3
N_VOCAB = 1 << 20
_PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")


class Words:
    """Pieces of at most six letters; ids in the order of their first use. Implements what a call
    needs of a tokenizer (`Decoder`) and of a chat format (`Chat`)."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = [""] * _FIRST

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        return [self._id(piece) for piece in _PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[i] for i in ids)

    def piece(self, token: int) -> str:
        return self._pieces[token]

    def text_of(self, request: object) -> Spelled:
        """What a request's tokens become."""
        return Spelled(self)

    def _id(self, piece: str) -> int:
        known = self._ids.get(piece)
        if known is None:
            known = self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return known

    def system(self, text: str, tools: Sequence[Declaration] = ()) -> list[int]:
        return self._turn("".join([text, *map(json.dumps, tools)]))

    def user(self, text: str) -> list[int]:
        return self._turn(text)

    def user_open(self, text: str) -> list[int]:
        return [OPEN_TURN, *self.encode(text)]

    def assistant_open(self) -> list[int]:
        return [OPEN_TURN]

    def assistant_close(self) -> list[int]:
        return [CLOSE_TURN]

    def tool_calls(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode("\n".join(name + arguments for name, arguments in calls))

    def tool_results(self, results: Sequence[str]) -> list[int]:
        return self._turn("\n".join(results))

    def _turn(self, text: str) -> list[int]:
        return [OPEN_TURN, *self.encode(text), CLOSE_TURN]


class Spelled:
    """One reply's text (`engine.request.TextOut`)."""

    stopped = False

    def __init__(self, words: Words) -> None:
        self._words = words

    def push(self, token: int) -> str:
        return self._words.piece(token)

    def finish(self) -> str:
        return ""
