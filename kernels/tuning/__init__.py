"""Tile sizes, warps and stages of the Triton kernels: a fixed table, nothing is tuned live.

A kernel names its operation and a class of shapes and gives its own defaults. `<arch>.json` beside
this file (`sm_90.json`), where there is one, replaces some of them:

    {"linear_group": {"decode": {"BLOCK_N": 32, "num_warps": 4, "num_stages": 4}}}

Beside the operations, "implementations" says which other implementation than Triton's was measured
to be faster on this GPU, for an operation or for one of its classes of shapes; `kernels.resolve`
takes that, and Triton's where nothing is said:

    {"implementations": {"paged_attention_decode": "cuda", "linear_group w4x16": "cuda"}}

The file is read once. `python -m loadtest.gpu` measures candidates and writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch

Launch: TypeAlias = Mapping[str, int]
"""Constexprs of a kernel by name, num_warps and num_stages: keywords of its launch."""
Table: TypeAlias = Mapping[str, Mapping[str, Launch]]
"""Operation -> class of shapes -> Launch."""

IMPLEMENTATIONS = "implementations"

_HERE = Path(__file__).parent
_overrides: list[Table] = []


def arch(device: torch.device) -> str:
    """ "sm_90" for an H100 or H200; the type of a device that is no NVIDIA GPU."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def launch(op: str, shape: str, device: torch.device, default: Launch) -> Launch:
    """`default` with what the device's table, then `using`, say of this operation and shape class.

    Raises ValueError if one of them names what `default` does not have.
    """
    chosen = _chosen(op, shape, device, tuple(default.items()))
    for table in _overrides:
        chosen = _merged(chosen, table, op, shape, "tuning.using")
    return chosen


@contextmanager
def using(table: Table) -> Iterator[None]:
    """Launches inside take these values instead: for measuring and for tests, in one thread."""
    _overrides.append(table)
    try:
        yield
    finally:
        _overrides.pop()


def implementation(op: str, device: torch.device, shape: str = "") -> str | None:
    """The implementation that the device's file names, if any: for an operation, or for exactly
    this class of its shapes."""
    path = _HERE / f"{arch(device)}.json"
    return _implementations(path).get(place(op, shape))


def place(op: str, shape: str = "") -> str:
    """What an operation, or a class of its shapes, is called under IMPLEMENTATIONS."""
    return f"{op} {shape}" if shape else op


def read_implementations(path: Path) -> dict[str, str]:
    """Operation -> implementation. Raises ValueError, naming the file, for anything but names."""
    try:
        named = json.loads(path.read_text("utf-8")).get(IMPLEMENTATIONS, {})
        fine = all(type(name) is str for name in named.values())
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not fine:
        raise ValueError(f"{path}: {IMPLEMENTATIONS} must be names")
    return dict(named)


def read(path: Path) -> Table:
    """A table in a file. Raises ValueError, naming the file, unless all its values are integers."""
    try:
        table = json.loads(path.read_text("utf-8"))
        table.pop(IMPLEMENTATIONS, None)
        fine = all(
            type(value) is int
            for shapes in table.values()
            for values in shapes.values()
            for value in values.values()
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not fine:
        raise ValueError(f"{path}: every value must be an integer")
    return {op: dict(shapes) for op, shapes in table.items()}


@cache
def _chosen(
    op: str, shape: str, device: torch.device, default: tuple[tuple[str, int], ...]
) -> Launch:
    path = _HERE / f"{arch(device)}.json"
    return _merged(dict(default), _read(path), op, shape, path.name)


@cache
def _implementations(path: Path) -> dict[str, str]:
    return read_implementations(path) if path.exists() else {}


@cache
def _read(path: Path) -> Table:
    return read(path) if path.exists() else {}


def _merged(base: Launch, table: Table, op: str, shape: str, source: str) -> Launch:
    values = table.get(op, {}).get(shape)
    if not values:
        return base
    if unknown := sorted(set(values) - set(base)):
        raise ValueError(f"{source}: {op} {shape} has no {', '.join(unknown)}")
    return {**base, **values}
