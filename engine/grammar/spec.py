"""What a reply must look like: a JSON schema, a regular expression or a grammar, as a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.errors import UsageError

ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""How JSON is set: free white space lets a small model go on with blanks for ever."""
MAX_CHARS = 100_000
"""A longer description is refused before anything reads it."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """kind: how `text` is read. Whether it can be used is known when the engine compiles it.

    json_schema: JSON text of a schema. regex: Rust's syntax, no look-around. lark: a grammar in
    llguidance's dialect of Lark, whose start rule is `start`; `<name>` in it is a special token.
    """

    kind: Literal["json_schema", "regex", "lark"]
    text: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise UsageError("the grammar is empty")
        if len(self.text) > MAX_CHARS:
            raise UsageError(f"a grammar may have {MAX_CHARS} characters, not {len(self.text)}")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Grammar:
        """JSON that satisfies the schema; `{}` and True allow any."""
        return cls("json_schema", json.dumps(schema, ensure_ascii=False))
