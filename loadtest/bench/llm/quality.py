"""Perplexity of every setting on one text: what a faster one costs."""

from __future__ import annotations

from typing import Any

import torch

from engine.inputs import Row
from engine.runner import ModelRunner
from loadtest.bench.llm.bench import Bench
from loadtest.bench.llm.decode import WITHIN
from loadtest.bench.llm.own import ALONE_THREADS, policy_name
from loadtest.bench.peers import perplexity
from loadtest.bench.peers.settings import REFERENCE
from loadtest.bench.prose import windows


def quality(bench: Bench) -> dict[str, Any]:
    """Ours now; the peers' from when they were prepared: their code and files don't change."""
    text = windows(bench.tokens, 2 if bench.options.quick else 16)
    if bench.options.quick:
        text = [window[:32] for window in text]
    runner = bench.own.parts(ALONE_THREADS).runner
    ours = perplexity.perplexity(decoded(runner, text))
    known = perplexity.stored(bench.options.model)
    if REFERENCE not in known:
        bench.skip("the peers' perplexity", "run `python -m loadtest.bench peers`")
    rows: list[dict[str, Any]] = [{"setting": "ours", "perplexity": ours}]
    rows += [{"setting": name, "perplexity": value} for name, value in known.items()]
    reference = None if bench.options.quick else known.get(REFERENCE)
    for row in rows:
        value = row["perplexity"]
        row["over_shipped"] = None if reference is None else value / reference - 1
    return {
        "threads": policy_name(ALONE_THREADS),
        "tokens": sum(len(w) - 1 for w in text),
        "rows": rows,
    }


def decoded(runner: ModelRunner, text: list[list[int]]) -> list[list[float]]:
    """Nats of every token but the first of each window, one decode step a token, all together."""
    size = runner.block_size
    each = -(-len(text[0]) // size)
    tables = [tuple(range(i * each, (i + 1) * each)) for i in range(len(text))]
    nats: list[list[float]] = [[] for _ in text]
    for at in range(len(text[0]) - 1):
        rows = [
            Row((window[at],), at, table[: at // size + 1], None)
            for window, table in zip(text, tables, strict=True)
        ]
        likelihood = runner.logits(rows).double().log_softmax(-1)
        targets = torch.tensor([window[at + 1] for window in text])
        for into, value in zip(nats, likelihood.gather(1, targets[:, None])[:, 0], strict=True):
            into.append(-float(value))
    return nats


def show(body: dict[str, Any]) -> None:
    print(f"perplexity over {body['tokens']} tokens of prose, windows of 256; {body['threads']}")
    for row in body["rows"]:
        over = row["over_shipped"]
        note = ""
        if over is not None:
            note = f"{100 * over:+8.2f} %  {'within 1 %' if over <= WITHIN else 'not compared'}"
        print(f"{row['setting']:26}{row['perplexity']:10.3f}{note}")
    if body["rows"][0]["over_shipped"] is not None:
        print(f"  compared with {REFERENCE}: the shipped weights, dequantised")
