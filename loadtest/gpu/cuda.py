"""The CUDA C++ kernels beside Triton's: right, and how fast.

`kernels.resolve` takes an implementation in CUDA C++ only where the tuning file says that it won;
this writes it there, for processes that start later. linear_group is chosen by class of shapes
(bits and rows); it must gain more, for it keeps the weight a second time: prompts want Triton's.
On a GPU it happens in a process of its own: a kernel that breaks there breaks no other phase.
"""

from __future__ import annotations

import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from kernels import cuda_build, tuning
from kernels.cuda_build import Kernels
from kernels.linear_group import cuda as linear_cuda
from kernels.linear_group.gpu import shape_class
from kernels.linear_group.spec import REL_ERROR
from kernels.paged_attention_decode import cuda as decode_cuda
from kernels.paged_attention_decode.spec import ERROR_FACTOR
from loadtest.gpu import cases as c
from loadtest.gpu import sweep
from loadtest.gpu.bench import Bench, Json, Skipped
from loadtest.gpu.cases import Case, Inputs
from loadtest.gpu.kernels import ROUNDING, reference, relative, true_products
from loadtest.gpu.timing import copies, median_ms

MEASURE_S = 22.0
"""Of the phase's time, kept for measuring."""
GAIN = {
    "paged_attention_decode": 0.97,
    **{
        tuning.place("linear_group", shape_class(bits, n)): 0.9
        for bits in (4, 8, 5)
        for n in (1, 32)
    },
}
"""What `kernels.resolve` has in CUDA C++ too: an operation, or a class of its shapes. CUDA C++ must
take at most this share of Triton's time in the (geometric) mean."""
WORST = 1.1
"""And in any case at most this."""


@dataclass(frozen=True, slots=True)
class Contest:
    """case: as every implementation is given it. decides: on what of GAIN. prepare: the inputs as
    ours wants them. ours."""

    case: Case
    decides: str
    prepare: Callable[[Inputs], Inputs]
    ours: Callable[[Inputs], Tensor]
    allowed: Callable[[float], float]
    """Largest error against fp64, given that of plain PyTorch in the same precision."""


def contest(bench: Bench) -> Json:
    """Raises Skipped where the kernels can't be built, RuntimeError where they break."""
    try:
        if bench.dry:
            result = measured(bench, cuda_build.emulated())
        else:
            begin().result(bench.left_s() - MEASURE_S)
            result = apart(bench)
    except cuda_build.CudaUnavailable as reason:
        raise Skipped(str(reason)) from None
    except TimeoutError:
        raise Skipped("nvcc is still compiling") from None
    found = {what: choice(what, result) for what in GAIN}
    arch = tuning.arch(bench.device)
    paths = [bench.out / f"{arch}.json", *([] if bench.dry else [sweep.committed(arch)])]
    sweep.write({}, paths, found)
    return result | {"implementations": found}


def choice(what: str, result: Json) -> str | None:
    """ "cuda" if it was right and faster, else None: Triton. what: one of GAIN, not chosen unless
    measured to its end."""
    rows, late = ([row for row in result[key] if row["decides"] == what]
                  for key in ("rows", "left_out"))  # fmt: skip
    if not rows or late or not all(row["ok"] for row in rows):
        return None
    shares = [row["us"] / row["beside_us"] for row in rows]
    faster = statistics.geometric_mean(shares) <= GAIN[what] and max(shares) <= WORST
    return "cuda" if faster else None


def apart(bench: Bench) -> Json:
    """`measured` in another process. Raises RuntimeError if that fails."""
    given = {
        "dry": bench.dry,
        "seed": bench.seed,
        "ceilings": bench.ceilings,
        "left_s": bench.left_s() - 2.0,
    }
    command = [sys.executable, "-m", "loadtest.gpu.cuda", json.dumps(given)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=bench.left_s(), check=False
        )
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"not done after {late.timeout:.0f} s") from None
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    result: Json = json.loads(done.stdout.splitlines()[-1])
    return result


def main(given: str) -> None:
    """Prints, as one line of JSON, what `measured` finds."""
    said = json.loads(given)
    dry = bool(said["dry"])
    bench = Bench(
        torch.device("cpu" if dry else "cuda"), dry, Path(), said["seed"], said["ceilings"]
    )
    bench.until_s = time.monotonic() + said["left_s"]
    print(json.dumps(measured(bench, cuda_build.emulated() if dry else cuda_build.library())))


def measured(bench: Bench, kernels: Kernels) -> Json:
    """Every contest that there is time for."""
    rows, left_out = [], []
    for one in contests(bench.dry, kernels):
        if bench.left_s() < 2:
            left_out.append({"what": f"{one.case.op} {one.case.label}", "decides": one.decides})
            continue
        rows.append(compare(one, bench))
    return {"rows": rows, "left_out": left_out, "wrong": [r["what"] for r in rows if not r["ok"]]}


