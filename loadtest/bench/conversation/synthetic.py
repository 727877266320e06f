"""Sounds that nobody recorded: "mm-hm" from synthetic callers, coughs, clatter. Marked as such."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voice_agent.audio import resample
from voice_agent.clauses import ClauseSplitter
from voice_agent.errors import VoiceAgentError
from voice_agent.measure import load_voice
from voice_agent.models import ModelStore
from voice_agent.tts.base import Styled, Voice
from voice_agent.types import IN_RATE, OUT_RATE, Pcm16, PcmF32

from .kept import Kept
from .sounds import LEVEL_DB, Labeller, Sound, half_of

log = logging.getLogger(__name__)

CALLERS = "kokoro-int8"
WORDS = ("Mm-hm.", "Yeah.", "Okay.", "Right.", "Uh-huh.", "I see.", "Sure.", "Oh, okay.")
STYLES = 6  # of the voice's speakers, those first by name
N_NOISES = 12


def backchannels(
    store: ModelStore, labeller: Labeller, half: int | None, at_most: int, kept: Kept
) -> list[Sound]:
    """Words by speakers of a voice that is not the agent's own, of one half of their names."""
    out: list[Sound] = []
    for style, voice in _speakers(store):
        for word in WORDS:
            name = f"{style}-{word.strip('.').lower().replace(' ', '-')}"
            if len(out) == at_most or (half is not None and half_of(name) != half):
                continue
            sound = labeller.sound(
                name, _kept_word(kept, style, voice, word), human=False, text=word
            )
            if sound is not None:
                out.append(sound)
    return out


def _kept_word(kept: Kept, style: str, voice: Voice, word: str) -> Pcm16:
    """int16 [n] at 16 kHz."""
    key = Kept.key(f"{CALLERS} {style}", word)
    known = kept.get_pcm(key)
    if known is None:
        known = resample(spoken(voice, word), OUT_RATE, IN_RATE)
        kept.put_pcm(key, known)
    return known


def _speakers(store: ModelStore) -> Iterator[tuple[str, Voice]]:
    try:
        voice = load_voice(store, CALLERS, threads=1)
    except VoiceAgentError as error:
        log.warning("no synthetic callers: %s", error)
        return
    assert isinstance(voice, Styled)
    names = [n for n in voice.style_names if n.startswith(("af_", "am_", "bf_", "bm_"))]
    step = max(1, len(names) // STYLES)
    for name in names[::step][:STYLES]:
        yield name, voice.styled(name)


def spoken(voice: Voice, text: str) -> Pcm16:
    """int16 [n] at 24 kHz."""
    splitter = ClauseSplitter()
    clauses = [*splitter.push(text), *splitter.finish()]
    pieces = [
        piece.pcm
        for clause in clauses
        if clause.words
        for piece in voice.synthesize(clause, speed=1.0, cancelled=lambda: False)
    ]
    return np.concatenate(pieces)


def coughs() -> list[Sound]:
    """One to three in a row."""
    return [_noise(f"cough-{i}", _cough(np.random.default_rng(i))) for i in range(N_NOISES)]


def clatter() -> list[Sound]:
    """Knocks, keys and things put down."""
    return [_noise(f"clatter-{i}", _knocks(np.random.default_rng(i))) for i in range(N_NOISES)]


def _cough(rng: np.random.Generator) -> PcmF32:
    """Turbulence and a hoarse voice through the throat's two lowest resonances."""
    out: list[PcmF32] = []
    for _ in range(int(rng.integers(1, 4))):
        burst = rng.standard_normal(int(rng.uniform(0.03, 0.07) * IN_RATE)) * 1.5
        n = int(rng.uniform(0.18, 0.4) * IN_RATE)
        t = np.arange(n) / IN_RATE
        phase = np.cumsum(rng.uniform(90, 200) * (1 - 0.4 * t / t[-1])) / IN_RATE
        pulses = np.diff(np.floor(phase), prepend=0.0) * 12
        hoarse = rng.uniform(0.3, 1.0) * pulses + rng.uniform(0.2, 0.6) * rng.standard_normal(n)
        source = np.concatenate([burst, hoarse * np.exp(-t / rng.uniform(0.08, 0.2))])
        body = sum(
            np.convolve(source, _resonance(hz)) for hz in rng.uniform((450, 1100), (800, 1700))
        )
        gap = np.zeros(int(rng.uniform(0.08, 0.25) * IN_RATE))
        out += [np.asarray(body, np.float32), gap.astype(np.float32)]
    return np.concatenate(out[:-1])


def _resonance(hz: float) -> NDArray[np.float64]:
    """Impulse response of a resonance 100 Hz wide."""
    t = np.arange(IN_RATE // 50) / IN_RATE
    ringing: NDArray[np.float64] = np.exp(-np.pi * 100 * t) * np.sin(2 * np.pi * hz * t)
    return ringing


def _knocks(rng: np.random.Generator) -> PcmF32:
    out = np.zeros(int(rng.uniform(0.4, 1.5) * IN_RATE), np.float32)
    for at in rng.uniform(0, len(out) - 0.1 * IN_RATE, int(rng.integers(2, 9))).astype(int):
        n = int(0.09 * IN_RATE)
        t = np.arange(n, dtype=np.float32) / IN_RATE
        ring = np.sin(2 * np.pi * rng.uniform(150, 2500) * t) + rng.standard_normal(n)
        out[at : at + n] += (ring * np.exp(-t / rng.uniform(0.005, 0.03))).astype(np.float32)
    return out


def _noise(name: str, pcm: PcmF32) -> Sound:
    loud = np.flatnonzero(np.abs(pcm) > 0.05 * np.abs(pcm).max())
    gain = 10 ** (LEVEL_DB / 20) / float(np.sqrt(np.square(pcm[loud]).mean()))
    scaled = np.clip(pcm * gain, -0.95, 0.95)
    voiced = ((int(loud[0]), int(loud[-1]) + 1),)
    return Sound(name, np.rint(scaled * 32767).astype(np.int16), False, half_of(name), "", voiced)
