"""`say` and `transcribe`: one stage each, without a call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from voice_agent.audio import read_wav, write_wav
from voice_agent.cli.console import progress
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.measure import load_voice
from voice_agent.models import ModelStore
from voice_agent.selection import ensure
from voice_agent.tts.base import Voice
from voice_agent.types import IN_FRAME, OUT_RATE, Pcm16

MAX_SAY_CHARS = 20_000


def run_say(config: Config, text: str, out: Path, *, style: str, speed: float) -> None:
    """Write `text` as speech. Raises UsageError VA474 when there is nothing to say."""
    if len(text) > MAX_SAY_CHARS:
        raise UsageError(f"at most {MAX_SAY_CHARS} characters at once", code="VA474")
    store = ModelStore(sources=config.models.sources)
    name = "piper-joe" if config.models.voice == "auto" else config.models.voice
    with progress() as stage:
        needed = [name, *(["kokoro-voices"] if name == "kokoro-int8" else [])]
        ensure(store, needed, fetch=config.models.fetch, stage=stage)
        stage(f"speaking with {name}", None)
        voice = load_voice(store, name, 2, style)
        pcm = speak(voice, text, speed)
    write_wav(out, pcm, OUT_RATE)
    print(f"{out}: {len(pcm) / OUT_RATE:.2f} s")


def speak(voice: Voice, text: str, speed: float) -> Pcm16:
    """Every clause of `text`, with its pauses, int16 [n] at 24 kHz."""
    from voice_agent.clauses import ClauseSplitter

    splitter = ClauseSplitter()
    pieces: list[Pcm16] = []
    for clause in [*splitter.push(text), *splitter.finish()]:
        if clause.words:
            spoken = voice.synthesize(clause, speed=speed, cancelled=lambda: False)
            pieces += [p.pcm for p in spoken]
            pieces.append(np.zeros(clause.pause_ms * OUT_RATE // 1000, np.int16))
    if not pieces:
        raise UsageError("there is nothing to say in that text", code="VA474")
    return np.concatenate(pieces)


def run_transcribe(config: Config, wav: Path) -> None:
    """Print the words of a file; nothing when there are none."""
    sound = read_wav(wav)
    store = ModelStore(sources=config.models.sources)
    name = "whisper-tiny.en" if config.models.stt == "auto" else config.models.stt
    with progress() as stage:
        ensure(store, [name], fetch=config.models.fetch, stage=stage)
        stage(f"listening with {name}", None)
        text = asyncio.run(words_of(store.path(name), sound.pcm))
    print(text)


async def words_of(model: Path, pcm: Pcm16) -> str:
    """Everything said in `pcm` (int16 [n], 16 kHz), as a caller's utterance is heard."""
    from voice_agent.stt.streaming import Utterance
    from voice_agent.stt.whisper import WhisperRecognizer

    recognizer = WhisperRecognizer(model, threads=2)
    try:
        utterance = Utterance(recognizer)
        for at in range(0, len(pcm), IN_FRAME):
            utterance.append(pcm[at : at + IN_FRAME])
            if at and at % (250 * IN_FRAME) == 0:
                await utterance.transcribe(final=False, deadline_s=0.0)
        return (await utterance.transcribe(final=True, deadline_s=0.0)).text
    finally:
        recognizer.close()
