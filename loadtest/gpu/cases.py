"""Every operation of `kernels/` on the shapes of a voice agent's engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.kv_copy import spec as kv_copy_spec
from kernels.kv_write import spec as kv_write_spec
from kernels.linear_group.spec import quantise
from kernels.logits_mask import spec as logits_mask_spec
from kernels.paged_attention_decode import spec as decode_spec
from kernels.paged_attention_prefill import spec as prefill_spec
from kernels.rms_norm import spec as rms_norm_spec
from kernels.rope import spec as rope_spec
from kernels.sample import spec as sample_spec
from kernels.silu_mul import spec as silu_mul_spec

BLOCK = 16
EPS = 1e-5
Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Maker:
    """Seeded inputs of one call."""

    dtype: torch.dtype
    device: torch.device
    generator: torch.Generator

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        made = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        return made.normal_(generator=self.generator)

    def order(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.generator, device=self.device)

    def ints(self, *values: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """make: fresh inputs. call: (the operation, inputs) -> what it made or changed.

    n_bytes: that one call must move, for numbers of so many bytes. n_ops: of a product, else 0.
    exact: the result must be the reference's to the bit.
    """

    op: str
    label: str
    make: Callable[[Maker], Inputs]
    call: Callable[[Any, Inputs], Tensor]
    n_bytes: Callable[[int], int]
    n_ops: int = 0
    exact: bool = False

    def inputs(self, dtype: torch.dtype, device: torch.device, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        return self.make(Maker(dtype, device, generator))


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a model that its operations see."""

    name: str
    heads: int
    kv_heads: int
    d: int
    hidden: int
    inner: int
    vocab: int


LLAMA = Shape("8B", 32, 8, 128, 4096, 14336, 128_256)
QWEN = Shape("0.5B", 14, 2, 64, 896, 4864, 151_936)
SMALL = Shape("small", 4, 2, 64, 64, 96, 300)


def cases(dry: bool) -> list[Case]:
    """What is timed: bandwidth needs large shapes."""
    if dry:
        return numeric_cases(dry)
    return [
        *(decode(LLAMA, b, seen) for b, seen in ((1, 1024), (8, 1024), (32, 1024), (64, 1024))),
        decode(LLAMA, 32, 4096),
        decode(QWEN, 32, 1024),
        prefill(LLAMA, "512 new", ((512, 512),)),
        prefill(LLAMA, "4 x 128 after 1k", ((128, 1152),) * 4),
        prefill(LLAMA, "128 beside 31 decoding", ((128, 1152), *((1, 1024),) * 31)),
        *(linear(bits, n, 4096, 28672) for bits in (4, 8) for n in (1, 8, 32, 512)),
        *(linear(bits, 1, 14336, 4096) for bits in (4, 8)),
        *(op(LLAMA, n) for op in (rms_norm, rms_norm_add, rope_at, silu_mul) for n in (32, 512)),
        *(decode(LLAMA, b, seen, int8=True) for b, seen in ((1, 1024), (32, 1024), (32, 4096))),
        decode(QWEN, 32, 1024, int8=True),
        prefill(LLAMA, "128 beside 31 decoding", ((128, 1152), *((1, 1024),) * 31), int8=True),
        kv_write(LLAMA, 512),
        kv_write(LLAMA, 512, int8=True),
        kv_copy(LLAMA, 4, 32),
        kv_copy(LLAMA, 4, 32, int8=True),
        logits_mask(LLAMA, 32),
        *(sample(LLAMA, 32, drawn) for drawn in (False, True)),
    ]


def numeric_cases(dry: bool) -> list[Case]:
    """What is compared: odd shapes, empty rows, windows."""
    shapes, b = ((SMALL,), 2) if dry else ((LLAMA, QWEN), 5)
    return list(_numeric(shapes, b))


def _numeric(shapes: tuple[Shape, ...], b: int) -> Iterator[Case]:
    for s in shapes:
        yield decode(s, b, 70, ragged=True)
        yield decode(s, b, 70, window=33)
        yield prefill(s, "mixed", ((1, 40), (19, 19), (7, 50)))
        yield from (op(s, b + 2) for op in (rms_norm, rms_norm_add, rope_at, silu_mul))
        yield decode(s, b, 70, ragged=True, int8=True)
        yield prefill(s, "mixed", ((1, 40), (19, 19), (7, 50)), int8=True)
        for int8 in (False, True):
            yield kv_write(s, b + 2, int8=int8)
            yield kv_copy(s, 2, 2, int8=int8)
        yield logits_mask(s, b)
        yield from (sample(s, b, drawn) for drawn in (False, True))
        yield from (linear(bits, n, s.hidden, s.inner) for bits in (4, 5, 8) for n in (b, 40))


# attention


