"""Benchmarks: `python -m loadtest.bench [NAME] [options]`.

NAME: stt, tts, vad, kernels, engine, peers, transport, capacity, gil or smoke. Without a name the
stages run, each in a process of its own, the engine without peers.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

CLIPS = Path(__file__).parent.parent.parent / "tests" / "data" / "clips"
ONE = {
    "stt": "stt",
    "tts": "tts",
    "kernels": "kernels",
    "engine": "llm.__main__",
    "peers": "peers.__main__",
    "transport": "transport.bench",
    "vad": "vad",
    "capacity": "capacity.bench",
    "gil": "gil.bench",
    "smoke": "smoke.__main__",
}


def main() -> int:
    if sys.argv[1:2] and sys.argv[1] in ONE:
        name = sys.argv.pop(1)
        module = importlib.import_module(f"loadtest.bench.{ONE[name]}")
        return int(module.main() or 0)
    return _stages()


def _stages() -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the JSON files")
    p.add_argument("--llm", default="smollm2-135m", help="language model of the engine benchmark")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, args in {
        "stt": ["--clips", str(CLIPS)],
        "tts": ["--voice", "piper-joe"],
        "engine": ["--model", a.llm, "--no-peers", "--only", "bound", "first", "fixed"],
    }.items():
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "loadtest.bench", name, *args]
        failed += subprocess.run([*command, "--json", str(a.out / f"{name}.json")]).returncode != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
