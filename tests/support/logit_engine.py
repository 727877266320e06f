"""The real engine, sampling, grammars and text around a model whose logits a function makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.choice import choose
from engine.client import Engine
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.grammar.compiler import GrammarCompiler
from engine.inputs import Row, Sampled, SampleRow
from engine.launch import AtOnce
from engine.output import TextStream
from engine.text.chat import ChatFormat
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer, from_gguf
from tests.support.tiny_text import CHATML, tiny_meta

Logits = Callable[[SampleRow], np.ndarray]


class LogitRunner(AtOnce):
    """Asks `logits` for fp32 [vocab] of each row that samples; `gate` and `pause_s` slow it."""

    def __init__(self, logits: Logits, n_blocks: int, max_model_len: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = 4
        self.max_model_len = max_model_len
        self.gate = threading.Event()
        self.gate.set()
        self.pause_s = 0.0
        self._logits = logits

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        assert self.gate.wait(60), "the test forgot the gate"
        time.sleep(self.pause_s)
        samples = [row.sample for row in rows if row.sample is not None]
        if not samples:
            return [None] * len(rows)
        chosen = iter(
            choose(torch.from_numpy(np.stack([self._logits(s) for s in samples])), samples)
        )
        return [None if row.sample is None else next(chosen) for row in rows]

    def copy_block(self, src: int, dst: int, n_rows: int) -> None: ...


def tiny_tokenizer(special: Sequence[str] = (), template: str = CHATML) -> Tokenizer:
    """Bytes, a few merges and ChatML's tokens; `special`: further special tokens."""
    meta = tiny_meta("smollm", template)
    meta["tokenizer.ggml.tokens"] += special
    meta["tokenizer.ggml.token_type"] += [4] * len(special)
    return from_gguf(meta)


def noise(n_vocab: int, spread: float = 3.0) -> Logits:
    """Logits that depend on the whole history and on nothing else."""

    def logits(row: SampleRow) -> np.ndarray:
        rng = np.random.default_rng(abs(hash(tuple(row.history))))
        return rng.normal(0.0, spread, n_vocab).astype(np.float32)

    return logits


def scripted(tokenizer: Tokenizer, reply: Callable[[str], str]) -> Logits:
    """A model that answers the text of a prompt with `reply(prompt)`, then ends."""
    end = tokenizer.special["<|im_end|>"]

    def logits(row: SampleRow) -> np.ndarray:
        prompt = tokenizer.decode(row.history[: row.n_prompt])
        ids = [*tokenizer.encode(reply(prompt), allow_special=True), end]
        scores = np.zeros(tokenizer.vocab_size, np.float32)
        n_said = len(row.history) - row.n_prompt
        scores[ids[min(n_said, len(ids) - 1)]] = 50.0
        return scores

    return logits


def logit_engine(
    tokenizer: Tokenizer,
    logits: Logits,
    *,
    n_blocks: int = 512,
    max_model_len: int = 1500,
    template: str = CHATML,
    **options: Any,
) -> tuple[Engine, LogitRunner]:
    """A started engine; the caller closes it."""
    runner = LogitRunner(logits, n_blocks, max_model_len)
    engine = Engine(
        EngineConfig(Path("fake"), block_size=4, **options),
        runner,
        tokenizer=tokenizer,
        chat=ChatFormat(tokenizer, ChatTemplate(template)),
        make_text=lambda request: TextStream(tokenizer.token_bytes, request.params.stop),
        eos_ids=tokenizer.ends,
        n_vocab=tokenizer.vocab_size,
        clock=MonotonicClock(),
        grammars=GrammarCompiler(tokenizer),
    )
    engine.start()
    return engine, runner
