"""What the two Kokoro voices share: styles by name, symbols, ids, and trimming by durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from voice_agent.errors import InternalError, UsageError
from voice_agent.languages.en.g2p import EnglishPhonemes
from voice_agent.types import OUT_RATE, PcmF32

from .base import AudioPiece, Clause, WordTime
from .sound import fade_in, fade_out, first_loud, silence, to_pcm16

STYLE_SHAPE = (510, 1, 256)
FRAME = 600  # samples per duration unit: 25 ms at 24 kHz
MAX_IDS = 510
ONSET_FRAMES = 3  # a phoneme is heard this much before the frames it was given
MAX_WORDS = 16
PART_WORDS = 10
KEEP_BEFORE = OUT_RATE // 100
KEEP_AFTER = OUT_RATE * 6 // 100
DEFAULT_STYLE = "af_heart"

# The model's alphabet: runs of consecutive ids.
_RUNS: tuple[tuple[int, str], ...] = (
    (1, ";:,.!?"),
    (9, '—…"()“” \u0303ʣʥʦʨᵝ\uab67AI'),
    (31, "O"),
    (33, "Q"),
    (35, "ST"),
    (39, "W"),
    (41, "Yᵊabcdef"),
    (50, "hijklmnopqrstuvwxyzɑɐɒæ"),
    (75, "βɔɕç"),
    (80, "ɖðʤə"),
    (85, "ɚɛɜ"),
    (90, "ɟ"),
    (92, "ɡ"),
    (99, "ɥ"),
    (101, "ɨɪʝ"),
    (110, "ɯɰŋɳɲɴø"),
    (118, "ɸθœ"),
    (123, "ɹ"),
    (125, "ɾɻ"),
    (128, "ʁɽʂʃʈʧ"),
    (135, "ʊʋ"),
    (138, "ʌɣɤ"),
    (142, "χʎ"),
    (147, "ʒʔ"),
    (156, "ˈˌː"),
    (162, "ʰ"),
    (164, "ʲ"),
    (169, "↓"),
    (171, "→↗↘"),
    (177, "ᵻ"),
)
SYMBOLS: dict[str, int] = {
    symbol: first + i for first, run in _RUNS for i, symbol in enumerate(run)
}


class Styles:
    """Kokoro's voices: NAME.bin files, float32 [510, 1, 256], one row per phoneme count.

    Only the English ones (a.., b..) are offered. Raises UsageError when there are none.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self.names = sorted(p.stem for p in self._folder.glob("[ab][fm]_*.bin"))
        if not self.names:
            raise UsageError(f"{folder} holds no Kokoro voices (NAME.bin)")

    def load(self, name: str) -> NDArray[np.float32]:
        """Raises UsageError listing the names, InternalError for a damaged file."""
        if name not in self.names:
            raise UsageError(f"no Kokoro voice {name!r}; there are: {', '.join(self.names)}")
        values = np.fromfile(self._folder / f"{name}.bin", np.float32)
        if values.size != np.prod(STYLE_SHAPE) or not np.isfinite(values).all():
            raise InternalError(f"Kokoro voice {name} is damaged; fetch kokoro-voices again")
        return values.reshape(STYLE_SHAPE)


@dataclass(frozen=True, slots=True)
class Phrase:
    """ids: with the two boundary zeros. places: per word its ids [a, b), punctuation left out."""

    ids: list[int]
    places: list[tuple[int, int]]

    @property
    def n_phonemes(self) -> int:
        return len(self.ids) - 2


def phrase(phonemes: Sequence[str]) -> Phrase:
    """Ids of words' phonemes. Symbols the model does not know are left out."""
    ids, places = [0], []
    for i, word in enumerate(phonemes):
        if i and word and len(ids) > 1:
            ids.append(SYMBOLS[" "])
        a = b = len(ids)
        for symbol in word:
            if symbol in SYMBOLS and len(ids) < MAX_IDS:
                ids.append(SYMBOLS[symbol])
                if symbol not in ";:,.!?—…":
                    b = len(ids)
        places.append((a, b))
    return Phrase([*ids, 0], places)


def english(style: str, made: dict[bool, EnglishPhonemes]) -> EnglishPhonemes:
    """The phonemes for a style's accent, made once per accent."""
    british = style.startswith("b")
    if british not in made:
        made[british] = EnglishPhonemes(british=british)
    return made[british]


def finish(
    clause: Clause,
    spoken: Phrase,
    sound: PcmF32,
    durations: Sequence[int],
    *,
    first_word: int,
    offset: int,
    last: bool,
) -> AudioPiece:
    """Trim a phrase to its words and place them. offset: samples of the clause made before.

    durations: frames of 600 samples per id. Raises InternalError when words made no sound.
    """
    if len(durations) != len(spoken.ids) or not len(sound):
        raise InternalError(f"the voice gave no sound for {clause.spoken!r}")
    ends = np.cumsum([0, *durations]) * FRAME - min(ONSET_FRAMES, int(durations[0])) * FRAME
    spans = [(int(ends[a]), int(ends[b])) for a, b in spoken.places if b > a]
    if not spans or not np.isfinite(sound).all() or float(np.abs(sound).max()) < 2e-3:
        raise InternalError(f"the voice gave silence for {clause.spoken!r}")
    begin = max(0, first_loud(sound, OUT_RATE) - KEEP_BEFORE)
    end = min(len(sound), spans[-1][1] + ONSET_FRAMES * FRAME + KEEP_AFTER)
    begin = min(begin, spans[0][1])
    cut = fade_out(fade_in(sound[begin:end], OUT_RATE), OUT_RATE)
    pcm = to_pcm16(cut)
    if last:
        pcm = np.concatenate([pcm, silence(clause.pause_ms)])
    words, at = [], 0
    for i, (a, b) in enumerate(spoken.places):
        if b > a:
            start = max(0, int(ends[a]) - begin, at)
            at = max(start, min(int(ends[b]), end) - begin)
            words.append(WordTime(first_word + i, offset + start, offset + at))
    return AudioPiece(pcm, tuple(words), last)
