"""Log probabilities in the two shapes that the API has for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.client import Delta
from engine.text.tokenizer import Tokenizer


def of_chat(tokenizer: Tokenizer, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    """`logprobs.content` of a chat completion: one object per token."""
    return [
        _named(tokenizer, token, logprob)
        | {"top_logprobs": [_named(tokenizer, t, share) for t, share in top]}
        for delta in deltas
        for token, logprob, top in zip(delta.token_ids, delta.logprobs, delta.top, strict=True)
    ]


def _named(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


class CompletionLogprobs:
    """`logprobs` of a text completion: parallel lists. Offsets count characters of the reply."""

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer = tokenizer
        self._offset = offset

    def of(self, deltas: Iterable[Delta]) -> dict[str, Any]:
        out: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for delta in deltas:
            rows = zip(delta.token_ids, delta.logprobs, delta.top, strict=True)
            for token, logprob, top in rows:
                text = self._text(token)
                out["tokens"].append(text)
                out["token_logprobs"].append(logprob)
                out["top_logprobs"].append({self._text(t): share for t, share in top})
                out["text_offset"].append(self._offset)
                self._offset += len(text)
        return out

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
