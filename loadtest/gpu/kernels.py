"""Every kernel against its reference, and against what the device's memory allows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from kernels.paged_attention_decode.spec import ERROR_FACTOR
from kernels.resolve import resolve
from loadtest.gpu.bench import Bench, Json, Skipped
from loadtest.gpu.cases import Case, Inputs, cases, far, numeric_cases
from loadtest.gpu.timing import copies, median_ms

FOLDERS = {"rms_norm_add": "rms_norm", "rope_at": "rope"}
FAR_BYTES = 64 << 30
ROUNDING = 1e-6
"""Relative error that nobody is blamed for: sums in fp32 in another order."""


def numerics(bench: Bench) -> Json:
    """Error of each kernel and of plain PyTorch in the same precision, both against fp64."""
    rows, left_out = [], 0
    for case in [*numeric_cases(bench.dry), *far_cases(bench.device)]:
        for dtype in bench.dtypes:
            if bench.left_s() < 2:
                left_out += 1
                continue
            rows.append(compare(case, dtype, bench))
    return {"rows": rows, "left_out": left_out, "wrong": [r["what"] for r in rows if not r["ok"]]}


def far_cases(device: torch.device) -> list[Case]:
    """For a GPU that can hold such a cache in fp64."""
    if device.type != "cuda":
        return []
    return [far()] if torch.cuda.mem_get_info(device)[0] > FAR_BYTES else []


def compare(case: Case, dtype: torch.dtype, bench: Bench) -> Json:
    """ok: the same as the reference, or at most twice as far from fp64 as it is."""
    plain, ours = reference(case.op), resolve(case.op, bench.device.type)
    result: Json = {"what": f"{case.op} {case.label} {_name(dtype)}"}

    def fresh() -> Inputs:
        return case.inputs(dtype, bench.device, bench.seed)

    with torch.inference_mode(), true_products():
        made = case.call(ours, fresh())
        expected = case.call(plain, fresh())
        if case.exact:
            same = (made == expected).float().mean().item()
            return result | {"same": same, "ok": same == 1.0}
        wide = {k: v if k == "scales" else _widened(v) for k, v in fresh().items()}
        truth = case.call(plain, wide)
        bench.wait()
    error, theirs = relative(made, truth), relative(expected, truth)
    ok = error <= ERROR_FACTOR * theirs + ROUNDING
    return result | {"error": error, "plain_error": theirs, "ok": ok}


def speeds(bench: Bench) -> Json:
    """Bandwidth, or operations, of each kernel as a share of what was probed."""
    rows, left_out = [], []
    for case in cases(bench.dry):
        if bench.left_s() < 3:
            left_out.append(f"{case.op} {case.label}")
            continue
        rows.append({"op": case.op, "shape": case.label, **timed(case, bench)})
    return {"rows": rows, "left_out": left_out}


def speeds_tuned(bench: Bench) -> Json:
    """The same with the swept table. Raises Skipped if nothing was swept."""
    if not bench.swept:
        raise Skipped("nothing was swept")
    return speeds(bench)


def timed(case: Case, bench: Bench) -> Json:
    """us, GB/s and TFLOP/s of one call on memory that no cache holds."""
    op, device = resolve(case.op, bench.device.type), bench.device
    n_bytes = case.n_bytes(bench.dtype.itemsize)
    sets = [
        case.inputs(bench.dtype, device, bench.seed + i) for i in range(copies(n_bytes, device))
    ]
    with torch.inference_mode():
        ms = median_ms([lambda x=x: case.call(op, x) for x in sets], device, tries=5)  # type: ignore[misc]
    gb_s, tflop_s = n_bytes / ms / 1e6, case.n_ops / ms / 1e9
    ceilings = bench.ceilings
    return {
        "us": 1000 * ms,
        "gb_s": gb_s,
        "tflop_s": tflop_s,
        "percent_of_copy": 100 * gb_s / ceilings["copy_gb_s"],
        "percent_of_product": 100 * tflop_s / ceilings["bf16_tflop_s"],
    }


def reference(op: str) -> Any:
    """The plain PyTorch of an operation, whatever device it is given."""
    return getattr(importlib.import_module(f"kernels.{FOLDERS.get(op, op)}.reference"), op)


def relative(made: Tensor, truth: Tensor) -> float:
    """|made - truth| / |truth|, 2-norms; infinite where a number is none."""
    if not bool(torch.isfinite(made).all()):
        return float("inf")
    difference = made.double() - truth.double()
    return float(difference.norm() / truth.double().norm().clamp(min=1e-30))


@contextmanager
def true_products() -> Iterator[None]:
    """No reduced-precision sums in PyTorch's own half products, which serve as the yardstick."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_bf16_reduced_precision_reduction
    flags.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        flags.allow_bf16_reduced_precision_reduction = before


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def show_numerics(result: Json) -> None:
    wrong = result["wrong"]
    print(f"{len(result['rows'])} compared, {len(wrong)} wrong, {result['left_out']} left out")
    for row in result["rows"]:
        if "error" in row:
            print(f"  {row['what']:58} {row['error']:.1e} (plain {row['plain_error']:.1e})", end="")
        else:
            print(f"  {row['what']:58} same {row['same']:.6f}", end="")
        print("" if row["ok"] else "  WRONG")


def show_speeds(result: Json) -> None:
    print(f"{'operation':24}{'shape':34}{'us':>9}{'GB/s':>8}{'% copy':>8}{'TFLOP/s':>9}{'%':>5}")
    for r in result["rows"]:
        product = f"{r['tflop_s']:9.1f}{r['percent_of_product']:5.0f}" if r["tflop_s"] else ""
        print(
            f"{r['op']:24}{r['shape']:34}{r['us']:9.1f}{r['gb_s']:8.0f}{r['percent_of_copy']:8.0f}"
            f"{product}"
        )
    if result["left_out"]:
        print(f"left out, no time: {', '.join(result['left_out'])}")
