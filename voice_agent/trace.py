"""One record per turn, one timestamp per hand-over. Every view of latency reads this record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .decisions import Decision
from .types import ReplyId, TurnId

MAX_DECISIONS = 128  # of one turn: noise over one reply makes no record without end


class Mark(StrEnum):
    """Hand-overs of one turn in the order they normally happen."""

    SPEECH_START = "speech_start"  # caller's first voiced sample (media time mapped to the clock)
    SPEECH_END = "speech_end"  # caller's last voiced sample
    PAUSE = "pause"  # silence long enough to transcribe the tail
    TRANSCRIPT = "transcript"  # the text that became final was ready
    COMMIT = "commit"  # end of turn decided
    LLM_SUBMIT = "llm_submit"
    LLM_FIRST_TEXT = "llm_first_text"  # first non-empty text
    FIRST_CLAUSE = "first_clause"
    TTS_FIRST_AUDIO = "tts_first_audio"
    FIRST_SOUND = "first_sound"  # first audible frame left playout
    LLM_DONE = "llm_done"
    LAST_SOUND = "last_sound"
    BARGE_IN_ONSET = "barge_in_onset"
    BARGE_IN_DECIDED = "barge_in_decided"
    LAST_FRAME = "last_frame"  # an interrupted reply's last audible frame


STAGES: tuple[tuple[str, Mark, Mark], ...] = (
    ("end_of_turn", Mark.SPEECH_END, Mark.COMMIT),
    ("transcript", Mark.PAUSE, Mark.TRANSCRIPT),
    ("first_text", Mark.LLM_SUBMIT, Mark.LLM_FIRST_TEXT),
    ("first_clause", Mark.LLM_FIRST_TEXT, Mark.FIRST_CLAUSE),
    ("first_audio", Mark.FIRST_CLAUSE, Mark.TTS_FIRST_AUDIO),
    ("playout", Mark.TTS_FIRST_AUDIO, Mark.FIRST_SOUND),
)
"""(stage, from, to): spans of a waterfall. They may overlap: early work starts before commit."""


@dataclass(frozen=True, slots=True)
class ToolSpan:
    """One run of a tool. outcome: done | failed | late | cancelled. began_s: the call's clock."""

    name: str
    outcome: str
    began_s: float
    took_ms: float


@dataclass(slots=True)
class TurnTrace:
    """Mutable while the turn lives, frozen in meaning once emitted.

    Times are seconds of the call's clock; a mark is set once (the first time wins) unless forced.
    """

    turn: TurnId
    reply: ReplyId | None = None
    transcript: str = ""
    reply_text: str = ""
    heard: str = ""
    interrupted: bool = False
    outcome: str = ""  # spoken | tool | no_input: reason | recovery | interrupted | cancelled
    partials: int = 0
    confirmed_words_at_end: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    wasted_tokens: int = 0
    early_tokens: int = 0  # of the prompt, given to the engine while the caller spoke
    taken_back_tokens: int = 0  # of those, the ones a revised transcript took back
    clauses: int = 0
    backend: str = ""  # the language model's backend that answered; empty if none was asked
    fallback: str = ""  # why it was not the first one
    model: str = ""  # that backend's model
    agent: str = ""
    prompt_version: str = ""  # of the instructions and tools: a digest
    wasted_voice_ms: int = 0  # of early voice, made and thrown away
    unheard_voice_ms: int = 0  # of replies that were cut, made and not heard
    holes: int = 0  # times that the sound ran out in the middle of a reply for over 40 ms
    early_refused: str = ""  # why less was done early: load, budget or off
    echo: str = ""  # what is known of our own voice on the line; empty: nothing looks for it
    deadline_s: float | None = None
    decisions: list[Decision] = field(default_factory=list)
    tools: list[ToolSpan] = field(default_factory=list)
    marks: dict[Mark, float] = field(default_factory=dict)

    def mark(self, mark: Mark, at_s: float, *, force: bool = False) -> None:
        if force or mark not in self.marks:
            self.marks[mark] = at_s

    def decided(self, decision: Decision) -> None:
        if len(self.decisions) < MAX_DECISIONS:
            self.decisions.append(decision)

    def span_ms(self, start: Mark, end: Mark) -> float | None:
        if start in self.marks and end in self.marks:
            return (self.marks[end] - self.marks[start]) * 1000.0
        return None

    @property
    def voice_to_voice_ms(self) -> float | None:
        """Caller's last voiced sample to our first audible frame."""
        return self.span_ms(Mark.SPEECH_END, Mark.FIRST_SOUND)

    @property
    def lateness_ms(self) -> float | None:
        """How late the first sound was against the turn's deadline; negative is early."""
        if self.deadline_s is None or Mark.FIRST_SOUND not in self.marks:
            return None
        return (self.marks[Mark.FIRST_SOUND] - self.deadline_s) * 1000.0

    def stages_ms(self) -> dict[str, float]:
        spans = ((name, self.span_ms(a, b)) for name, a, b in STAGES)
        return {name: round(ms, 1) for name, ms in spans if ms is not None}

    @property
    def zero_s(self) -> float:
        """The caller's last voiced sample, else the first mark: the waterfall's origin."""
        return self.marks.get(Mark.SPEECH_END, min(self.marks.values(), default=0.0))

    def offset_ms(self, at_s: float) -> float:
        return round((at_s - self.zero_s) * 1000.0, 1)

    def offsets_ms(self) -> dict[str, float]:
        """Every mark relative to `zero_s`: the waterfall's x axis."""
        return {m.value: self.offset_ms(t) for m, t in self.marks.items()}
