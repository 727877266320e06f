"""Our engine in every mode of the benchmark, over weights that are loaded once per thread count."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.assembly import Parts, load_parts
from engine.client import Engine
from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.warmup import WarmupReport

LIVE_THREADS, ALONE_THREADS = 1, 2
"""What `voice-agent up` gives the engine beside the other stages; what the machine has."""


class OwnEngines:
    """Owns the weights. One engine at a time runs over one thread count's cache."""

    def __init__(self, model: Path, kv_bytes: int) -> None:
        self.model = model
        self._kv_bytes = kv_bytes
        self._parts: dict[int, Parts] = {}
        self._warm: dict[int, WarmupReport] = {}

    def config(self, threads: int, **options: Any) -> EngineConfig:
        defaults: dict[str, Any] = {"max_num_seqs": 32, "kv_bytes": self._kv_bytes}
        return EngineConfig(self.model, threads=threads, **(defaults | options))

    def parts(self, threads: int) -> Parts:
        if threads not in self._parts:
            self._parts[threads] = load_parts(self.config(threads))
        return self._parts[threads]

    def warmup(self, threads: int) -> WarmupReport:
        """What steps cost, up to 64 rows; measured once."""
        if threads not in self._warm:
            engine = self._engine(threads, max_num_seqs=64)
            self._warm[threads] = engine.warm()
            engine.close()
        return self._warm[threads]

    @contextmanager
    def open(self, threads: int, **options: Any) -> Iterator[Engine]:
        """A started, warm engine with an empty cache. options: of `EngineConfig`."""
        known = self.warmup(threads)
        engine = self._engine(threads, **options)
        engine.warm(known)
        engine.start()
        try:
            yield engine
        finally:
            engine.close()

    def _engine(self, threads: int, **options: Any) -> Engine:
        parts = self.parts(threads)
        own = {field.name: getattr(parts, field.name) for field in dataclasses.fields(parts)}
        config = self.config(threads, **options)
        return Engine(config, own.pop("runner"), clock=MonotonicClock(), **own)


def policy_name(threads: int) -> str:
    """The thread policy that stands beside every figure."""
    return (
        f"{threads} thread{'s' * (threads > 1)} ({'live' if threads == LIVE_THREADS else 'alone'})"
    )
