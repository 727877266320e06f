"""A bounded search for better tile sizes, warps and stages than the built-in ones.

One value at a time is changed (coordinate descent), on shapes that decide an engine's step. What
is found goes to kernels/tuning/<arch>.json, to be committed, and stays in use for later phases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels import tuning
from kernels.resolve import resolve
from loadtest.gpu import cases as c
from loadtest.gpu.bench import Bench, Json, Skipped
from loadtest.gpu.cases import Case, Inputs
from loadtest.gpu.kernels import relative
from loadtest.gpu.timing import copies, median_ms

WARPS, STAGES = (2, 4, 8), (1, 2, 3, 4, 5)
GAIN = 0.97
"""A candidate must take at most this share of the best time so far: less is noise."""
SAME = 0.02
"""Largest relative difference between the results of two settings in half precision."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a kernel's launch looks up, and the values in use."""

    op: str
    shape: str
    values: tuple[tuple[str, int], ...]


def sweep(bench: Bench) -> Json:
    """Raises Skipped where no kernel looks anything up (references only)."""
    wanted = targets(bench.dry)
    rows: list[Json] = []
    table: dict[str, dict[str, tuning.Launch]] = {}
    known: set[tuple[str, str]] = set()
    for number, case in enumerate(wanted):
        share_s = bench.left_s() / (len(wanted) - number)
        trial = Trial(case, bench)
        for setting in looked_up(case, trial):
            if (setting.op, setting.shape) in known or bench.left_s() < 3:
                continue
            known.add((setting.op, setting.shape))
            row, best = descend(setting, trial, bench.left_s() - share_s + 1.0, bench)
            rows.append(row)
            if best != dict(setting.values):
                table.setdefault(setting.op, {})[setting.shape] = best
    if not known:
        raise Skipped("no kernel here takes its launch from a table")
    arch = tuning.arch(bench.device)
    write(table, [bench.out / f"{arch}.json", *([] if bench.dry else [committed(arch)])])
    bench.tuned.enter_context(tuning.using(table))
    bench.swept = True
    return {"arch": arch, "rows": rows, "table": table}


def targets(dry: bool) -> list[Case]:
    """What most of a step's time goes to, first."""
    if dry:
        return [c.decode(c.SMALL, 2, 40), c.rms_norm(c.SMALL, 4)]
    return [
        c.decode(c.LLAMA, 32, 1024),
        c.prefill(c.LLAMA, "128 beside 31", ((128, 1152), *((1, 1024),) * 31)),
        c.linear(4, 1, 4096, 28672),
        c.linear(4, 32, 4096, 28672),
        c.linear(8, 32, 4096, 28672),
        c.rms_norm_add(c.LLAMA, 32),
        c.silu_mul(c.LLAMA, 32),
        c.decode(c.QWEN, 32, 1024),
        c.rope_at(c.LLAMA, 32),
        c.kv_write(c.LLAMA, 32),
        c.linear(4, 512, 4096, 28672),
        c.prefill(c.QWEN, "512 new", ((512, 512),)),
    ]


class Trial:
    """One case with its inputs made, ready to be timed under other settings."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        n = copies(case.n_bytes(bench.dtype.itemsize), bench.device)
        self._sets = [case.inputs(bench.dtype, bench.device, i) for i in range(n)]
        self._op = resolve(case.op, bench.device.type)

    def once(self) -> Tensor:
        """The result on fresh inputs: some operations change theirs."""
        fresh = self._case.inputs(self._bench.dtype, self._bench.device, 99)
        with torch.inference_mode():
            return self._case.call(self._op, fresh).clone()

    def ms(self) -> float:
        def call(x: Inputs) -> Any:
            return lambda: self._case.call(self._op, x)

        with torch.inference_mode():
            return median_ms([call(x) for x in self._sets], self._bench.device, tries=5)


def looked_up(case: Case, trial: Trial) -> list[Setting]:
    """The settings that one call of the case takes from the table."""
    with listening() as found:
        trial.once()
    return found


@contextmanager
def listening() -> Iterator[list[Setting]]:
    """Notes what `tuning.launch` is asked inside."""
    found: list[Setting] = []
    real = tuning.launch

    def launch(op: str, shape: str, device: torch.device, default: tuning.Launch) -> tuning.Launch:
        values = real(op, shape, device, default)
        setting = Setting(op, shape, tuple(values.items()))
        if setting not in found:
            found.append(setting)
        return values

    tuning.launch = launch
    try:
        yield found
    finally:
        tuning.launch = real


def descend(
    setting: Setting, trial: Trial, left_s: float, bench: Bench
) -> tuple[Json, tuning.Launch]:
    """Change one value at a time while that helps, until the phase has `left_s` left."""
    best = dict(setting.values)
    expected = trial.once()
    first_ms = best_ms = trial.ms()
    seen, unusable = {tuple(best.items())}, 0
    for key in sorted(best, key=lambda k: k.startswith("num_")):
        for move in moves(key):
            while bench.left_s() > left_s:
                candidate = {**best, key: move(best[key])}
                if candidate[key] < 1 or tuple(candidate.items()) in seen:
                    break
                seen.add(tuple(candidate.items()))
                ms = tried_ms(setting, candidate, trial, expected)
                unusable += ms is None
                if ms is None or ms >= GAIN * best_ms:
                    break
                best, best_ms = candidate, ms
    row = {
        "op": setting.op,
        "shape": setting.shape,
        "tried": len(seen) - 1,
        "unusable": unusable,
        "first_us": 1000 * first_ms,
        "best_us": 1000 * best_ms,
        "values": best,
    }
    return row, best


def tried_ms(
    setting: Setting, candidate: tuning.Launch, trial: Trial, expected: Tensor
) -> float | None:
    """None for values that do not compile, take more than the device has, or are wrong."""
    with tuning.using({setting.op: {setting.shape: candidate}}):
        try:
            right = relative(trial.once(), expected) <= SAME
            return trial.ms() if right else None
        except Exception:
            return None


def moves(key: str) -> list[Callable[[int], int]]:
    """Ways to another value; each is taken again as long as it helps."""

    def to(value: int) -> Callable[[int], int]:
        return lambda _: value

    if key == "num_warps":
        return [to(n) for n in WARPS]
    if key == "num_stages":
        return [to(n) for n in STAGES]
    return [lambda value: 2 * value, lambda value: value // 2]


def committed(arch: str) -> Path:
    """Where the kernels read it from."""
    return Path(tuning.__file__).parent / f"{arch}.json"


def write(
    table: dict[str, dict[str, tuning.Launch]],
    paths: list[Path],
    implementations: dict[str, str | None] | None = None,
) -> None:
    """What was found, over what was there. implementations: by operation, None for Triton's."""
    for path in paths:
        old = dict(tuning.read(path)) if path.exists() else {}
        named: dict[str, str | None] = {}
        if path.exists():
            named.update(tuning.read_implementations(path))
        named.update(implementations or {})
        kept = {op: name for op, name in sorted(named.items()) if name is not None}
        merged: Json = {tuning.IMPLEMENTATIONS: kept} if kept else {}
        for op in sorted({*old, *table}):
            merged[op] = {**old.get(op, {}), **table.get(op, {})}
        if not merged and not path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(merged, indent=1) + "\n", "utf-8")


def show(result: Json) -> None:
    for r in result["rows"]:
        values = ", ".join(f"{k} {v}" for k, v in r["values"].items())
        print(
            f"{r['op']:24}{r['shape']:12}{r['first_us']:9.1f} -> {r['best_us']:8.1f} us  "
            f"{r['tried']:3} tried, {r['unusable']} unusable  {values}"
        )
