"""Perplexity of every peer setting on the same windows of text, kept beside the model files."""

from __future__ import annotations

import json
import math
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from engine.text.load import load_text
from loadtest.bench.peers.process import peer_server
from loadtest.bench.peers.settings import HERE, SETTINGS, Setting, missing, model_file, python, root
from loadtest.bench.prose import prose, windows


def stored(model: str) -> dict[str, float]:
    """Perplexities that `python -m loadtest.bench peers` measured, by the setting's name."""
    path = _store(model)
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def measure_all(model: str) -> dict[str, float]:
    """Measure the settings that can run here and were not measured before; print each."""
    tokenizer, _ = load_text(model_file(model, "shipped"))
    text = windows(prose(tokenizer))
    known = stored(model)
    for setting in SETTINGS:
        reason = missing(setting, model)
        if reason is not None:
            print(f"NOT RUN: perplexity of {setting.name}: {reason}", flush=True)
        elif setting.name not in known:
            known[setting.name] = perplexity(_nats(setting, model, text))
            _store(model).write_text(json.dumps(known, indent=1) + "\n", "utf-8")
        if setting.name in known:
            print(f"{model}: {setting.name}: perplexity {known[setting.name]:.4f}", flush=True)
    return known


def perplexity(nats: list[list[float]]) -> float:
    """exp of the mean over all predicted tokens."""
    flat = [x for window in nats for x in window]
    return math.exp(sum(flat) / len(flat))


def _store(model: str) -> Path:
    return root() / "models" / model / "perplexity.json"


def _nats(setting: Setting, model: str, text: list[list[int]]) -> list[list[float]]:
    if setting.peer == "vllm":
        return _through_http(setting, model, text)
    launcher = HERE / setting.peer / "perplexity.py"
    command = [str(python(setting.peer)), str(launcher), str(model_file(model, setting.file))]
    if setting.argument:
        command.append(setting.argument)
    done = subprocess.run(command, input=json.dumps(text), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{setting.name}: {done.stderr[-400:]}")
    nats: list[list[float]] = json.loads(done.stdout)
    return nats


def _through_http(setting: Setting, model: str, text: list[list[int]]) -> list[list[float]]:
    """vLLM gives the prompt's own log probabilities when it echoes the prompt."""
    server = peer_server(setting, model, threads=2, slots=4, context=512)
    try:
        server.wait_ready()
        return [_echoed(server.port, window) for window in text]
    finally:
        server.close()


def _echoed(port: int, window: list[int]) -> list[float]:
    body = {
        "model": "bench", "prompt": window, "max_tokens": 1, "echo": True, "logprobs": 0,
        "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        reply: dict[str, Any] = json.load(answer)
    likelihood = reply["choices"][0]["logprobs"]["token_logprobs"]
    return [-float(x) for x in likelihood[1 : len(window)]]
