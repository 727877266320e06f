"""The gate: `make bench-smoke`, or `python -m loadtest.bench smoke [--only NAME ...] [--accept]`.

Every figure is compared with the committed baseline; one that is worse by more than its slack, or
that the baseline and the run do not both have, ends with status 1. --accept writes what was found
as the new baseline: the difference belongs into the review.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.report import hardware, write_json

from .figures import BASELINE, Figure, Verdict, judge, read, write

SECTIONS = ("virtual", "model", "conversation")


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench smoke",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS, help="sections")
    p.add_argument("--baseline", type=Path, default=BASELINE, help="compare with this file")
    p.add_argument("--accept", action="store_true", help="write the baseline anew")
    p.add_argument("--json", type=Path, help="write every figure here")
    a = p.parse_args(argv)
    if a.accept and set(a.only) != set(SECTIONS):
        p.error("--accept needs every section: leave --only out")
    baseline = {} if a.accept else _baseline(a.baseline, a.only)
    if baseline is None:
        return 2
    print(hardware())
    found = _measure(a.only)
    if a.json is not None:
        write_json(a.json, {f.name: f.value for f in found})
    if a.accept:
        write(a.baseline, found)
        print(f"{len(found)} figures are the baseline now: {a.baseline}")
        return 0
    return _tell(found, baseline)


def _baseline(path: Path, sections: Sequence[str]) -> dict[str, float] | None:
    """That of the sections that run; None: said on standard error."""
    try:
        return {n: v for n, v in read(path).items() if n.split(".")[0] in sections}
    except (OSError, ValueError) as error:
        print(f"no baseline: {error}; --accept writes one", file=sys.stderr)
        return None


def _measure(sections: Sequence[str]) -> list[Figure]:
    found: list[Figure] = []
    for name in sections:
        began = time.monotonic()
        found += importlib.import_module(f"loadtest.bench.smoke.{name}").figures()
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return found


def _tell(found: Sequence[Figure], baseline: dict[str, float]) -> int:
    print(f"{'':52}{'now':>12}{'baseline':>12}")
    judged = judge(found, baseline)
    for line in judged:
        print(line)
    bad = [line.name for line in judged if line.fails]
    if any(line.verdict is Verdict.BETTER for line in judged):
        print("some figures are better: `make bench-smoke ARGS=--accept` keeps it that way")
    if bad:
        print(
            f"{len(bad)} of {len(judged)} figures have become worse or do not fit the baseline: "
            f"{', '.join(bad)}\nif that is meant, `make bench-smoke ARGS=--accept` and say why",
            file=sys.stderr,
        )
        return 1
    print(f"nothing has become worse: {len(judged)} figures")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
