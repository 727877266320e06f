"""Loads the parts of an engine from a model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
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

    grammars = GrammarCompiler(tokenizer)
    return Parts(runner, tokenizer, chat, make_text, tokenizer.ends, runner.vocab_size, grammars)
