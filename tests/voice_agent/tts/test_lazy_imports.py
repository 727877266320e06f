"""Loading the speaking side must not load the heavy packages of a voice that is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

CODE = """
import sys
import voice_agent.clauses, voice_agent.playout, voice_agent.tts.service
import voice_agent.tts.piper, voice_agent.tts.kokoro_onnx
print(sorted({"kokoro", "misaki", "spacy", "torch", "phonemizer"} & set(sys.modules)))
"""


def test_heavy_packages_come_with_the_voice_that_needs_them() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
