"""A whole dialogue as token ids, with tools: what a request over HTTP brings at once.

No text in it can produce a special token: each special token's name in a string is shielded while
the template runs, and what the template itself writes is read as it is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import ModelError, UsageError
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.text.tools import spelled_out


def prompt_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    knows_tools: bool,
) -> list[int]:
    """Ids up to where the answer begins. Raises UsageError if the template refuses the dialogue."""
    if not knows_tools:
        messages, tools = spelled_out(messages, tools), ()
    try:
        text = template.write(
            [_shielded(message, tokenizer) for message in messages],
            tools=[_shielded(tool, tokenizer) for tool in tools],
            open_answer=True,
        )
    except ModelError as error:
        raise UsageError(str(error)) from None
    start = tokenizer.special_text(tokenizer.bos)
    if tokenizer.add_bos and not text.startswith(start):
        text = start + text
    ids: list[int] = []
    for piece in tokenizer.split_special(text):
        ids += [piece] if isinstance(piece, int) else tokenizer.encode(tokenizer.unshield(piece))
    return ids


def _shielded(value: Any, tokenizer: Tokenizer) -> Any:
    """The same value with every string in it shielded, names of fields included."""
    if isinstance(value, str):
        return tokenizer.shield(value)
    if isinstance(value, Mapping):
        return {tokenizer.shield(str(k)): _shielded(v, tokenizer) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_shielded(item, tokenizer) for item in value]
    return value
