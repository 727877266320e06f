"""The configuration of the language model engine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from voice_agent.server_section import Section

DEFAULT_KV_MB = 512


class EngineSection(Section):
    """The language model engine."""

    threads: int = Field(default=0, ge=0)
    """Of a CPU. 0: one; a second spins against recognition and voice and loses on two busy
    cores."""
    kv_mb: int = Field(default=0, ge=0)
    """0: `gpu_memory_utilization` decides."""
    gpu_memory_utilization: float = Field(default=0.0, ge=0.0, le=0.9)
    """CPU: the share of the machine's memory that the KV cache takes; 0: 512 MiB. GPU: the share
    of its memory that may be full; 0: 0.8."""
    kv_cache: Literal["auto", "full", "int8"] = "auto"
    """Precision of keys and values. int8 takes about half the memory of full."""
    block_size: Literal[16, 32] = 16
    max_num_seqs: int = Field(default=16, ge=1)
    max_num_batched_tokens: int = Field(default=512, ge=16)
    max_model_len: int = Field(default=8192, ge=256)
    scheduling_policy: Literal["deadline", "priority", "fcfs"] = "deadline"
    enable_prefix_caching: Literal["radix", "block-hash", "none"] = "radix"
    """true and false stand for `radix` and `none`."""
    quant: Literal["auto", "native", "int8", "fp32", "bf16", "fp16", "w8", "w4"] = "auto"
    """native and int8 are a CPU's, those after fp32 a GPU's."""
    speculation: Literal["off", "ngram", "draft"] = "off"
    speculation_tokens: int = Field(default=4, ge=1, le=16)
    speculation_max_seqs: int = Field(default=4, ge=1)
    draft_model_path: Path | None = None
    """A smaller model with the same vocabulary, for `draft`."""

    @field_validator("enable_prefix_caching", mode="before")
    @classmethod
    def _yes_or_no(cls, value: object) -> object:
        return {"true": "radix", "false": "none"}.get(str(value).lower(), value)

    @model_validator(mode="after")
    def _a_token_each(self) -> Self:
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError("max_num_seqs must not exceed max_num_batched_tokens")
        return self

    @model_validator(mode="after")
    def _a_model_to_draft(self) -> Self:
        if (self.speculation == "draft") != (self.draft_model_path is not None):
            raise ValueError('speculation = "draft" and draft_model_path need each other')
        return self

    def kv_bytes(self, memory_mb: int) -> int:
        """Memory of the KV cache on a machine with so much memory."""
        share = int(memory_mb * self.gpu_memory_utilization)
        return (self.kv_mb or share or DEFAULT_KV_MB) << 20
