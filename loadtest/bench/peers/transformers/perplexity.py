"""Negative log likelihoods, as llama.cpp's: `perplexity.py MODEL fp32|int8 < windows.json`."""

import json
import sys

import torch
from server import load  # type: ignore[import-not-found]


def main(path: str, setting: str, windows: list[list[int]]) -> list[list[float]]:
    torch.set_num_threads(2)
    model = load(path, setting)
    out = []
    for window in windows:
        ids = torch.tensor([window])
        with torch.inference_mode():
            likelihood = model(ids).logits[0, :-1].double().log_softmax(-1)
        out.append((-likelihood.gather(1, ids[0, 1:, None]))[:, 0].tolist())
    return out


if __name__ == "__main__":
    json.dump(main(sys.argv[1], sys.argv[2], json.load(sys.stdin)), sys.stdout)
