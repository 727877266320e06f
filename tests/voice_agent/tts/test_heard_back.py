"""What the voice says is understood: Piper's sound transcribed again, word errors counted."""

from __future__ import annotations

import re

import jiwer
import numpy as np
import pytest
import soxr

from voice_agent.clauses import ClauseSplitter
from voice_agent.models import ModelStore
from voice_agent.stt.whisper import WhisperRecognizer
from voice_agent.tts.piper import PiperVoice
from voice_agent.types import IN_RATE, OUT_RATE, PcmF32

pytestmark = pytest.mark.model

TEXTS = [
    "Sure, I can help you with that today.",
    "The library opens in the morning and closes in the evening.",
    "Paris is the capital of France, and many people live there.",
    "Please tell me your name and your telephone number.",
    "I am sorry, I did not understand the last question.",
    "The weather will be sunny tomorrow with a little wind.",
    "You can take the train from the central station.",
    "Dr. Smith will see you on Monday morning.",
    "Would you like to book a table for four people?",
    "The meeting has been moved to the second floor.",
    "My favorite animal is the elephant, because it never forgets.",
    "Thank you for calling, and have a wonderful day.",
]
SILENCE = np.zeros(OUT_RATE // 5, np.int16)


def plain(text: str) -> str:
    text = text.lower().replace("dr.", "doctor").replace("favourite", "favorite")
    text = re.sub(r"\b4\b", "four", re.sub(r"\b2nd\b", "second", text))
    return re.sub(r"[^a-z' ]+", " ", text)


def spoken(voice: PiperVoice, text: str) -> PcmF32:
    splitter = ClauseSplitter()
    pieces = [
        piece.pcm
        for clause in [*splitter.push(text), *splitter.finish()]
        for piece in voice.synthesize(clause, speed=1.0, cancelled=lambda: False)
    ]
    pcm = np.concatenate([SILENCE, *pieces, SILENCE]).astype(np.float32) / 32768
    return np.asarray(soxr.resample(pcm, OUT_RATE, IN_RATE), np.float32)


async def test_word_errors_of_the_light_voice() -> None:
    store = ModelStore()
    voice = PiperVoice(store.path("piper-joe"))
    recognizer = WhisperRecognizer(store.path("whisper-tiny.en"))
    try:
        heard = [
            (await recognizer.transcribe(spoken(voice, text), final=True)).text for text in TEXTS
        ]
    finally:
        recognizer.close()
    errors = jiwer.wer([plain(t) for t in TEXTS], [plain(h) for h in heard])
    assert errors <= 0.10, list(zip(TEXTS, heard, strict=True))
