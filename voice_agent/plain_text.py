"""A history without a tokenizer: one id per character, no template.

For a server whose language model is elsewhere. The history then counts characters, and a reply is
cut exactly at the last character heard.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .context import Declaration

CHARS_PER_TOKEN = 3
"""Of the remote model, on the safe side: English has about four characters a token."""


class PlainTokenizer:
    """Ids are code points."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


class PlainChat:
    """A message is its text; the endpoint applies its model's own template."""

    def system(self, text: str, tools: Sequence[Declaration] = ()) -> list[int]:
        return [ord(c) for c in "".join([text, *map(json.dumps, tools)])]

    def user(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def user_open(self, text: str) -> list[int]:
        return self.user(text)

    def assistant_open(self) -> list[int]:
        return []

    def assistant_close(self) -> list[int]:
        return []

    def tool_calls(self, calls: Sequence[tuple[str, str]]) -> list[int]:
        return [ord(c) for name, arguments in calls for c in name + arguments]

    def tool_results(self, results: Sequence[str]) -> list[int]:
        return [ord(c) for c in "\n".join(results)]
