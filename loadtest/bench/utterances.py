"""How well a chat model tells whole utterances from beginnings, and how its answer is calibrated.

Run: python -m loadtest.bench.utterances [--model NAME_OR_PATH] [--json F]

Thirty utterances as callers make them, and two beginnings of each, are asked of the engine as a
call asks (`voice_agent.end_of_utterance`), as a call's first words and in the middle of a dialogue.
Told of each: how many pairs of a whole one and a beginning it has in the right order (the area
under the ROC curve), and the logistic regressions that `CALIBRATION` stands for. Nothing here is in
the conversation benchmark's recordings.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.client import Engine
from engine.config import EngineConfig
from loadtest.report import hardware, write_json
from voice_agent.end_of_utterance import Calibration, EndModel
from voice_agent.models import REGISTRY, ModelStore

SYSTEM = "Answer the telephone."
DIALOGUE = (
    ("system", "You are Sam, the telephone agent of a hotel. Be brief, polite and warm."),
    ("assistant", "Harbour Hotel, this is Sam speaking. How can I help you?"),
    ("user", "Do you have a room for next weekend?"),
    ("assistant", "Yes, we do. For how many nights would that be?"),
)
CONTEXTS = {"first words": (("system", SYSTEM),), "dialogue": DIALOGUE}
WHOLE = (
    "What is the weather in Paris", "Please book a table for two on Monday", "When are you open",
    "I'd like to cancel my order", "Can you tell me how to get to the station",
    "My name is Anna Miller", "I lost my card yesterday", "How much does the large one cost",
    "Could you repeat that please", "Yes I would like that", "No that's not what I meant",
    "The number is five five five one two three four", "I think it was last Tuesday",
    "Do you have anything cheaper", "What time does the museum close on Sunday",
    "I need to change my flight to Thursday", "It keeps restarting when I open the camera",
    "Send it to my home address", "Is there parking near the hotel",
    "I want to speak to a manager", "The food was cold and the waiter was rude",
    "Can I pay with a credit card", "Tell me a short story about a dragon",
    "We are four people with two children", "I am calling about the invoice from March",
    "Turn off the lights in the kitchen", "Thank you that was very helpful",
    "Where can I buy tickets for the concert", "My order number is seven two nine four",
    "How long does the delivery take",
)  # fmt: skip
ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Quality:
    """pairs: share in the right order. calibration: with whole ones and beginnings weighing the
    same."""

    pairs: float
    calibration: Calibration


def beginnings() -> list[str]:
    """Two of each utterance that has so many, of at least two words."""
    chance, out = random.Random(1), []
    for text in WHOLE:
        words = text.split()
        places = range(2, len(words))
        out += [" ".join(words[:n]) for n in sorted(chance.sample(places, min(2, len(places))))]
    return out


async def log_odds(
    engine: Engine, before: Sequence[tuple[str, str]], texts: Sequence[str]
) -> list[float]:
    """Of an ending after `before`, not calibrated."""
    model, opening = EndModel(engine, Calibration(1.0, 0.0)), engine.chat.dialogue(before)
    asked = [model.log_odds([*opening, *engine.chat.user_open(text)]) for text in texts]
    told = await asyncio.gather(*asked)
    return [x for x in told if x is not None]


def quality(whole: Sequence[float], begun: Sequence[float]) -> Quality:
    """Of log-odds told for whole utterances and for beginnings."""
    a, b = np.array(whole), np.array(begun)
    order = np.sign(a[:, None] - b[None, :])
    return Quality(float((order + 1).mean() / 2), _regression(a, b))


def _regression(whole: NDArray[np.float64], begun: NDArray[np.float64]) -> Calibration:
    """Newton's method; both classes weigh the same."""
    x = np.concatenate([whole, begun])
    is_whole = np.arange(len(x)) < len(whole)
    weight = np.where(is_whole, 0.5 / len(whole), 0.5 / len(begun))
    rows, found = np.stack([x, np.ones(len(x))], 1), np.zeros(2)
    for _ in range(ROUNDS):
        p = 1 / (1 + np.exp(-rows @ found))
        slope = rows.T @ (weight * (p - is_whole))
        bend = (rows * (weight * p * (1 - p))[:, None]).T @ rows
        found -= np.linalg.solve(bend + 1e-6 * np.eye(2), slope)
    return Calibration(round(float(found[0]), 2), round(float(found[1]), 2))


async def measure(engine: Engine) -> dict[str, Quality]:
    """By context; the engine is started."""
    return {
        name: quality(
            await log_odds(engine, before, WHOLE), await log_odds(engine, before, beginnings())
        )
        for name, before in CONTEXTS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m", help="a known model or a GGUF file")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    known = args.model in REGISTRY
    path = ModelStore().path(args.model) if known else Path(args.model)
    engine = Engine.load(EngineConfig(model_path=path, kv_bytes=256 << 20))
    engine.warm()
    engine.start()
    try:
        found = asyncio.run(measure(engine))
    finally:
        engine.close()
    for name, one in found.items():
        fit = one.calibration
        print(f"{name}: {100 * one.pairs:.1f} % of pairs in order; {fit.slope} x + {fit.offset}")
    if args.json:
        body = {name: asdict(one) for name, one in found.items()}
        write_json(args.json, {"hardware": hardware(), "model": args.model, **body})


if __name__ == "__main__":
    main()
