"""Simulated callers against a running server: `python -m loadtest --calls 2 --url ws://...`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from loadtest.callers.realtime import CallResult, RealtimeCaller, load_clip
from loadtest.report import hardware, spread, write_json

CLIPS = Path(__file__).parent.parent / "tests" / "data" / "clips"
NAMES = ("ps_goforward", "ps_something", "ps_cards_005", "ps_austen_0880", "ps_austen_0930")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--url", default="ws://127.0.0.1:8080/v1/realtime?model=default")
    p.add_argument("--key", default="local")
    p.add_argument("--calls", type=int, default=1)
    p.add_argument("--turns", type=int, default=6)
    p.add_argument("--timeout", type=float, default=15.0, help="seconds to wait for an answer")
    p.add_argument("--stagger", type=float, default=1.7, help="seconds between arrivals")
    p.add_argument("--clips", type=Path, default=CLIPS, help="folder of mono 16-bit WAV files")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    results = asyncio.run(_run(a))
    body = summarise(results)
    write_json(a.json, body)
    show(body)


async def _run(a: argparse.Namespace) -> list[CallResult]:
    paths = [a.clips / f"{n}.wav" for n in NAMES if (a.clips / f"{n}.wav").exists()]
    clips = [load_clip(path) for path in paths or sorted(a.clips.glob("*.wav"))]
    if not clips:
        raise SystemExit(f"no WAV files in {a.clips}")

    async def one(i: int) -> CallResult:
        await asyncio.sleep(i * a.stagger)
        order = clips[i % len(clips) :] + clips[: i % len(clips)]
        return await RealtimeCaller(a.url, a.key, seed=i).run(order, a.turns, a.timeout)

    return list(await asyncio.gather(*(one(i) for i in range(a.calls))))


def summarise(results: list[CallResult]) -> dict[str, Any]:
    turns = [t for r in results for t in r.turns]
    minutes = sum(r.seconds for r in results) / 60
    gaps = [g for t in turns for g in t.gaps_s if g > 0.04]
    return {
        "hardware": hardware(),
        "calls": len(results),
        "turns": len(turns),
        "unanswered": sum(t.v2v_s is None for t in turns),
        "split": sum(t.commits > 1 for t in turns),
        "refused": sum(bool(r.refused) for r in results),
        "errors": [e for r in results for e in r.errors],
        "voice_to_voice_ms": spread([t.v2v_s * 1000 for t in turns if t.v2v_s is not None]),
        "glitches_per_min": len(gaps) / minutes if minutes else None,
        "worst_gap_ms": max(gaps, default=0.0) * 1000,
    }


def show(body: dict[str, Any]) -> None:
    for name, value in body.items():
        if isinstance(value, dict):
            value = "  ".join(
                f"{k} {v:.0f}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()
            )
        elif isinstance(value, float):
            value = f"{value:.2f}"
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
