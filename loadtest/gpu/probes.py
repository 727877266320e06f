"""What the device is, and its two ceilings measured now: a copy and a matrix product."""

from __future__ import annotations

import platform
from importlib.util import find_spec

import torch

from loadtest.gpu.bench import Bench, Json
from loadtest.gpu.timing import median_ms
from loadtest.report import hardware

OPTIONAL = ("triton", "transformers", "ctranslate2", "onnxruntime", "misaki", "kokoro")


def probe(bench: Bench) -> Json:
    """Sets `bench.ceilings`. Bytes of a copy count read and written."""
    device = bench.device
    half = torch.bfloat16
    n_bytes, side = bench.pick(2 << 30, 1 << 22), bench.pick(8192, 128)
    copy_ms = copied_ms(n_bytes, device)
    a, b = (torch.randn(side, side, dtype=half, device=device) for _ in range(2))
    c = torch.empty_like(a)
    product_ms = median_ms([lambda: torch.matmul(a, b, out=c)], device)
    bench.ceilings = {
        "copy_gb_s": 2 * n_bytes / copy_ms / 1e6,
        "bf16_tflop_s": 2 * side**3 / product_ms / 1e9,
    }
    return {"device": facts(device), **bench.ceilings}


def copied_ms(n_bytes: int, device: torch.device) -> float:
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return median_ms([lambda: target.copy_(source)], device)


def facts(device: torch.device) -> Json:
    """Names, sizes and versions."""
    found: Json = {
        "host": hardware(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "packages": {name: find_spec(name) is not None for name in OPTIONAL},
    }
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        found |= {
            "name": p.name,
            "capability": f"{p.major}.{p.minor}",
            "memory_mib": p.total_memory >> 20,
            "multiprocessors": p.multi_processor_count,
            "l2_mib": p.L2_cache_size >> 20,
            "cuda": torch.version.cuda,
        }
    return found


def show(result: Json) -> None:
    device = result["device"]
    print(device.get("name", "CPU"), f"torch {device['torch']}", device["host"], sep=", ")
    print(f"copy {result['copy_gb_s']:.0f} GB/s, bf16 product {result['bf16_tflop_s']:.1f} TFLOP/s")
