"""Which peers there are, in which settings, and where their environments and files lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from voice_agent.models import ModelStore

HERE = Path(__file__).parent
PEERS = ("llamacpp", "vllm", "transformers")


@dataclass(frozen=True, slots=True)
class Setting:
    """One peer in one setting. file: of `model_file`; argument: of the peer's launcher.

    most: the largest concurrency that is run. slow: only with `--all-peers`.
    """

    name: str
    peer: str
    file: str
    argument: str
    most: int = 32
    slow: bool = False


SETTINGS = (
    Setting("llama.cpp as shipped", "llamacpp", "shipped", ""),
    Setting("llama.cpp Q8_0", "llamacpp", "q8_0.gguf", ""),
    Setting("llama.cpp Q4_0", "llamacpp", "q4_0.gguf", ""),
    Setting("vLLM bf16", "vllm", "hf", "bfloat16"),
    Setting("vLLM fp32", "vllm", "hf", "float32", slow=True),
    Setting("transformers int8", "transformers", "hf", "int8", most=4),
    Setting("transformers fp32", "transformers", "hf", "fp32", most=4, slow=True),
)
REFERENCE = "transformers fp32"
"""The shipped weights, dequantised and computed in fp32: what perplexities are compared with."""


def root() -> Path:
    """Folder of the environments and files; under the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "voice-agent" / "peers"


def python(peer: str) -> Path:
    return root() / peer / "bin" / "python"


def model_file(model: str, name: str) -> Path:
    """A registry model in the form that a setting needs."""
    return ModelStore().path(model) if name == "shipped" else root() / "models" / model / name


def missing(setting: Setting, model: str) -> str | None:
    """Why a setting can't run here, or None."""
    if not python(setting.peer).exists():
        return f"no environment for {setting.peer}: run `python -m loadtest.bench peers`"
    if not model_file(model, setting.file).exists():
        return f"no {setting.file} of {model}: run `python -m loadtest.bench peers`"
    return None
