"""When the caller starts, pauses, goes on and is done: a pure function of voice probabilities.

All positions are samples of the caller's media at 16 kHz. No clock, no model, no task: windows and
estimates go in, edges come out. States: silent -> speaking -> paused -> (speaking | silent).

    ENDED is decided at   last voiced sample + silence time-out
    the time-out is       min_silence * (limit / min_silence) ** d,   d the doubt, 0 to 1
    limit is              sentence_ms if the words read as finished, else max_silence_ms

so a turn that sounds complete ends after `min_silence_ms`, one that does not waits up to its
limit, and anything between is on a continuous curve. Doubt falls with the log-odds of "complete",
and a little of it is worth much of the wait: few pauses inside a turn are under 0.4 s, most are
under 0.9, so that is where waiting helps. The log-odds are those of the end-of-turn model (`prior`
without it), how far the voice has sunk (`voice_agent.voice_level`), and evidence of the words:
their cue, and what the language model that is to answer them makes of them
(`voice_agent.end_of_utterance`). Its word is worth more than a full stop of the recogniser's, so
with it there is no `sentence_ms`. Two things lengthen a time-out: this caller's own pauses (a
moving average of those that were not the end), and an answer that is still being prepared, because
the floor is worth nothing to us before there is something to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .languages.en.cues import completion_cue
from .types import IN_RATE

_PER_MS = IN_RATE // 1000
SURELY_NOT, SURELY = -1.5, 2.0  # log-odds beyond these are worth no finer distinction
STEEP = 80.0  # how much of a wait a little doubt is worth
USUAL = 1.0  # log-odds of the language model that neither lengthen nor shorten a time-out
SOUND = 0.5  # weight of the end-of-turn model beside it: beginnings may fall like ends
GUESSED = 0.5  # weight of the words' cue beside it: it reads them as well
USUAL_FALL_DB = 6.0  # of a voice at its end
LEAST_FALL_DB, MOST_FALL_DB = 3.0, 9.0  # what it may tell: some voices hardly sink
OWN_PAUSE_STRETCH = 1.4  # the time-out is never below this many of the caller's usual pauses
OWN_PAUSE_WEIGHT = 0.3  # of the newest pause in their moving average


@dataclass(frozen=True, slots=True)
class TurnTaking:
    """How soon to speak. Milliseconds of media time; thresholds are probabilities of voice.

    start_ms: voice needed before it is speech. resume_ms: voice needed in a pause before it goes
    on. pause_ms: silence after which the tail is worth transcribing. min/max_silence_ms: limits of
    the end-of-turn silence. sentence_ms: upper limit instead of max_silence_ms once the words read
    as a finished sentence. prepare_ms: the silence that an answer in preparation may ask for, so
    that the turn stays open while we could say nothing anyway; it ends with the answer's first
    sound. prior: P(complete) when nothing is known yet. cue_weight: log-odds that a full-strength
    cue of the words adds. model_weight: of the language model's log-odds that the words are whole;
    0: it is not heeded. fall_weight: log-odds of each dB that the voice sinks further than voices
    usually do at an end. concealed_ms: a run of concealed audio longer than this counts as
    silence, so that a lost network ends a turn. continuation_ms: how long after the end the
    caller's next words still belong to it; max_revisions: how often a turn may go on before nothing
    is thought early for it and its end is final (both used by the turn machine).
    """

    start_threshold: float = 0.5
    end_threshold: float = 0.35
    start_ms: int = 64
    resume_ms: int = 64
    pause_ms: int = 96
    min_silence_ms: int = 280
    sentence_ms: int = 760
    max_silence_ms: int = 1400
    prepare_ms: int = 600
    prior: float = 0.83
    cue_weight: float = 2.5
    model_weight: float = 1.0
    fall_weight: float = 0.4
    concealed_ms: int = 1000
    continuation_ms: int = 1500
    max_revisions: int = 8

    def __post_init__(self) -> None:
        if not 0.0 < self.end_threshold <= self.start_threshold < 1.0:
            raise ValueError("thresholds must satisfy 0 < end <= start < 1")
        if not 0 < self.pause_ms <= self.min_silence_ms <= self.max_silence_ms:
            raise ValueError(
                "silences must satisfy 0 < pause_ms <= min_silence_ms <= max_silence_ms"
            )
        if not 0.0 < self.prior < 1.0:
            raise ValueError("prior must lie between 0 and 1")
        durations = (self.start_ms, self.resume_ms, self.concealed_ms, self.continuation_ms,
                     self.sentence_ms, self.prepare_ms, self.max_revisions)  # fmt: skip
        if min(durations) < 0:
            raise ValueError("durations and counts must not be negative")

    def silence_ms(self, p_complete: float, *, finished: bool = False) -> float:
        """The time-out for an estimate: continuous, falling, between the two limits.

        finished: the words read as a finished sentence.
        """
        lacking = (SURELY - _log_odds(p_complete, 1e-6)) / (SURELY - SURELY_NOT)
        doubt = math.log1p(STEEP * min(1.0, max(0.0, lacking))) / math.log1p(STEEP)
        limit = float(self.max_silence_ms)
        if finished:
            limit = min(limit, max(self.sentence_ms, self.min_silence_ms))
        return self.min_silence_ms * math.pow(limit / self.min_silence_ms, doubt)


def _log_odds(p: float, least: float = 0.01) -> float:
    """Nearer than `least` to 0 or 1 a probability tells no more."""
    p = min(1.0 - least, max(least, p))
    return math.log(p / (1.0 - p))


PRESETS: dict[str, TurnTaking] = {
    "quick": TurnTaking(
        min_silence_ms=220, sentence_ms=560, max_silence_ms=1000, prepare_ms=450, prior=0.85
    ),
    "balanced": TurnTaking(),
    "patient": TurnTaking(
        min_silence_ms=510, sentence_ms=1200, max_silence_ms=2200, prepare_ms=900, prior=0.75
    ),
}


class EdgeKind(StrEnum):
    ONSET = "onset"
    PAUSE = "pause"
    RESUMED = "resumed"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Edge:
    """sample: what the edge is about: first voiced sample (ONSET, RESUMED) or one past the last
    voiced sample (PAUSE, ENDED). at_sample: the media position at which it was decided; never
    decreases.
    """

    kind: EdgeKind
    sample: int
    at_sample: int


@dataclass(frozen=True, slots=True)
class Ending:
    """What an end of turn rested on: the silence, the time-out it had outlasted, the estimate that
    the time-out came from, what the words' cue said (its log-odds are `cue_weight` times it), and
    what the language model did (log-odds; None: nothing in time)."""

    silence_ms: float
    timeout_ms: float
    p_complete: float
    evidence: float
    model: float | None = None


class _State(StrEnum):
    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSED = "paused"


class Endpointer:
    """One caller's edges. Feed every window in order; edges alternate legally:
    ONSET (PAUSE RESUMED)* PAUSE ENDED.
    """

    def __init__(self, config: TurnTaking, cue: Callable[[str], float] = completion_cue) -> None:
        self._config = config
        self._cue = cue
        self._at = 0
        self._state = _State.SILENT
        self._run_start = 0  # first sample of the voice that may become speech
        self._run = 0  # its voiced samples so far; 0: no candidate
        self._last_voiced = 0
        self._silence = 0  # samples of silence since the last voiced one, concealed ones apart
        self._concealed = 0
        self._p: float | None = None
        self._fall: float | None = None
        self._evidence = 0.0
        self._model: float | None = None
        self._preparing = False
        self._usual_pause_ms: float | None = None
        self.ending: Ending | None = None  # of the last ENDED

    @property
    def config(self) -> TurnTaking:
        return self._config

    @property
    def speaking(self) -> bool:
        """Voice is being heard as speech now; false in a pause."""
        return self._state is _State.SPEAKING

    @property
    def in_speech(self) -> bool:
        """Between ONSET and ENDED."""
        return self._state is not _State.SILENT

    @property
    def last_voiced_sample(self) -> int:
        return self._last_voiced

    @property
    def silence_ms(self) -> float:
        """Silence so far since the last voiced sample."""
        return self._silence / _PER_MS if self.in_speech else 0.0

    @property
    def p_complete(self) -> float:
        """The current estimate, evidence of the words included."""
        config = self._config
        log_odds = _log_odds(config.prior if self._p is None else self._p)
        cue = config.cue_weight * self._evidence
        if self._model is not None:
            log_odds = SOUND * log_odds + config.model_weight * (self._model - USUAL)
            cue *= GUESSED
        log_odds += cue
        if self._fall is not None:
            fall = min(MOST_FALL_DB, max(LEAST_FALL_DB, self._fall))
            log_odds += config.fall_weight * (fall - USUAL_FALL_DB)
        return 1.0 / (1.0 + math.exp(-log_odds))

    @property
    def timeout_ms(self) -> float:
        """Silence after which the current pause ends the turn."""
        config = self._config
        finished = self._evidence > 0 and self._model is None
        wanted = config.silence_ms(self.p_complete, finished=finished)
        if self._usual_pause_ms is not None:
            own = OWN_PAUSE_STRETCH * self._usual_pause_ms
            wanted = max(wanted, min(own, config.max_silence_ms))
        return max(wanted, config.prepare_ms) if self._preparing else wanted

    def set_completion(self, p: float) -> None:
        """P(complete) of the current pause, from the end-of-turn model. Forgotten on RESUMED."""
        if not 0.0 <= p <= 1.0:
            raise ValueError("a probability lies between 0 and 1")
        self._p = p

    def set_fall(self, db: float | None) -> None:
        """How far the voice has sunk at the current pause (None: not known). Forgotten on
        RESUMED."""
        self._fall = db

    def set_evidence(self, transcript: str) -> None:
        """The words so far; a dangling "and" lengthens the pause, a finished question shortens
        it."""
        self._evidence = self._cue(transcript)

    def set_model(self, log_odds: float) -> None:
        """Log-odds that the words are whole, from the language model. Forgotten on RESUMED."""
        if math.isnan(log_odds):
            raise ValueError("log-odds are a number")
        self._model = log_odds

    def prepare(self, on: bool) -> None:
        """An answer to the current pause is on its way (True), or its first sound is ready or none
        will come (False). Forgotten when the caller goes on."""
        self._preparing = on

    def learn_pause(self, ms: float) -> None:
        """A pause of this caller that was not the end of their turn."""
        usual = self._usual_pause_ms
        if usual is None:
            usual = self._config.min_silence_ms / OWN_PAUSE_STRETCH
        self._usual_pause_ms = usual + OWN_PAUSE_WEIGHT * (ms - usual)

    def configure(self, config: TurnTaking) -> None:
        """Change the settings from the next window on."""
        self._config = config

    def reset(self) -> None:
        """Forget the current speech (a client committed or cleared it); positions go on."""
        self._state = _State.SILENT
        self._run = 0
        self._new_pause()

    def on_window(self, prob: float, end_sample: int, *, concealed: bool = False) -> list[Edge]:
        """One window that ends at `end_sample`. Raises ValueError when time does not advance."""
        n = end_sample - self._at
        if n <= 0:
            raise ValueError(f"window ends at {end_sample}, but {self._at} was already heard")
        start, self._at = self._at, end_sample
        if concealed:
            self._concealed += n
            if self._concealed <= self._config.concealed_ms * _PER_MS:
                return []
            prob = 0.0
        else:
            self._concealed = 0
        if self._state is _State.SPEAKING:
            return self._while_speaking(prob, n)
        return self._while_quiet(prob, start, n)

    def poll(self) -> list[Edge]:
        """ENDED now if a new estimate has moved the time-out behind us; else nothing."""
        return self._check_end() if self._state is _State.PAUSED and not self._run else []

    def _while_speaking(self, prob: float, n: int) -> list[Edge]:
        if prob >= self._config.end_threshold:
            self._last_voiced, self._silence = self._at, 0
            return []
        self._silence += n
        if self._silence < self._config.pause_ms * _PER_MS:
            return []
        self._state = _State.PAUSED
        self._run = 0
        pause = Edge(EdgeKind.PAUSE, self._last_voiced, self._at)
        return [pause, *self._check_end()]

    def _while_quiet(self, prob: float, start: int, n: int) -> list[Edge]:
        threshold = self._config.end_threshold if self._run else self._config.start_threshold
        paused = self._state is _State.PAUSED
        self._silence += n if paused else 0
        if prob < threshold:
            self._run = 0
            return self._check_end() if paused else []
        if not self._run:
            self._run_start = start
        self._run += n
        needed = self._config.resume_ms if paused else self._config.start_ms
        if self._run < needed * _PER_MS:
            return []
        kind = EdgeKind.RESUMED if paused else EdgeKind.ONSET
        if paused:
            self.learn_pause((self._run_start - self._last_voiced) / _PER_MS)
        edge = Edge(kind, self._run_start, self._at)
        self._state = _State.SPEAKING
        self._run = 0
        self._last_voiced = self._at
        self._new_pause()
        return [edge]

    def _check_end(self) -> list[Edge]:
        if self._silence < self.timeout_ms * _PER_MS:
            return []
        edge = Edge(EdgeKind.ENDED, self._last_voiced, self._at)
        self.ending = Ending(
            self.silence_ms, self.timeout_ms, self.p_complete, self._evidence, self._model
        )
        self.reset()
        return [edge]

    def _new_pause(self) -> None:
        self._silence = 0
        self._p = None
        self._fall = None
        self._evidence = 0.0
        self._model = None
        self._preparing = False
