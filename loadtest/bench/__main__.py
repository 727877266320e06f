"""All stage benchmarks, each in a process of its own: `python -m loadtest.bench`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

CLIPS = Path(__file__).parent.parent.parent / "tests" / "data" / "clips"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, default=Path("out/bench"), help="folder of the JSON files")
    p.add_argument("--llm", default="smollm2-135m", help="language model of the engine benchmark")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name, args in {
        "stt": ["--clips", str(CLIPS)],
        "tts": ["--voice", "piper-joe"],
        "engine": ["--model", a.llm],
    }.items():
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"loadtest.bench.{name}", *args]
        failed += subprocess.run([*command, "--json", str(a.out / f"{name}.json")]).returncode != 0
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
