"""`python -m tests.fuzz.guided TARGET [LIBFUZZER OPTIONS]`: the tests of test_fuzz.py, guided by
what of the parsers an input reaches (atheris) instead of by chance. `make fuzz-guided` runs each.

A failure prints the input and its file; TARGET and that file tries it again.
"""

from __future__ import annotations

import os
import sys

import atheris

TARGETS = ("realtime", "media_stream", "sdp", "rtp", "opus")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"name one of {', '.join(TARGETS)}")
    os.environ["FUZZ_EXAMPLES"] = "1"  # the fuzzer has the loop
    with atheris.instrument_imports(include=["gateway", "aiortc"]):
        from tests.fuzz import test_fuzz
    test = getattr(test_fuzz, f"test_{sys.argv[1]}")
    atheris.Setup([sys.argv[0], *sys.argv[2:]], test.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
