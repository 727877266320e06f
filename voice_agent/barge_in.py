"""What caller speech over our own thinking or speaking was: the evidence, the verdict, the reasons.

Pure. A verdict is a `Speech`: words take the floor, an acknowledgement or nothing gives it back,
and too little of a sentence that still goes on waits for the next transcript.
"""

from __future__ import annotations

from dataclasses import dataclass

from .languages.en.backchannel import (
    ends_in_backchannel,
    has_stop_word,
    has_value,
    is_backchannel,
    is_hesitation,
    is_query,
    n_words,
)
from .own_words import Own
from .turn_records import Speech

BURST_MS = 800
"""A voice that was heard for less may have been "mm-hm", whatever a recogniser makes of it."""
CLEAR = -0.35
"""Mean log-probability from which on such words are believed. By whisper-tiny.en, of 263 made
acknowledgements 20 were taken for words at 700 ms and -0.6, and 3 here; no recorded interruption
of 140 is lost by it."""
DULLER_DB = 8.0
"""A voice so much duller than the caller's speaks to somebody else, or is far away."""
TRAILING_MS = 1200
"""A few words that end as an acknowledgement are one if all of them took less: "low, I see"."""
GUESS = -2.0
"""Below it a stop word in the middle of a sound is a guess ("enough" of "of course")."""


@dataclass(frozen=True, slots=True)
class BargeIn:
    """How easily the caller stops us. Milliseconds of media time.

    duck_db: how much our voice is lowered while a short sound of the caller is judged; 0: it is
    silenced at once instead. hold_ms: a caller's voice that goes on this long after ours was
    lowered is more than an acknowledgement, and ours is silenced. decide_ms: without a verdict by
    then our voice goes on. speaking_words, thinking_words: words that a caller who has not paused
    must have said to take the floor from our voice, and from an answer still being thought; a stop
    word needs no second one, and at a pause any word is enough. quieter_db: a voice so much quieter
    than the caller's own, or `DULLER_DB` duller, does not speak to us, unless it says a stop word;
    0: every voice does.
    greeting_guard_ms: the greeting's
    beginning that nothing interrupts. acknowledgements, stop_words: more of the agent's own, to
    those of its language.
    """

    duck_db: float = 12.0
    hold_ms: int = 600
    decide_ms: int = 1200
    speaking_words: int = 2
    thinking_words: int = 1
    quieter_db: float = 12.0
    greeting_guard_ms: int = 0
    acknowledgements: tuple[str, ...] = ()
    stop_words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.duck_db <= 60.0:
            raise ValueError("duck_db must lie between 0 and 60")
        if min(self.hold_ms, self.greeting_guard_ms) < 0:
            raise ValueError("durations must not be negative")
        if not 0.0 <= self.quieter_db <= 60.0:
            raise ValueError("quieter_db must lie between 0 and 60")
        if self.decide_ms < self.hold_ms:
            raise ValueError("decide_ms must not be less than hold_ms")
        if min(self.speaking_words, self.thinking_words) < 1:
            raise ValueError("at least one word must be needed")

    @property
    def duck_gain(self) -> float:
        return float(10 ** (-self.duck_db / 20))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A transcript of caller speech, and what was going on meanwhile.

    complete: it covers everything up to a pause. over_us: it began while a reply of ours had the
    floor and is not decided. sounded: that reply had been heard. voice_ms: from the first voiced
    sample to now, or to the last before a pause. ours: whether the words are what our own voice was
    saying. logprob: how sure the recogniser is of them, 0 or below. acknowledged: how many words
    of this same speech have been taken for an acknowledgement. below_db: how much quieter this
    voice is than the caller's turns so far, or than callers are; duller_db: likewise, how much
    more it lacks of the high sounds.
    """

    text: str
    complete: bool
    over_us: bool
    sounded: bool
    voice_ms: int
    ours: Own = Own.NO
    logprob: float = 0.0
    acknowledged: int = 0
    below_db: float = 0.0
    duller_db: float = 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """reasons hold no word that was said: they may enter any log."""

    speech: Speech
    reasons: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        return ", ".join(self.reasons)

    @property
    def acknowledges(self) -> bool:
        """The words themselves are an acknowledgement; else it is only what they are taken for."""
        return "acknowledgement" in self.reasons


def judge(evidence: Evidence, settings: BargeIn) -> Judgement:
    """The verdict. Without a reply of ours to stop, words are words and "okay" is an answer."""
    words = n_words(evidence.text)
    reasons = [
        f"words:{words}",
        "at_pause" if evidence.complete else "in_speech",
        "speaking" if evidence.sounded else "thinking",
        f"voice_ms:{evidence.voice_ms}",
    ]

    def verdict(speech: Speech, *more: str) -> Judgement:
        return Judgement(speech, (*more, *reasons))

    if not words:
        return verdict(Speech.NOTHING, "no_words")
    if evidence.ours is Own.YES:
        return verdict(Speech.NOTHING, "own_speech")
    if not evidence.over_us:
        # Who stops speaking decides what "okay" was: to our silence it is an answer.
        acknowledges = is_backchannel(evidence.text, settings.acknowledgements)
        return verdict(Speech.BACKCHANNEL if acknowledges else Speech.WORDS)
    if has_stop_word(evidence.text, settings.stop_words):
        if evidence.logprob < GUESS and not evidence.complete:
            return verdict(Speech.UNSURE, "guessed_stop_word")
        return verdict(Speech.WORDS, "stop_word")
    if evidence.ours is Own.PERHAPS and not evidence.complete:
        return verdict(Speech.UNSURE, "perhaps_own_speech")
    if evidence.sounded:
        if 0.0 < settings.quieter_db <= evidence.below_db:
            return verdict(Speech.BACKCHANNEL, f"quieter_db:{evidence.below_db:.0f}")
        if settings.quieter_db and evidence.duller_db >= DULLER_DB:
            return verdict(Speech.BACKCHANNEL, f"duller_db:{evidence.duller_db:.0f}")
        if is_backchannel(evidence.text, settings.acknowledgements):
            return verdict(Speech.BACKCHANNEL, "acknowledgement")
        if evidence.acknowledged and words < evidence.acknowledged + settings.speaking_words:
            return verdict(Speech.BACKCHANNEL, "acknowledged_before")
        perhaps = Speech.BACKCHANNEL if evidence.complete else Speech.UNSURE
        if _is_unclear(evidence):
            return verdict(perhaps, "unclear_burst")
        if evidence.voice_ms < TRAILING_MS and ends_in_backchannel(evidence.text):
            return verdict(perhaps, "ends_as_acknowledgement")
    elif is_hesitation(evidence.text):  # nothing was said that "yes" could acknowledge
        return verdict(Speech.BACKCHANNEL, "hesitation")
    needed = settings.speaking_words if evidence.sounded else settings.thinking_words
    if not evidence.complete and words < needed:
        return verdict(Speech.UNSURE, "too_few_words")
    return verdict(Speech.WORDS, "words")


def _is_unclear(evidence: Evidence) -> bool:
    """Too short and too unsure to be words; a number, a day and "what?" are none of what "mm-hm" is
    taken for."""
    burst = evidence.voice_ms < BURST_MS and evidence.logprob < CLEAR
    return burst and not (has_value(evidence.text) or is_query(evidence.text))
