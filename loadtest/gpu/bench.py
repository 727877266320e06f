"""What the phases share: the device, the time left, ceilings, and a report written after each."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

Json = dict[str, Any]
T = TypeVar("T")

GRACE_S = 20.0
"""How long after its limit a phase that hangs is given up, and the run with it."""
EXIT_FAILED, EXIT_HUNG = 1, 4


class Skipped(Exception):
    """A phase can't be done here; the text says why."""


@dataclass(slots=True)
class Bench:
    """device: where everything runs. dry: tiny shapes, only to see that the script works.

    ceilings: "copy_gb_s" and "bf16_tflop_s", once measured. tuned: keeps the swept table in use.
    """

    device: torch.device
    dry: bool
    out: Path
    seed: int = 0
    ceilings: dict[str, float] = field(default_factory=dict)
    tuned: ExitStack = field(default_factory=ExitStack)
    swept: bool = False
    until_s: float = float("inf")

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        return (torch.float32,) if self.dry else (torch.bfloat16, torch.float16)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self.dtypes[0]

    def pick(self, real: T, tiny: T) -> T:
        return tiny if self.dry else real

    def left_s(self) -> float:
        """Until this phase should end."""
        return self.until_s - time.monotonic()

    def spare(self) -> None:
        """Give memory back that no tensor holds; the engine's warm-up froze what was garbage."""
        gc.unfreeze()
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Phase:
    """run: the bench -> what it found. show: prints that. limit_s: it ends itself by then."""

    name: str
    limit_s: float
    run: Callable[[Bench], Json]
    show: Callable[[Json], None]


class Report:
    """All results, on disk after every change."""

    def __init__(self, path: Path, body: Json) -> None:
        self.path = path
        self.body = body
        self._lock = threading.Lock()
        self.put("phases", {})

    def put(self, key: str, value: Any) -> None:
        with self._lock:
            self.body[key] = value
            self._write()

    def phase(self, name: str, result: Json) -> None:
        with self._lock:
            self.body["phases"][name] = result
            self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.body, indent=1) + "\n", "utf-8")
        draft.replace(self.path)


def run_phases(phases: list[Phase], bench: Bench, report: Report, limit_s: float) -> bool:
    """Every phase in order, within limit_s altogether. Returns whether none failed."""
    end_s, good = time.monotonic() + limit_s, True
    for phase in phases:
        allowed_s = min(phase.limit_s, end_s - time.monotonic())
        if allowed_s < 2.0:
            report.phase(phase.name, {"status": "skipped", "why": "no time left"})
            print(f"\n== {phase.name}: skipped, no time left", flush=True)
            continue
        print(f"\n== {phase.name} (at most {allowed_s:.0f} s)", flush=True)
        result = run_phase(phase, bench, report, allowed_s)
        good &= result["status"] != "failed"
    return good


def run_phase(phase: Phase, bench: Bench, report: Report, allowed_s: float) -> Json:
    """One phase; its failure is a result too. Leaves the process if it hangs."""
    begun_s = time.monotonic()
    bench.until_s = begun_s + allowed_s
    result: Json
    with watched(lambda: give_up(phase.name, report, allowed_s), allowed_s + GRACE_S):
        try:
            result = {"status": "done", **phase.run(bench)}
        except Skipped as reason:
            result = {"status": "skipped", "why": str(reason)}
        except Exception as error:
            traceback.print_exc()
            result = {"status": "failed", "why": f"{type(error).__name__}: {error}"}
        result["seconds"] = time.monotonic() - begun_s
        report.phase(phase.name, result)
        if result["status"] == "done":
            phase.show(result)
        else:
            print(f"{result['status']}: {result['why']}", flush=True)
        bench.spare()
    return result


def give_up(name: str, report: Report, allowed_s: float) -> None:
    report.phase(
        name, {"status": "hung", "why": f"not done {GRACE_S:.0f} s after {allowed_s:.0f} s"}
    )
    print(f"hung: {name}", flush=True)
    os._exit(EXIT_HUNG)


@contextmanager
def watched(late: Callable[[], None], after_s: float) -> Iterator[None]:
    timer = threading.Timer(after_s, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def failures(phases: Mapping[str, Json]) -> list[str]:
    return [name for name, result in phases.items() if result["status"] in ("failed", "hung")]
