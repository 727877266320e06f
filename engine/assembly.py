"""Loads the parts of an engine from a model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import UsageError
from engine.grammar.compiler import GrammarCompiler
from engine.output import TextStream
from engine.request import Request
from engine.runner import Runner
from engine.text.chat import ChatFormat
from engine.text.load import load_text
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    runner: Runner
    tokenizer: Tokenizer
    chat: ChatFormat
    make_text: Callable[[Request], TextStream]
    eos_ids: frozenset[int]
    n_vocab: int
    grammars: GrammarCompiler
    draft: Runner | None


def load_parts(config: EngineConfig) -> Parts:
    """Read text side and weights, allocate the KV cache. Raises `ModelError`, `UsageError`."""
    tokenizer, chat = load_text(config.model_path)
    runner = Runner.load(
        config.model_path,
        kv_bytes=config.kv_bytes,
        block_size=config.block_size,
        threads=config.threads,
        quant=config.quant,
        max_model_len=config.max_model_len,
    )

    def make_text(request: Request) -> TextStream:
        return TextStream(tokenizer.token_bytes, request.params.stop)

    draft = _load_draft(config, tokenizer, runner)
    grammars, n_vocab = GrammarCompiler(tokenizer), runner.vocab_size
    return Parts(runner, tokenizer, chat, make_text, tokenizer.ends, n_vocab, grammars, draft)


def _load_draft(config: EngineConfig, tokenizer: Tokenizer, runner: Runner) -> Runner | None:
    """The draft model, at its own longest length. Raises UsageError for another vocabulary."""
    path = config.draft_model_path
    if path is None:
        return None
    known, _ = load_text(path)
    draft = Runner.load(
        path,
        kv_bytes=config.kv_bytes // 4,
        block_size=config.block_size,
        threads=config.threads,
        quant=config.quant,
    )
    same = known.vocab_size == tokenizer.vocab_size and all(
        known.token_bytes(i) == tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
    )
    if not same or draft.vocab_size > runner.vocab_size:
        raise UsageError(f"the draft model {path.name} has another vocabulary than the model")
    return draft
