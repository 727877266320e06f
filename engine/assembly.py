"""Loads the parts of an engine from a model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.errors import UsageError
from engine.grammar.compiler import GrammarCompiler
from engine.output import TextStream
from engine.request import Request
from engine.runner import ModelRunner, Runner
from engine.text.chat import ChatFormat
from engine.text.load import load_text
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    runner: ModelRunner
    tokenizer: Tokenizer
    chat: ChatFormat
    make_text: Callable[[Request], TextStream]
    eos_ids: frozenset[int]
    n_vocab: int
    grammars: GrammarCompiler
    draft: ModelRunner | None


def load_parts(config: EngineConfig) -> Parts:
    """Read text side and weights, allocate the KV cache. Raises `ModelError`, `UsageError`."""
    tokenizer, chat = load_text(config.model_path)
    runner = load_runner(config)

    def make_text(request: Request) -> TextStream:
        return TextStream(tokenizer.token_bytes, request.params.stop)

    draft = _load_draft(config, tokenizer, runner)
    grammars, n_vocab = GrammarCompiler(tokenizer), runner.vocab_size
    return Parts(runner, tokenizer, chat, make_text, tokenizer.ends, n_vocab, grammars, draft)


def load_runner(config: EngineConfig) -> ModelRunner:
    """The weights and the cache where the config wants them; blocking.

    Raises `ModelError`, `UsageError` and, where the cache has no room, `CapacityError`.
    """
    quant = config.quant
    if config.device == "cpu" and quant in ("auto", "native", "int8", "fp32"):
        return Runner.load(
            config.model_path,
            kv_bytes=config.kv_bytes,
            block_size=config.block_size,
            threads=config.threads,
            quant=quant,
            max_model_len=config.max_model_len,
            kv_cache=config.kv_cache,
        )
    from engine.gpu_runner import GpuRunner

    share = config.gpu_memory_utilization
    return GpuRunner.load(
        config.model_path,
        device=config.device,
        kv_bytes=None if share else config.kv_bytes,
        gpu_memory_utilization=share,
        block_size=config.block_size,
        quant=quant,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        kv_cache=config.kv_cache,
    )


def _load_draft(
    config: EngineConfig, tokenizer: Tokenizer, runner: ModelRunner
) -> ModelRunner | None:
    """The draft model, at its own longest length. Raises UsageError for another vocabulary."""
    path = config.draft_model_path
    if path is None:
        return None
    known, _ = load_text(path)
    draft = load_runner(
        replace(
            config,
            model_path=path,
            kv_bytes=config.kv_bytes // 4,
            gpu_memory_utilization=0.0,
            max_model_len=None,
            speculation="off",
            draft_model_path=None,
        )
    )
    same = known.vocab_size == tokenizer.vocab_size and all(
        known.token_bytes(i) == tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
    )
    if not same or draft.vocab_size > runner.vocab_size:
        raise UsageError(f"the draft model {path.name} has another vocabulary than the model")
    return draft
