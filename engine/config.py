"""Everything an engine is started with; frozen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import UsageError
from engine.prefix import PrefixKind

KvPrecision = Literal["auto", "full", "int8"]
"""Of keys and values in the cache."""

_CPU_QUANTS = ("auto", "native", "int8", "fp32")
_GPU_QUANTS = ("auto", "bf16", "fp16", "fp32", "w8", "w4")
_NAMED = {
    "device": ("cpu", "cuda"),
    "kv_cache": ("auto", "full", "int8"),
    "scheduling_policy": ("deadline", "priority", "fcfs"),
    "batching": ("continuous", "static"),
    "prefix_cache": ("radix", "block-hash", "none"),
    "speculation": ("off", "ngram", "draft"),
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes in tokens, bytes or blocks; times in seconds or milliseconds, as the names say.

    `model_path` is a .gguf file or a folder with safetensors. `kv_bytes` is the memory of the KV
    cache; the number of blocks follows from it and from the model's shape. `max_model_len` of
    None is the model's own limit. Raises `UsageError` for a value that cannot work.
    """

    model_path: Path
    device: Literal["cpu", "cuda"] = "cpu"
    quant: Literal["auto", "native", "int8", "fp32", "bf16", "fp16", "w8", "w4"] = "auto"
    """On a CPU: native, int8 or fp32. On a GPU: bf16, fp16, fp32, or weights as the file has them,
    else in groups of 32 inputs with 8 (w8) or 4 bits (w4)."""
    threads: int = 1
    """Of a step on the CPU."""
    block_size: int = 16
    kv_cache: KvPrecision = "auto"
    """full: keys and values in half precision. int8: 8 bits and a scale a position and head, about
    half the memory. On a CPU only with native kernels."""
    kv_bytes: int = 512 * 1024 * 1024
    gpu_memory_utilization: float = 0.0
    """Share of the GPU's memory that may be full: the KV cache takes what the weights, a step's
    working memory and whatever else is there leave of it. 0: `kv_bytes` decides."""
    max_model_len: int | None = None
    max_num_seqs: int = 16
    """Requests that may hold blocks at once."""
    max_requests: int = 256
    """Requests open at once, waiting ones included; one more is refused with `CapacityError`."""
    max_num_batched_tokens: int = 512
    max_step_ms: float = 80.0
    idle_step_ms: float = 160.0
    """A step's limit while nobody decodes: then only a newcomer could be kept waiting."""
    min_prefill_tokens: int = 16
    """Prompt tokens that a step computes however tight the slack, so that prompts progress."""
    scheduling_policy: Literal["deadline", "priority", "fcfs"] = "deadline"
    batching: Literal["continuous", "static"] = "continuous"
    """`static` is the benchmark's baseline: engine/static.py."""
    target_s: float = 0.6
    """Deadline after arrival of a request that names none, and re-base of a missed one."""
    background_target_s: float = 30.0
    later_stages_s: float = 0.1
    """Predicted service of the stages after the engine (voice), subtracted from a deadline."""
    piece_tokens: int = 20
    """Tokens that a speaking call may need before there is sound again: a long clause. With less
    slack than so many of the longest steps take it goes before any first clause, and steps are
    kept so short that they fit its slack."""
    age_s: float = 0.01
    """How much earlier a request's key becomes with every pass that leaves it out."""
    promote_passes: int = 200
    """Passes after which a background request is ordered with the live ones."""
    admission_growth: float = 1.0
    """Share of `max_tokens` that admission expects a reply to use; below 1 it may preempt."""
    prefix_cache: PrefixKind = "radix"
    speculation: Literal["off", "ngram", "draft"] = "off"
    """Who guesses tokens that a step then checks: nobody, the text itself, or the draft model."""
    speculation_tokens: int = 4
    """Guesses per request and step at most."""
    speculation_max_seqs: int = 4
    """No guesses in a step that advances more requests."""
    draft_model_path: Path | None = None
    """A smaller model with the same vocabulary; its KV cache takes a quarter of `kv_bytes` more."""
    pin_ttl_s: float = 600.0
    pin_fraction: float = 0.5
    """Share of all blocks that pins may hold; past it the longest idle pin lapses."""

    def __post_init__(self) -> None:
        positive = (
            "threads", "block_size", "kv_bytes", "max_num_seqs", "max_requests",
            "max_num_batched_tokens", "max_step_ms", "idle_step_ms", "min_prefill_tokens",
            "target_s", "background_target_s", "pin_ttl_s", "promote_passes",
            "speculation_tokens", "speculation_max_seqs", "piece_tokens",
        )  # fmt: skip
        for name in positive:
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        for name, known in _NAMED.items():
            if getattr(self, name) not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}")
        for name in ("admission_growth", "pin_fraction"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} must lie in 0..1, not {getattr(self, name)}")
        self._check_device()
        if (self.speculation == "draft") != (self.draft_model_path is not None):
            raise UsageError('speculation = "draft" and a draft model need each other')
        if self.speculation != "off" and self.batching == "static":
            raise UsageError("static batching does not speculate: every row advances alike")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise UsageError(f"max_model_len must be at least 2, not {self.max_model_len}")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise UsageError(
                "max_num_seqs must not exceed max_num_batched_tokens: each row decodes a token"
            )

    def _check_device(self) -> None:
        quants = _CPU_QUANTS if self.device == "cpu" else _GPU_QUANTS
        if self.kv_cache == "int8" and self.device == "cpu" and self.quant in ("int8", "fp32"):
            raise UsageError(f"kv_cache = int8 needs quant = native on a CPU, not {self.quant}")
        if self.quant not in quants:
            raise UsageError(f"quant on {self.device} must be one of {', '.join(quants)}")
        if not 0.0 <= self.gpu_memory_utilization <= 0.95:
            raise UsageError(
                f"gpu_memory_utilization must lie in 0..0.95, not {self.gpu_memory_utilization}"
            )
        if self.device == "cpu" and self.gpu_memory_utilization:
            raise UsageError("gpu_memory_utilization needs device = cuda")