def _cache(m: Maker, s: Shape, rows: int, seen: int, spare: int = 1, int8: bool = False) -> Inputs:
    """One layer's cache, and tables that are scattered over it, `spare` blocks from its start."""
    width = -(-seen // BLOCK)
    tables = (spare + m.order(rows * width)).view(rows, width).int()
    blocks = (2, spare + rows * width, s.kv_heads, BLOCK)
    return {"tables": tables, **_numbers(m, blocks, s.d, int8)}


def _numbers(m: Maker, rows: tuple[int, ...], d: int, int8: bool) -> Inputs:
    """What a cache holds: numbers, or codes and their scales."""
    if not int8:
        return {"cache": m.normal(*rows, d)}
    codes = torch.empty(*rows, d, dtype=torch.int8, device=m.device)
    codes.random_(-127, 128, generator=m.generator)
    scales = m.normal(*rows, dtype=torch.float32).abs() / 127
    return {"cache": codes, "scales": scales}


def far() -> Case:
    """Blocks beyond 2^31 numbers from the cache's start."""
    return decode(LLAMA, 2, 40, spare=2**31 // (LLAMA.kv_heads * BLOCK * LLAMA.d))


def decode(
    s: Shape,
    b: int,
    seen: int,
    *,
    window: int = 0,
    ragged: bool = False,
    spare: int = 1,
    int8: bool = False,
) -> Case:
    lengths = [seen * i // (b - 1) for i in range(b)] if ragged else [seen] * b

    def make(m: Maker) -> Inputs:
        held = _cache(m, s, b, seen, spare, int8)
        return {"q": m.normal(b, s.heads, s.d), **held, "seen": m.ints(*lengths)}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(**x, scale=1 / math.sqrt(s.d), window=window)
        return out

    def n_bytes(item: int) -> int:
        reads = [min(n, window or n) for n in lengths]
        bytes_of = decode_spec.bytes_moved
        return sum(bytes_of(n, s.heads, s.kv_heads, s.d, item, int8=int8) for n in reads)

    kind = " ragged" if ragged else f" window {window}" if window else " far" if spare > 1 else ""
    what = f"{b} x {seen}{kind}{' int8' if int8 else ''}"
    return Case("paged_attention_decode", f"{s.name} {what}", make, call, n_bytes)


def prefill(s: Shape, what: str, rows: tuple[tuple[int, int], ...], *, int8: bool = False) -> Case:
    """rows: (new tokens, positions seen) of each request."""
    longest = max(seen for _, seen in rows)

    def make(m: Maker) -> Inputs:
        starts = [0]
        for n, _ in rows:
            starts.append(starts[-1] + n)
        return {
            "q": m.normal(starts[-1], s.heads, s.d),
            **_cache(m, s, len(rows), longest, int8=int8),
            "starts": m.ints(*starts),
            "seen": m.ints(*(seen for _, seen in rows)),
        }

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(**x, scale=1 / math.sqrt(s.d), max_q=max(n for n, _ in rows))
        return out

    def n_bytes(item: int) -> int:
        bytes_of = prefill_spec.bytes_moved
        return sum(bytes_of(n, seen, s.heads, s.kv_heads, s.d, item, int8=int8) for n, seen in rows)

    n_ops = sum(prefill_spec.operations(n, seen, s.heads, s.d) for n, seen in rows)
    label = f"{s.name} {what}{' int8' if int8 else ''}"
    return Case("paged_attention_prefill", label, make, call, n_bytes, n_ops)


# products


def linear(bits: int, n: int, n_in: int, n_out: int) -> Case:
    """Weights in groups of 32, which a decode step reads whole."""
    n_in -= n_in % 32

    def make(m: Maker) -> Inputs:
        from kernels.linear_group.gpu import pack

        weight = m.normal(n_out, n_in, dtype=torch.float32) / math.sqrt(n_in)
        packed = pack(quantise(weight, bits), m.device)
        return {"x": m.normal(n, n_in), "w": packed}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(x["x"], x["w"])
        return out

    def n_bytes(item: int) -> int:
        return n_out * n_in * bits // 8 + n_out * n_in // 32 * 2 + item * n * (n_in + n_out)

    label = f"w{bits} {n} x {n_in} -> {n_out}"
    return Case("linear_group", label, make, call, n_bytes, 2 * n * n_in * n_out)


# between the products


def rms_norm(s: Shape, n: int) -> Case:
    def make(m: Maker) -> Inputs:
        return {"x": m.normal(n, s.hidden), "weight": m.normal(s.hidden)}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(**x, eps=EPS)
        return out

    n_bytes = partial(rms_norm_spec.bytes_moved, n, s.hidden)
    return Case("rms_norm", f"{n} x {s.hidden}", make, call, n_bytes)


def rms_norm_add(s: Shape, n: int) -> Case:
    def make(m: Maker) -> Inputs:
        both = {name: m.normal(n, s.hidden) for name in ("x", "residual")}
        return {**both, "weight": m.normal(s.hidden)}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(**x, eps=EPS)
        return out

    n_bytes = partial(rms_norm_spec.bytes_moved, n, s.hidden, added=True)
    return Case("rms_norm_add", f"{n} x {s.hidden}", make, call, n_bytes)


def rope_at(s: Shape, n: int) -> Case:
    def make(m: Maker) -> Inputs:
        angle = m.normal(4096, s.d // 2, dtype=torch.float32)
        fused = m.normal(n, s.heads + 2 * s.kv_heads, s.d)
        table = torch.stack((angle.cos(), angle.sin()), -1).flatten(1)
        return {
            "q": fused[:, : s.heads],
            "k": fused[:, s.heads : s.heads + s.kv_heads],
            "cos_sin": table,
            "positions": m.order(4096)[:n],
        }

    def call(op: Any, x: Inputs) -> Tensor:
        op(**x)
        return torch.cat((x["q"], x["k"]), 1)

    n_bytes = partial(rope_spec.bytes_moved, n, s.heads + s.kv_heads, s.d)
    return Case("rope_at", f"{n} x {s.heads + s.kv_heads} x {s.d}", make, call, n_bytes)


def silu_mul(s: Shape, n: int) -> Case:
    def make(m: Maker) -> Inputs:
        return {"gate_up": m.normal(n, 2 * s.inner)}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(x["gate_up"])
        return out

    n_bytes = partial(silu_mul_spec.bytes_moved, n, s.inner)
    return Case("silu_mul", f"{n} x {s.inner}", make, call, n_bytes)


# the cache


def kv_write(s: Shape, n: int, *, int8: bool = False) -> Case:
    def make(m: Maker) -> Inputs:
        n_blocks = -(-n // BLOCK) + 3
        fused = m.normal(n, s.heads + 2 * s.kv_heads, s.d)
        slots = m.order(n_blocks * BLOCK)[:n]
        slots[0] = -1
        return {
            "k": fused[:, s.heads : s.heads + s.kv_heads],
            "v": fused[:, s.heads + s.kv_heads :],
            **_numbers(m, (2, n_blocks, s.kv_heads, BLOCK), s.d, int8),
            "slots": slots,
        }

    n_bytes = partial(kv_write_spec.bytes_moved, n, s.kv_heads, s.d, int8=int8)
    label = f"{s.name} {n}{' int8' if int8 else ''}"
    return Case("kv_write", label, make, _kept, n_bytes, exact=True)


def _kept(op: Any, x: Inputs) -> Tensor:
    """What is in the cache afterwards, scales and all."""
    op(**x)
    cache: Tensor = x["cache"]
    if "scales" not in x:
        return cache
    return torch.cat((cache.float(), x["scales"].unsqueeze(-1)), -1)


def kv_copy(s: Shape, n: int, layers: int, *, int8: bool = False) -> Case:
    def make(m: Maker) -> Inputs:
        long = {"dtype": torch.int64}
        return {
            **_numbers(m, (layers, 2, 2 * n, s.kv_heads, BLOCK), s.d, int8),
            "src": m.ints(*range(n), **long),
            "dst": m.ints(*range(n, 2 * n), **long),
            "n_rows": m.ints(*(BLOCK - 1 - i % BLOCK for i in range(n)), **long),
        }

    def n_bytes(item: int) -> int:
        rows = sum(BLOCK - 1 - i % BLOCK for i in range(n))
        return kv_copy_spec.bytes_moved(rows, layers, s.kv_heads, s.d, item, int8=int8)

    label = f"{s.name} {n} blocks{' int8' if int8 else ''}"
    return Case("kv_copy", label, make, _kept, n_bytes, exact=True)


# the choice


def logits_mask(s: Shape, b: int) -> Case:
    def make(m: Maker) -> Inputs:
        words = -(-s.vocab // 32)
        high = 2**31 - 1
        bits = torch.randint(
            -high, high, (b, words), generator=m.generator, device=m.device, dtype=torch.int32
        )
        rows = m.ints(*range(b - 1), -1)
        return {"logits": m.normal(b, s.vocab), "bits": bits, "rows": rows}

    def call(op: Any, x: Inputs) -> Tensor:
        op(**x)
        out: Tensor = x["logits"]
        return out

    def n_bytes(item: int) -> int:
        return logits_mask_spec.bytes_moved(b - 1, s.vocab, s.vocab // 2, item)

    return Case("logits_mask", f"{b} x {s.vocab}", make, call, n_bytes, exact=True)


def sample(s: Shape, b: int, drawn: bool) -> Case:
    def make(m: Maker) -> Inputs:
        settings = None
        if drawn:
            settings = sample_spec.Settings(
                temperature=torch.full((b,), 0.8, device=m.device),
                top_k=torch.full((b,), 50, dtype=torch.int32, device=m.device),
                top_p=torch.full((b,), 0.9, device=m.device),
                min_p=torch.zeros(b, device=m.device),
                seeds=torch.arange(b, device=m.device),
                positions=torch.arange(b, device=m.device) + 7,
            )
        return {"logits": 4 * m.normal(b, s.vocab, dtype=torch.float32), "settings": settings}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(**x)
        return out

    def n_bytes(item: int) -> int:
        return (2 if drawn else 1) * sample_spec.bytes_moved(b, s.vocab)

    label = f"{b} x {s.vocab} {'drawn' if drawn else 'greedy'}"
    return Case("sample", label, make, call, n_bytes, exact=True)
