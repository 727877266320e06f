"""Recognition of one call's current utterance: when to transcribe, and what a transcript means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import turn as tm
from .ear import Ear
from .errors import InternalError, VoiceAgentError
from .events import Partial
from .languages.en.backchannel import is_backchannel
from .stt.base import Transcript
from .stt.partials import PartialPolicy
from .stt.streaming import Utterance
from .trace import Mark
from .types import IN_RATE, TurnId
from .vad import VadWindow

if TYPE_CHECKING:
    from .stack import Stack
    from .turns import Turns

TRANSCRIPT_WITHIN_S = 5.0
VOICED_PROB = 0.5


def classify(transcript: Transcript) -> tm.Speech:
    if not transcript.words:
        return tm.Speech.NOTHING
    return tm.Speech.BACKCHANNEL if is_backchannel(transcript.text) else tm.Speech.WORDS


class Hearing:
    """Owns the utterance from onset to commit and the passes over it."""

    def __init__(self, turns: Turns, stack: Stack, ear: Ear) -> None:
        self._turns = turns
        self._stack = stack
        self._ear = ear
        self._clock = stack.clock
        self._policy = PartialPolicy()
        self._turn: TurnId | None = None
        self._utterance: Utterance | None = None
        self._asked_s: float | None = None  # when the pass that must answer a pause was asked for

    def start(self, turn: TurnId, onset_sample: int) -> None:
        self._turn = turn
        if not self._turns.manual or self._utterance is None:
            self._utterance = Utterance(self._stack.recognizer)
            self._ear.start_utterance(self._utterance, onset_sample)
        self._policy.begin(onset_sample)
        self._asked_s = None

    def revise(self, turn: TurnId) -> None:
        """The same utterance goes on as the next revision."""
        self._turn = turn
        self._asked_s = None

    def clear(self) -> None:
        self._turn = None
        self._utterance = None
        self._asked_s = None
        self._ear.drop_utterance()

    @property
    def turn(self) -> TurnId | None:
        """The turn being heard."""
        return self._turn

    @property
    def likely_words(self) -> str:
        """Of what the caller is saying, the words that will probably stand: not the last one, which
        may be half a word, unless it is confirmed."""
        if self._utterance is None:
            return ""
        heard = self._utterance.current
        return " ".join(heard.words[: max(heard.n_confirmed, len(heard.words) - 1)])

    # ------------------------------------------------------------ passes

    def on_window(self, window: VadWindow) -> None:
        """32 ms more were scored: run a partial pass if the policy wants one."""
        if self._utterance is None or self._turn is None:
            return
        state = self._turns.state
        if state.caller is not tm.Caller.SPEAKING or self._turns.manual:
            return
        why = self._policy.due(
            window.start_sample,
            window.end_sample,
            voiced=window.prob >= VOICED_PROB,
            agent_speaking=state.candidate,
        )
        if why is not None:
            self._turns.call.spawn(self._pass(self._turn, self._utterance, complete=False))

    def transcribe_pause(self, turn: TurnId) -> None:
        if self._utterance is None:
            return
        self._asked_s = self._clock.now()
        self._turns.trace_of(turn).mark(Mark.PAUSE, self._asked_s, force=True)
        self._policy.pause(self._ear.endpointer.last_voiced_sample, self._ear.samples)
        self._turns.call.spawn(self._pass(turn, self._utterance, complete=True))
        if self._stack.smart_turn is not None and not self._turns.manual:
            self._turns.call.spawn(self._score(turn))

    async def _pass(self, turn: TurnId, utterance: Utterance, *, complete: bool) -> None:
        transcript: Transcript | None = None
        try:
            deadline_s = self._clock.now() + self._stack.target_s
            transcript = await utterance.transcribe(deadline_s=deadline_s, pause=complete)
        except VoiceAgentError as error:
            self._turns.call.fault(error)
        if utterance is not self._utterance or turn != self._turn:
            return  # its words come again with the next pass
        self._publish(turn, transcript, complete)
        self._turns.expect()
        if complete:
            self._turns.words_known()

    def _publish(self, turn: TurnId, transcript: Transcript | None, complete: bool) -> None:
        trace = self._turns.trace_of(turn)
        if complete:
            self._asked_s = None
            trace.mark(Mark.TRANSCRIPT, self._clock.now(), force=True)
        else:
            trace.partials += 1
        if transcript is None:
            self._turns.apply(tm.Heard(turn, "", tm.Speech.NOTHING, complete))
            return
        trace.confirmed_words_at_end = transcript.n_confirmed
        if complete:
            self._ear.endpointer.set_evidence(transcript.text)
        self._turns.apply(tm.Heard(turn, transcript.text, classify(transcript), complete))
        if transcript.words and not self._turns.state.candidate and self._turn is not None:
            self._turns.call.emit(Partial(self._turn, transcript.confirmed, transcript.tail))

    async def _score(self, turn: TurnId) -> None:
        """How likely the caller is done, from the sound of it."""
        smart_turn = self._stack.smart_turn
        if smart_turn is None:
            return
        p_complete = await smart_turn.score(self._ear.smart_turn_window())
        if p_complete is None:
            return
        if turn == self._turn and self._turns.state.caller is tm.Caller.PAUSED:
            self._ear.set_completion(p_complete)

    def watch(self, now_s: float) -> None:
        """A pass that never answers must not leave the caller in silence."""
        if self._asked_s is None or self._turn is None:
            return
        if now_s - self._asked_s < TRANSCRIPT_WITHIN_S or not self._turns.state.ended:
            return
        self._asked_s = None
        self._turns.call.fault(InternalError("no transcript in time", code="VA310"))
        self._turns.apply(tm.Heard(self._turn, "", tm.Speech.NOTHING, True))

    # ------------------------------------------------------------ manual turns

    def buffer_manually(self) -> None:
        """Without turn detection: everything from here to the client's commit is one utterance."""
        self._utterance = Utterance(self._stack.recognizer)
        self._ear.utterance = self._utterance

    @property
    def manual_ms(self) -> int:
        """Milliseconds buffered for a manual commit."""
        return 0 if self._utterance is None else self._utterance.n_samples * 1000 // IN_RATE
