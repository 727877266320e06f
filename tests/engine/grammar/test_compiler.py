from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engine.errors import UsageError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.spec import Grammar
from engine.text.tokenizer import Tokenizer
from tests.support.logit_engine import tiny_tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = tiny_tokenizer(["<tool_call>"])
COMPILER = GrammarCompiler(TOKENIZER)


def allowed(matcher: Any, tokenizer: Tokenizer) -> set[int]:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return set(
        np.flatnonzero(np.unpackbits(bits, bitorder="little")[: tokenizer.vocab_size]).tolist()
    )


def follows(grammar: Grammar, text: str) -> bool:
    """Whether the text, whole, is one that the grammar accepts."""
    matcher = COMPILER.matcher(grammar)
    return all(
        token in allowed(matcher, TOKENIZER) and matcher.consume_token(token)
        for token in TOKENIZER.encode(text, allow_special=True)
    ) and bool(matcher.is_accepting())


SCHEMA = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/years"}},
        "required": ["name", "age"],
        "additionalProperties": False,
        "$defs": {"years": {"type": "integer", "minimum": 0, "maximum": 150}},
    }
)


@pytest.mark.parametrize(
    ("grammar", "text", "fine"),
    [
        (SCHEMA, '{"name":"Zoë 🙂","age":41}', True),
        (SCHEMA, '{"name": "a\\"b", "age": 0}', True),
        (SCHEMA, '{"name":"x","age":151}', False),
        (SCHEMA, '{"name":"x"}', False),
        (SCHEMA, '{"name":"<|im_end|>","age":1}', False),  # as the special token
        (SCHEMA, '{\n"name":"x","age":1}', False),
        (Grammar.json_schema({}), "[1,2.5,null]", True),
        (Grammar.json_schema(True), '"x"', True),
        (Grammar("regex", r"[a-c]{2,3}\d?"), "abc7", True),
        (Grammar("regex", r"[a-c]{2,3}\d?"), "abcd", False),
        (Grammar("lark", 'start: ("la" " "?)+ | "oh"'), "la la", True),
        (Grammar("lark", 'start: ("la" " "?)+ | "oh"'), "oh oh", False),
        (Grammar("lark", "start: <tool_call> /[a-z]+/"), "<tool_call>x", True),
    ],
)
def test_what_a_grammar_takes(grammar: Grammar, text: str, fine: bool) -> None:
    assert follows(grammar, text) == fine


def test_plain_text_never_allows_a_special_token() -> None:
    open_text = COMPILER.matcher(Grammar("regex", r"(.|\n)*"))
    ends = TOKENIZER.ends
    assert allowed(open_text, TOKENIZER) & set(TOKENIZER.special.values()) == ends


def test_the_end_is_allowed_only_when_the_grammar_is_complete() -> None:
    matcher = COMPILER.matcher(Grammar("regex", "ab?"))
    for text, complete in (("a", True), ("b", True)):
        assert not allowed(matcher, TOKENIZER) & TOKENIZER.ends or complete
        matcher.consume_tokens(TOKENIZER.encode(text))
        assert bool(allowed(matcher, TOKENIZER) & TOKENIZER.ends) == complete
    assert allowed(matcher, TOKENIZER) == TOKENIZER.ends


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.json_schema({"type": "strin"}), "JSON schema can't be used.*strin"),
        (Grammar.json_schema({"$ref": "#/nowhere"}), "nowhere"),
        (Grammar.json_schema({"not": {"type": "string"}}), "not"),
        (Grammar("json_schema", "{"), "no JSON"),
        (Grammar("json_schema", "false"), "JSON schema can't be used"),
        (Grammar("regex", "(a"), "regular expression can't be used.*unclosed"),
        (Grammar("regex", "(?=a)b"), "look-around"),
        (Grammar("lark", "start: nothing"), "grammar can't be used.*nothing"),
        (Grammar("lark", "start: <no_such_token>"), "no_such_token"),
    ],
)
def test_what_is_wrong_is_said(grammar: Grammar, reason: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){reason}"):
        COMPILER.matcher(grammar)


@pytest.mark.parametrize("text", ["", "  ", "a" * 100_001])
def test_no_grammar_and_too_long_a_grammar(text: str) -> None:
    with pytest.raises(UsageError, match="grammar"):
        Grammar("regex", text)


def test_an_ambiguous_grammar_meets_its_limit() -> None:
    """Its cost grows with the square of its readings; the library stops it and says so."""
    matcher = COMPILER.matcher(Grammar("lark", 'start: e\ne: e e | "a" | e e e | "b"'))
    n_taken = 0
    for token in TOKENIZER.encode("ab" * 400):
        matcher.compute_bitmask()
        if matcher.is_error() or not matcher.consume_token(token):
            break
        n_taken += 1
    assert n_taken < 100
    assert "max is 400" in matcher.get_error()


def test_a_schema_is_kept_as_text() -> None:
    assert json.loads(Grammar.json_schema({"type": "é"}).text) == {"type": "é"}
