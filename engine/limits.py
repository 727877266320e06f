"""What a request may ask of an engine, checked before the engine thread hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CapacityError, NeverFitsError, UsageError
from engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """n_vocab: token ids are 0..n_vocab-1. max_model_len: tokens of prompt and reply together.

    n_blocks, block_size: of the KV cache. max_pinned: blocks that all pins together may hold.
    """

    n_vocab: int
    max_model_len: int
    n_blocks: int
    block_size: int
    max_pinned: int
    has_grammars: bool

    def check(self, prompt: tuple[int, ...], params: SamplingParams, *, generates: bool) -> int:
        """The number of tokens the request may add. Raises `UsageError`, `CapacityError`."""
        if any(token >= self.n_vocab for token, _ in params.logit_bias):
            raise UsageError(f"logit_bias names a token outside 0..{self.n_vocab - 1}")
        if any(not 0 <= token < self.n_vocab for token in params.stop_token_ids):
            raise UsageError(f"stop_token_ids names a token outside 0..{self.n_vocab - 1}")
        if params.grammar is not None and not self.has_grammars:
            raise UsageError("this engine was built without grammars")
        if not prompt:
            raise UsageError("the prompt is empty")
        self.check_prompt(prompt, room=generates)
        max_new = min(params.max_tokens, self.max_model_len - len(prompt)) if generates else 0
        need = self.blocks_for(len(prompt) + max_new)
        if need > self.n_blocks:
            raise NeverFitsError(
                f"prompt and reply need {need} KV blocks and there are {self.n_blocks}: "
                "lower max_tokens or raise kv_bytes"
            )
        return max_new

    def check_prompt(self, prompt: tuple[int, ...], *, room: bool = True) -> None:
        """Raise `UsageError` unless the model can take it, with `room` for one token more."""
        if prompt and (min(prompt) < 0 or max(prompt) >= self.n_vocab):
            raise UsageError(f"a prompt token id is outside 0..{self.n_vocab - 1}")
        longest = self.max_model_len - room
        if len(prompt) > longest:
            raise UsageError(
                f"the prompt has {len(prompt)} tokens and this model takes at most {longest}"
            )

    def check_pin(self, n_tokens: int) -> None:
        """Raise `CapacityError` for a prefix that is larger than all pins may be."""
        n_blocks = self.blocks_for(n_tokens)
        if n_blocks > self.max_pinned:
            raise CapacityError(
                f"a pinned prefix of {n_tokens} tokens needs {n_blocks} KV blocks and pins "
                f"may hold {self.max_pinned}: raise kv_bytes or pin_fraction"
            )

    def blocks_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.block_size)
