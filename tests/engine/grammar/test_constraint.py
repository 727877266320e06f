from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from engine.choice import choose
from engine.errors import UsageError
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import Constraint
from engine.grammar.spec import Grammar
from engine.inputs import SampleRow
from engine.sampling import SamplingParams
from tests.support.logit_engine import tiny_tokenizer

pytestmark = pytest.mark.unit

TOKENIZER = tiny_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER)


@pytest.fixture
def worker():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def constraint(worker: ThreadPoolExecutor, regex: str) -> Constraint:
    return Constraint(COMPILER.matcher(Grammar("regex", regex)), COMPILER.n_vocab, worker)


def allowed_text(c: Constraint) -> set[str]:
    banned = c.banned()
    assert banned is not None
    return {TOKENIZER.decode([int(i)]) for i in np.flatnonzero(~banned)}


def test_the_mask_follows_the_tokens(worker) -> None:
    c = constraint(worker, "hello|hey")
    assert allowed_text(c) == {"h", "he", "hell", "hello"}
    c.push(TOKENIZER.encode("he")[0])
    assert allowed_text(c) == {"l", "ll", "y"}
    c.push(TOKENIZER.encode("y")[0])
    assert allowed_text(c) == {"<|endoftext|>", "<|im_end|>"}
    c.check()


def test_a_token_against_the_grammar_is_an_error_and_bans_nothing(worker) -> None:
    c = constraint(worker, "ab")
    c.push(TOKENIZER.encode("z")[0])
    assert c.banned() is None
    with pytest.raises(UsageError, match="could not be followed"):
        c.check()


def test_a_mask_touches_its_own_row_only(worker) -> None:
    """Rows with and without a grammar, greedy and drawn, in every order."""
    texts = ["x", "y", None, "z", None, "w"]
    ids = {text: TOKENIZER.encode(text)[0] for text in "xyzw"}
    n_vocab = TOKENIZER.vocab_size + 5  # a model may have rows that no token has
    logits = torch.zeros(len(texts), n_vocab)
    logits[:, -1] = 30.0
    rows = [
        SampleRow(
            SamplingParams(temperature=float(i % 2), logprobs=0 if i == 3 else None),
            4, i, constraint=constraint(worker, text) if text else None,
        )
        for i, text in enumerate(texts)
    ]  # fmt: skip
    want = [ids[text] if text else n_vocab - 1 for text in texts]
    for order in (list(range(6)), [5, 2, 0, 3, 1, 4], [4, 2, 5, 3, 1, 0]):
        chosen = choose(logits, [rows[i] for i in order])
        assert [c.token for c in chosen] == [want[i] for i in order]


def test_no_bias_and_no_penalty_brings_a_banned_token_back(worker) -> None:
    a, b = TOKENIZER.encode("a")[0], TOKENIZER.encode("b")[0]
    settings = SamplingParams(logit_bias=((b, 100.0), (a, -100.0)), repetition_penalty=5.0)
    row = SampleRow(settings, 1, 0, [a], 1, constraint=constraint(worker, "a"))
    assert choose(torch.zeros(1, TOKENIZER.vocab_size), [row])[0].token == a