@cache
def begin() -> Future[Kernels]:
    """Compile beside the phases before this one: it can take a minute."""
    made: Future[Kernels] = Future()

    def work() -> None:
        try:
            made.set_result(cuda_build.library())
        except BaseException as error:
            made.set_exception(error)

    Thread(target=work, name="nvcc", daemon=True).start()
    return made


def contests(dry: bool, kernels: Kernels) -> Iterator[Contest]:
    """Attention over long and short contexts, products that read a weight once."""
    llama = ((32, 1024), (1, 1024), (8, 1024), (64, 1024), (32, 4096))
    products = [
        (bits, n, *size)
        for bits in (4, 8, 5)
        for size in ((4096, 28672), (14336, 4096))
        for n in (1, 8, 32)
    ]
    if dry:
        yield attention(c.decode(c.SMALL, 2, 40), kernels)
        yield product(4, 2, c.SMALL.hidden, c.SMALL.inner, kernels)
        return
    yield from (attention(c.decode(c.LLAMA, *size), kernels) for size in llama)
    yield attention(c.decode(c.LLAMA, 32, 1024, ragged=True), kernels)
    yield attention(c.decode(c.QWEN, 32, 1024), kernels)
    yield from (product(*size, kernels) for size in products)


def attention(case: Case, kernels: Kernels) -> Contest:
    def prepare(x: Inputs) -> Inputs:
        work = decode_cuda.decode_workspace(x["q"], x["cache"], x["tables"])
        return {**x, "workspace": work}

    op = partial(decode_cuda.paged_attention_decode, kernels=kernels)
    return Contest(
        case, case.op, prepare, lambda x: case.call(op, x), lambda e: ERROR_FACTOR * e + ROUNDING
    )


def product(bits: int, n: int, n_in: int, n_out: int, kernels: Kernels) -> Contest:
    case = c.linear(bits, n, n_in, n_out)
    decides = tuning.place(case.op, shape_class(bits, n))

    def prepare(x: Inputs) -> Inputs:
        w = linear_cuda.pack(x["w"].codes())
        out = x["x"].new_empty(x["x"].shape[0], w.n_out)
        work = linear_cuda.workspace(w.n_in, out.device, out.shape[0])
        return {"x": x["x"], "w": w, "out": out, "work": work}

    ours = partial(linear_cuda.linear_group, kernels=kernels)
    # activations are rounded to 8 bits, as on the CPU
    return Contest(case, decides, prepare, lambda x: ours(**x), lambda _: REL_ERROR)


def compare(one: Contest, bench: Bench) -> Json:
    """Error against fp64, microseconds of ours and of Triton's, share of bandwidth."""
    case, device = one.case, bench.device
    dtype = torch.float16 if bench.dry else bench.dtype
    beside = "triton" if device.type == "cuda" else "reference"
    theirs = getattr(importlib.import_module(f"kernels.{case.op}.{beside}"), case.op)
    n_bytes = case.n_bytes(dtype.itemsize)
    sets = [case.inputs(dtype, device, bench.seed + i) for i in range(copies(n_bytes, device))]
    with torch.inference_mode(), true_products():
        error, plain = errors(one, case.inputs(dtype, device, bench.seed))
        prepared = [one.prepare(x) for x in sets]
        ours_ms = median_ms([partial(one.ours, x) for x in prepared], device, tries=5)
        del prepared
        their_ms = median_ms([partial(case.call, theirs, x) for x in sets], device, tries=5)
    gb_s = n_bytes / ours_ms / 1e6
    return {
        "what": f"{case.op} {case.label}",
        "decides": one.decides,
        "error": error,
        "plain_error": plain,
        "ok": error <= one.allowed(plain),
        "us": 1000 * ours_ms,
        "beside": beside,
        "beside_us": 1000 * their_ms,
        "gb_s": gb_s,
        "percent_of_copy": 100 * gb_s / bench.ceilings["copy_gb_s"],
    }


def errors(one: Contest, x: Inputs) -> tuple[float, float]:
    """Of ours and of plain PyTorch in the same precision, both against fp64."""
    plain = reference(one.case.op)
    wide = {k: v.double() if _is_real(v) else v for k, v in x.items()}
    truth = one.case.call(plain, wide)
    return relative(one.ours(one.prepare(x)), truth), relative(one.case.call(plain, x), truth)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def show(result: Json) -> None:
    print(f"{'operation':58}{'us':>9}{'beside':>18}{'% copy':>8}   error")
    for r in result["rows"]:
        beside = f"{r['beside']} {r['beside_us']:.1f}"
        print(f"{r['what']:58}{r['us']:9.1f}{beside:>18}{r['percent_of_copy']:8.0f}   ", end="")
        print(f"{r['error']:.1e} (plain {r['plain_error']:.1e}){'' if r['ok'] else '  WRONG'}")
    for what, name in result["implementations"].items():
        print(f"{what}: {name or 'triton'} from the next start on")
    if result["left_out"]:
        print(f"left out, no time: {', '.join(r['what'] for r in result['left_out'])}")


if __name__ == "__main__":
    main(sys.argv[1])
