"""Turns token ids into text as they come, never splitting a character."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class Detokenizer:
    """One request's output text: what push and finish return adds up to the decode of all ids.

    Works on bytes, so at most three bytes are ever held back: an endless run of broken characters
    comes out as U+FFFD at once. It starts clean: a prompt that ends inside a character can't leak.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that is certain now; "" while a character is unfinished."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """What is still held back: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", True)
