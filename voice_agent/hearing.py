"""Recognition of one call's current utterance: when to transcribe, and what a transcript means."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from . import turn as tm
from .barge_in import Evidence, judge
from .ear import Ear
from .errors import InternalError, VoiceAgentError
from .events import Partial
from .languages.en.backchannel import n_words
from .own_words import BEFORE_S, Echo, Own, own
from .scope import CancelScope
from .shedding import stretch
from .stt.base import Transcript
from .stt.partials import PartialPolicy, Why
from .stt.streaming import Utterance
from .trace import Mark
from .types import IN_RATE, TurnId
from .vad import VadWindow

if TYPE_CHECKING:
    from .stack import Stack
    from .turns import Turns

log = logging.getLogger(__name__)

VOICED_PROB = 0.5
CONFIDENT_PROB = 0.8  # of a window: voice that should have been words
SURELY_MS = (
    600  # of such voice is transcribed, whatever came before, and asked for again if in vain
)
WORDLESS_MS = 10_000  # voice for so long of which no word was understood is a noise
DOUBTFUL, SURE_SHARE = 0.45, 0.4
"""Above the one (`no_speech_prob`), and with less than the other of its voice sure, it is nobody:
140 recorded ones had 0.67 and more wherever the first was passed, a cafe mostly below 0.2."""
SPARSE_MS, SPARSE = 6000, 0.8
"""Sure voice from which on fewer words and digits a second are a noise; callers say twice that."""


class Hearing:
    """Owns the utterance from onset to commit and the passes over it."""

    def __init__(self, turns: Turns, stack: Stack, ear: Ear) -> None:
        self._turns = turns
        self._stack = stack
        self._ear = ear
        self._clock = stack.clock
        self._policy = PartialPolicy()
        self._noise = stack.noise.open_call()
        self._turn: TurnId | None = None
        self._utterance: Utterance | None = None
        self._asked_s: float | None = None  # when the pass that must answer a pause was asked for
        self._passes = CancelScope("no utterance")
        self._confident = 0  # samples
        self.own_speech = False  # the last transcript was our own voice coming back
        self._acknowledged = 0  # words of the utterance that were an acknowledgement

    def start(self, turn: TurnId, onset_sample: int) -> None:
        self._turn = turn
        if not self._turns.manual or self._utterance is None:
            self._utterance = Utterance(self._stack.recognizer, self._noise)
            self._ear.start_utterance(self._utterance, onset_sample)
        self._policy.begin(onset_sample)
        self._asked_s = None
        self._passes = CancelScope(f"passes of {turn}")
        self._confident = 0
        self._acknowledged = 0

    def revise(self, turn: TurnId) -> None:
        """The same utterance goes on as the next revision."""
        if self._utterance is not None:
            self._utterance.go_on()
        self._turn = turn
        self._asked_s = None

    def clear(self) -> None:
        if self._turn is not None and self._utterance is not None and not self._turns.manual:
            self._noise.over(bool(self._utterance.current.words))
        self._turn = None
        self._utterance = None
        self._asked_s = None
        self._passes.cancel()
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

    @property
    def confident_ms(self) -> int:
        """Of the utterance, what was surely voice."""
        return self._confident * 1000 // IN_RATE

    # ------------------------------------------------------------ passes

    def on_window(self, window: VadWindow) -> None:
        """32 ms more were scored: run a partial pass if the policy wants one."""
        if self._utterance is None or self._turn is None:
            return
        if window.prob >= CONFIDENT_PROB and not window.concealed:
            self._confident += window.end_sample - window.start_sample
        state = self._turns.state
        if state.caller is not tm.Caller.SPEAKING or self._turns.manual:
            return
        self._policy.stretch = stretch(self._stack.early.load.shed, self._stack.forecast.busy)
        why = self._policy.due(
            window.start_sample,
            window.end_sample,
            voiced=window.prob >= VOICED_PROB,
            agent_speaking=state.candidate,
        )
        if why is not None:
            verdict = why is Why.BARGE_IN
            self._start_pass(self._turn, self._utterance, 0.0 if verdict else self._stack.target_s)

    def transcribe_pause(self, turn: TurnId) -> None:
        if self._utterance is None:
            return
        self._asked_s = self._clock.now()
        self._turns.trace_of(turn).mark(Mark.PAUSE, self._asked_s, force=True)
        self._policy.pause(self._ear.endpointer.last_voiced_sample, self._ear.samples)
        spoken_s = self._ear.clock_at(self._ear.endpointer.last_voiced_sample)
        in_s = max(0.0, spoken_s + self._stack.target_s - self._asked_s)
        self._start_pass(turn, self._utterance, in_s, complete=True)
        if self._stack.smart_turn is not None and not self._turns.manual:
            self._turns.call.spawn(self._score(turn))

    def _start_pass(
        self, turn: TurnId, utterance: Utterance, in_s: float, *, complete: bool = False
    ) -> None:
        """in_s: by when it is needed, from now on."""
        deadline_s = self._clock.now() + in_s
        job = self._pass(turn, utterance, deadline_s, complete=complete)
        self._turns.call.spawn(job, self._passes)

    async def _pass(
        self, turn: TurnId, utterance: Utterance, deadline_s: float, *, complete: bool
    ) -> None:
        try:
            surely = complete and self.confident_ms >= SURELY_MS
            transcript = await utterance.transcribe(
                deadline_s=deadline_s, pause=complete, surely=surely
            )
        except Exception as error:
            if not isinstance(error, VoiceAgentError):
                log.exception("recognition failed", extra={"call": self._turns.call.id})
            self._turns.call.fault(error)
            transcript = utterance.current  # the words that earlier passes heard are not lost
        if transcript.words and (self._too_few(transcript.words) or self._is_babble(transcript)):
            self._noise.distrust()
            transcript = replace(transcript, words=(), n_confirmed=0)
        if utterance is not self._utterance or turn != self._turn:
            return  # its words come again with the next pass
        self._publish(turn, transcript, complete)
        self._turns.expect()
        if complete:
            self._turns.words_known()

    def _publish(self, turn: TurnId, transcript: Transcript, complete: bool) -> None:
        trace = self._turns.trace_of(turn)
        if complete:
            self._asked_s = None
            trace.mark(Mark.TRANSCRIPT, self._clock.now(), force=True)
        else:
            trace.partials += 1
        trace.confirmed_words_at_end = transcript.n_confirmed
        if complete:
            self._ear.endpointer.set_evidence(transcript.text)
            self._turns.call.spawn(self._read(turn, transcript.text), self._passes)
        self._turns.apply(self._judged(turn, transcript, complete))
        if self.own_speech:
            self._stack.own_speech_passes += 1
        elif transcript.words:
            self._turns.call.words()
        if self.own_speech or self._turns.state.candidate or self._turn is None:
            return
        if transcript.words:
            self._turns.call.emit(Partial(self._turn, transcript.confirmed, transcript.tail))

    def _judged(self, turn: TurnId, transcript: Transcript, complete: bool) -> tm.Heard:
        state = self._turns.state
        text = transcript.text
        if self._turns.manual:  # the client says that it is a turn
            self.own_speech = False
            speech = tm.Speech.WORDS if text else tm.Speech.NOTHING
            return tm.Heard(turn, text, speech, complete, "the client's commit")
        onset = state.onset_ms * IN_RATE // 1000
        voice_ms = (self._ear.endpointer.last_voiced_sample - onset) * 1000 // IN_RATE
        onset_s = self._ear.clock_at(onset)
        said = self._turns.mouth.own_words.since(onset_s - BEFORE_S)
        ours = own(text, said, self._turns.echo)
        self.own_speech = ours is Own.YES
        evidence = Evidence(
            text, complete, state.candidate, state.sounded, voice_ms, ours, transcript.logprob,
            self._acknowledged, *self._distance(onset),
        )  # fmt: skip
        judgement = judge(evidence, self._turns.barge_in)
        if state.candidate and judgement.acknowledges:
            self._acknowledged = max(self._acknowledged, n_words(text))
        return tm.Heard(turn, text, judgement.speech, complete, judgement.why)

    def _distance(self, onset_sample: int) -> tuple[float, float]:
        """How much quieter and how much duller than the caller's turns this voice over ours is. An
        echo canceller makes a voice both, and of a caller who had no turn it can't be told."""
        if not self._turns.state.candidate:
            return 0.0, 0.0
        if self._turns.echo is Echo.FOUND and not self._ear.knows_voice:
            return 0.0, 0.0
        dull = self._turns.echo is not Echo.FOUND
        return self._ear.below_db, self._ear.duller_db(onset_sample) if dull else 0.0

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

    async def _read(self, turn: TurnId, text: str) -> None:
        """How likely the caller is done, from the words of the pause."""
        if self._turns.manual:
            return
        log_odds = await self._turns.end_of_utterance(text)
        if log_odds is None:
            return
        if turn == self._turn and self._turns.state.caller is tm.Caller.PAUSED:
            self._ear.set_model(log_odds)

    def watch(self, now_s: float) -> None:
        """A pass that never answers must not leave the caller in silence, nor must a noise."""
        turn, utterance = self._turn, self._utterance
        if turn is None or utterance is None:
            return
        if self._is_noise(utterance):
            self._ear.endpointer.reset()
            self._turns.apply(tm.Pause(self._ear.now_ms))
            self._turns.apply(tm.Ended(self._ear.now_ms))
            self._turns.apply(tm.Heard(turn, "", tm.Speech.NOTHING, True))
        elif (
            self._turns.state.ended
            and self._asked_s is not None
            and (now_s - self._asked_s >= self._stack.answer_within_s)
        ):
            self._turns.call.fault(InternalError("no transcript in time", code="VA310"))
            self._publish(turn, utterance.current, True)

    def _is_noise(self, utterance: Utterance) -> bool:
        state = self._turns.state
        if self._turns.manual or state.caller is not tm.Caller.SPEAKING:
            return False
        lasted_ms = self._ear.now_ms - state.onset_ms
        words = utterance.current.words
        return lasted_ms >= WORDLESS_MS and (not words or self._too_few(words))

    def _too_few(self, words: Sequence[str]) -> bool:
        """A recogniser hears a word here and there in any noise."""
        said = len(words) + sum(char.isdigit() for word in words for char in word)
        voice_s = self.confident_ms / 1000
        return not self._turns.manual and (
            self.confident_ms >= SPARSE_MS and said < SPARSE * voice_s
        )

    def _is_babble(self, transcript: Transcript) -> bool:
        """Of talk all around neither the recogniser nor the voice detector is sure."""
        if self._turns.manual or transcript.no_speech_prob <= DOUBTFUL:
            return False
        onset = self._turns.state.onset_ms * IN_RATE // 1000
        return self._confident < SURE_SHARE * (self._ear.endpointer.last_voiced_sample - onset)

    # ------------------------------------------------------------ manual turns

    def buffer_manually(self) -> None:
        """Without turn detection: everything from here to the client's commit is one utterance."""
        self._utterance = Utterance(self._stack.recognizer)
        self._ear.utterance = self._utterance

    @property
    def manual_ms(self) -> int:
        """Milliseconds buffered for a manual commit."""
        return 0 if self._utterance is None else self._utterance.n_samples * 1000 // IN_RATE
