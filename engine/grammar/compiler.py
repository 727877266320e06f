"""Grammars over one model's vocabulary, through llguidance.

There is no table to compile ahead: a matcher is made in about a millisecond and each mask is
computed as it is needed. The limits bound both, so that no grammar can hold the engine up.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from llguidance import LLMatcher, LLTokenizer
from llguidance._lib import LLParserLimits

from engine.errors import UsageError
from engine.grammar.spec import ONE_LINE, Grammar
from engine.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_SPECIAL = b"\xff"
"""llguidance's mark of a token that no text can spell."""


def _limits(items_in_row: int, step_items: int) -> LLParserLimits:
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=100_000,  # about 7 ms
        max_lexer_states=50_000,  # about 100 MB at worst
        max_grammar_size=200_000,
        max_items_in_row=items_in_row,
        step_max_items=step_items,
        verbose_errors=False,
    )


_LIMITS = {
    "json_schema": _limits(2_000, 50_000),
    "regex": _limits(2_000, 50_000),
    # an ambiguous grammar costs the square of a row: 2,000 items took 1.5 s, these about 10 ms
    "lark": _limits(400, 10_000),
}


class GrammarCompiler:
    """Makes matchers. `n_vocab`: the tokenizer's entries; a model may have rows beyond them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.n_vocab = tokenizer.vocab_size
        self._tokenizer = LLTokenizer(
            _Vocabulary(tokenizer),  # type: ignore[arg-type]  # what it needs of a TokenizerWrapper
            n_vocab=self.n_vocab,
            eos_token=sorted(tokenizer.ends),
        )

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """Raises UsageError saying what is wrong with the grammar, or that it is too large."""
        matcher = LLMatcher(
            self._tokenizer, _source(grammar), log_level=0, limits=_LIMITS[grammar.kind]
        )
        if matcher.is_error():
            raise UsageError(f"the {_NAMES[grammar.kind]} can't be used: {matcher.get_error()}")
        return matcher


_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "grammar"}


def _source(grammar: Grammar) -> str:
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    try:
        schema = json.loads(grammar.text)
    except ValueError as error:
        raise UsageError(f"the JSON schema is no JSON: {error}") from None
    if not isinstance(schema, dict):
        schema = {} if schema is True else {"not": {}}
    return LLMatcher.grammar_from_json_schema(
        schema, overrides=cast("JsonCompileOptions", ONE_LINE)
    )


class _Vocabulary:
    """The tokenizer in the form that LLTokenizer reads."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = frozenset(tokenizer.special.values())
        self._tokenizer = tokenizer
        ends = tokenizer.declared_eos
        self.eos_token_id = min(tokenizer.ends) if ends is None else ends
        self.bos_token_id = tokenizer.bos
        self.special_token_ids = sorted(special)
        self.tokens = [
            (_SPECIAL if i in special else b"") + tokenizer.token_bytes(i)
            for i in range(tokenizer.vocab_size)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(plain)
