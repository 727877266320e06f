"""Turn-taking, counted: `python -m loadtest.conversation [--clips DIR] [--quick] --json F`.

Short calls built from recorded speech go through this server's own call and through two baselines,
in virtual time with stage times from a table, or this machine's; docs/TURNS.md says what is
counted. --clips: a folder of 16-bit WAV recordings, each one caller's turn, with a transcripts.tsv
(columns `file` and `transcript`; recordings whose words are only "mm-hm" or the like are
backchannels); without it the repository's clips and the Asterisk prompts, where they are. Figures
are of the half of the files that nothing was tuned on (by the hash of a file's name; --half).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtest.bench.conversation.bench import SYSTEMS, run
from loadtest.bench.conversation.table import table
from loadtest.report import write_json


def main() -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.conversation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--clips", type=Path, help="folder of recordings")
    p.add_argument("--json", type=Path, help="write every figure here")
    p.add_argument("--quick", action="store_true", help="a twentieth of the events")
    p.add_argument("--half", choices=("0", "1", "all"), default="1")
    p.add_argument("--jobs", type=int, default=2, help="processes")
    p.add_argument("--measure-stages", action="store_true", help="this machine's stage times")
    p.add_argument("--only", nargs="*", default=[], help="kinds of events")
    p.add_argument("--most", type=int, help="at most so many events of a kind")
    p.add_argument("--systems", nargs="*", choices=SYSTEMS, default=SYSTEMS, help="those to run")
    p.add_argument("--kept", type=Path, help="keep the models' answers here, for the next run")
    p.add_argument("--events", type=Path, help="write every scored event here, as JSON lines")
    a = p.parse_args()
    if a.clips is not None and not list(a.clips.glob("*.wav")):
        print(f"no WAV files in {a.clips}", file=sys.stderr)
        return 2
    half = None if a.half == "all" else int(a.half)
    body = run(
        a.clips, half, quick=a.quick, jobs=a.jobs, only=a.only,
        measure_stages=a.measure_stages, events=a.events, names=a.systems, kept=a.kept, most=a.most,
    )  # fmt: skip
    write_json(a.json, body)
    for line in table(body["systems"]):
        print(line)
    print()
    for key in ("scenes", "virtual_minutes", "seconds", "recogniser_now_to_table"):
        print(f"{key.replace('_', ' ')}: {body[key]}")
    print(f"faults: {len(body['faults'])}", *body["faults"][:5], sep="\n  ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
