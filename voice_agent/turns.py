"""A call's turns: the turn machine's state, and the one place where its effects are carried out.

Edges of the ear, transcripts and ends of replies come in through `apply`; `_do` turns each effect
into work of the hearing, the mouth or the history. One trace per turn lives here until it is
emitted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import logs
from . import turn as tm
from .context import Prompt
from .decisions import Decision, Reason, explain
from .ear import Ear
from .end_of_utterance import unpunctuated
from .endpointing import Edge, EdgeKind, Endpointer
from .events import (
    CallerSilent,
    Decided,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TurnCommitted,
    TurnReopened,
    TurnTraced,
)
from .floor_watch import FloorWatch
from .hearing import SURELY_MS, Hearing
from .languages.en.keys import SAYS_NOTHING
from .mouth import Mouth
from .own_words import Echo
from .reply_settings import AS_THE_CALL, ReplySettings
from .shedding import Shed
from .think import KnowsEnds
from .tools.desk import ToolDesk, Unsaid
from .tools.exchange import SPEAK
from .trace import Mark, TurnTrace
from .types import IN_RATE, TurnId
from .vad import VadWindow

if TYPE_CHECKING:
    from .agent import Call
    from .stack import AgentRuntime, FixedSpeech, Stack


class Turns:
    """Owns the conversation of one call: what was said, whose turn it is, what follows."""

    def __init__(self, call: Call, stack: Stack, agent: AgentRuntime, lead_ms: int) -> None:
        self.call = call
        self._stack = stack
        self._tenant = agent.file.tenant
        self._agent_name = agent.file.name
        self._clock = stack.clock
        self.barge_in = agent.file.barge_in.resolve()
        self.state = tm.TurnState(
            TurnId(call.id, -1),
            continuation_ms=agent.turn_taking.continuation_ms,
            max_revisions=agent.turn_taking.max_revisions,
            ducks=self.barge_in.duck_db > 0,
        )
        self.watch = FloorWatch(self, stack.clock, self.barge_in)
        self.conversation = stack.conversation(agent.file.instructions, agent.tools)
        self.tools = ToolDesk(self, stack, agent)
        endpointer = Endpointer(agent.turn_taking)
        self.ear = Ear(stack.vad, endpointer, self._clock, self._on_edge, self._on_window)
        self.hearing = Hearing(self, stack, self.ear)
        self.mouth = Mouth(self, stack, agent, lead_ms)
        self._traces: dict[int, TurnTrace] = {}
        self._announced: int | None = None  # the turn whose speech the transport knows of
        self._reopened = ""  # words of a re-opened message, to be joined by what follows
        self._reopened_index = -1  # the turn re-opened last
        self._cut_by = -1  # the turn whose words cut a reply of ours last
        self.asked_to_respond: ReplySettings | None = None  # waits for a manual commit
        self._reply_ending = self._moved_on = False
        self.client_committed = False  # what is being understood: it ends as a turn, whatever it is
        self.n_done = 0
        self.voice_to_voice_ms: float | None = None
        self.echo = Echo.UNKNOWN  # of this line, and what the trace says about it
        self.echo_note = ""
        self.line_lost = False
        self._lost_s = 0.0
        self._between: list[Decision] = []  # turns: told with the next one
        self.auto_response = True
        self._interruptible = True
        self.manual = False

    def trace_of(self, turn: TurnId) -> TurnTrace:
        if turn.index not in self._traces:
            self._traces[turn.index] = TurnTrace(turn, decisions=self._between)
            self._between = []
        return self._traces[turn.index]

    def _on_edge(self, edge: Edge) -> None:
        if self.manual:
            return
        ms = edge.sample * 1000 // IN_RATE
        match edge.kind:
            case EdgeKind.ONSET:
                self.apply(tm.Onset(ms))
            case EdgeKind.PAUSE:
                self.apply(tm.Pause(ms))
            case EdgeKind.RESUMED:
                self.apply(tm.Resumed())
            case EdgeKind.ENDED:
                self.apply(tm.Ended(ms))

    def _on_window(self, window: VadWindow) -> None:
        self.hearing.on_window(window)
        self.watch.look()

    @property
    def interruptible(self) -> bool:
        """Whether the caller's voice may stop ours. What is said over ours is answered after it."""
        return self._interruptible

    @interruptible.setter
    def interruptible(self, on: bool) -> None:
        self._interruptible = on
        self.apply(tm.Guard(not on))

    def apply(self, event: tm.Event) -> None:
        self.state, effects = tm.step(self.state, event)
        for effect in effects:
            self._note(event, effect)
            self._do(effect)

    def _note(self, event: tm.Event, effect: tm.Effect) -> None:
        """What is decided goes into the trace of its turn and of the turn being answered."""
        ends = isinstance(effect, tm.Commit | tm.NoInput) and isinstance(event, tm.Ended | tm.Heard)
        ending = self.ear.endpointer.ending if ends and not self.manual else None
        now_s, turn = self._clock.now(), self.state.turn
        decision = explain(event, effect, turn=turn, at_s=now_s, ending=ending)
        reply = self.mouth.reply
        answered = reply.trace if reply is not None else None
        heard = isinstance(effect, tm.Listen)
        own = self.trace_of(turn) if heard else self._traces.get(decision.turn.index)
        for trace in (own, answered if answered is not own else None):
            if trace is not None:
                trace.decided(decision)
        self.call.emit(Decided(decision))

    def lose_line(self, unheard_ms: int) -> None:
        """Nothing is heard, said or decided by silence until `regain_line`."""
        self.line_lost = self.ear.lost = True
        self._lost_s = self._clock.now()
        self._note_line("line_lost", {"unheard_ms": unheard_ms})
        self.mouth.line_lost(unheard_ms)

    def regain_line(self) -> None:
        self.line_lost = False
        gap_ms = round((self._clock.now() - self._lost_s) * 1000)
        self._note_line("line_back", {"gap_ms": gap_ms})
        unsaid = self.mouth.line_back()
        self.ear.line_back()
        nobody_speaks = self.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED)
        if unsaid and nobody_speaks and self.state.floor is tm.Floor.IDLE:
            self.apply(tm.ReplyBegins())
            self.mouth.say(self._stack.fixed(unsaid))

    def _note_line(self, what: str, why: dict[str, Reason]) -> None:
        """In the traces of the turn being heard and of the one being answered, else the next."""
        turn, reply = self.state.turn, self.mouth.reply
        decision = Decision(what, turn, self._clock.now(), "line", why)
        heard = self._traces.get(self.hearing.turn.index) if self.hearing.turn else None
        answered = reply.trace if reply is not None else None
        traces = [trace for trace in (heard, answered) if trace is not None]
        for trace in traces[: 1 if heard is answered else 2]:
            trace.decided(decision)
        if not traces:
            self._between.append(decision)
        self.call.emit(Decided(decision))

    def _do(self, effect: tm.Effect) -> None:
        match effect:
            case tm.Listen():
                self._listen(effect)
            case tm.Revise(_, new):
                self.mouth.cancel_early()
                self.hearing.revise(new)
                self.trace_of(new).turn = new
                self.expect()
            case tm.Transcribe(turn):
                self.ear.endpointer.prepare(self.auto_response and not self.manual)
                self.hearing.transcribe_pause(turn)
            case tm.ThinkEarly(turn, text):
                self._think_early(turn, text)
            case tm.Commit():
                self._commit(effect)
            case tm.NoInput():
                self._no_input(effect)
            case tm.Duck():
                self.mouth.duck(self.barge_in.duck_gain)
            case tm.Hold():
                self.mouth.hold()
            case tm.Resume():
                self.mouth.resume()
            case tm.Interrupt(turn, onset_ms):
                self._interrupt(turn, onset_ms)
            case tm.Cut():
                self._cut()
            case tm.Reopen():
                self._reopen(effect)
            case tm.Dismiss(turn) if self.client_committed:
                self.trace_done(self._close_utterance(turn, self.ear.now_ms, ""), "no_input")
            case tm.Dismiss(turn):
                self._dismiss(turn)

    def _listen(self, effect: tm.Listen) -> None:
        self.call.touch()
        onset = effect.onset_ms * IN_RATE // 1000
        trace = self.trace_of(effect.turn)
        trace.mark(Mark.SPEECH_START, self.ear.clock_at(onset))
        self.hearing.start(effect.turn, onset)
        if not effect.candidate:
            self._announce(effect.turn, effect.onset_ms)

    def _announce(self, turn: TurnId, onset_ms: int) -> None:
        """Once for each utterance, however often it is re-opened or our reply ends under it."""
        if self._announced != turn.index:
            self._announced = turn.index
            self.call.emit(SpeechStarted(turn, onset_ms))

    def _think_early(self, turn: TurnId, text: str) -> None:
        if not self.auto_response or self.manual or self.mouth.reply is not None:
            return
        if why := self.mouth.early_work.may_think():
            self.trace_of(turn).early_refused = why
            return
        self.tools.before_answer()
        joined = self._joined(text)
        self.mouth.think_early(self.trace_of(turn), joined, self.prompt_of(AS_THE_CALL, joined))

    def expect(self) -> None:
        """Called when the history or the caller's words have changed: what the next prompt begins
        with may be computed before it is asked for, and what it lacks may go."""
        if not self.call.live or self.mouth.busy:
            return
        answers = self.auto_response and not self.manual and self.mouth.early_work.thinks
        words = self._joined(self.hearing.likely_words if answers else "")
        ids = self.conversation.opening(words)
        ahead = self._stack.thinker.expect(ids, call=self.call.id, tenant=self._tenant)
        if self.hearing.turn is not None:
            trace = self.trace_of(self.hearing.turn)
            trace.early_tokens += ahead.given
            trace.taken_back_tokens += ahead.taken_back
            self.mouth.early_work.wasted(tokens=ahead.taken_back)

    async def end_of_utterance(self, text: str) -> float | None:
        """Log-odds that the caller's words so far are whole, by the model that is to answer them;
        None where it can't tell, or has no time to."""
        thinker, load = self._stack.thinker, self._stack.early.load
        if not isinstance(thinker, KnowsEnds) or load.shed >= Shed.LLM or not text:
            return None
        prompt = self.conversation.unfinished(unpunctuated(self._joined(text)))
        deadline_s = self._clock.now()  # before any reply: it decides when there is to be one
        return await thinker.end_of_utterance(
            prompt, call=self.call.id, tenant=self._tenant, deadline_s=deadline_s
        )

    def words_known(self) -> None:
        """Called by the hearing: the words of the pause were applied."""
        if self.mouth.thinks_early:
            self.ear.poll()
        else:
            self.ear.answer_ready()

    def early_answer_ready(self) -> None:
        """Called by the mouth: the early reply has its first sound, or will have none."""
        self.ear.answer_ready()

    def _commit(self, effect: tm.Commit) -> None:
        self.tools.interrupted()
        self.tools.before_answer()
        turn, text = effect.turn, self._joined(effect.text)
        trace = self._close_utterance(turn, effect.end_ms, text)
        if not self.manual and Mark.SPEECH_START in trace.marks:
            self.ear.learn_voice(self.state.onset_ms * IN_RATE // 1000)
        self.conversation.add_user(text, turn.first)
        self.tools.answered()
        asked, self.asked_to_respond = self.asked_to_respond, None
        if asked is None and (self.manual or not self.auto_response):
            self.mouth.cancel_early()
            self.trace_done(trace, "not_answered")
            self.apply(tm.ReplyOver())
        elif not self.mouth.release_early(trace, text):
            self.answer(trace, asked or AS_THE_CALL)

    def _close_utterance(self, turn: TurnId, end_ms: int, text: str) -> TurnTrace:
        """The caller's part of the turn is over: one transcript, one deadline."""
        trace = self.trace_of(turn)
        trace.turn, trace.transcript = turn, text
        self._reopened = ""
        end_s = self.ear.clock_at(end_ms * IN_RATE // 1000)
        trace.mark(Mark.SPEECH_END, end_s, force=True)
        trace.mark(Mark.COMMIT, self._clock.now(), force=True)
        trace.deadline_s = end_s + self._stack.target_s
        self.after_utterance()
        self.call.emit(SpeechStopped(turn, end_ms))
        self.call.emit(TurnCommitted(turn, text))
        return trace

    def after_utterance(self) -> None:
        self._announced = None
        self.client_committed = False
        self.hearing.clear()
        if self.manual:
            self.hearing.buffer_manually()

    def _no_input(self, effect: tm.NoInput) -> None:
        self.mouth.cancel_early()
        kept, confident_ms = self._reopened, self.hearing.confident_ms
        trace = self._close_utterance(effect.turn, self.state.last_voiced_ms, kept)
        if kept:
            self._stands(trace, kept)
        elif self.auto_response and not self.manual and self._recovers(effect.turn, confident_ms):
            self.apply(tm.ReplyBegins())
            self.mouth.recover(trace)
        else:
            self.trace_done(trace, "no_input")

    def _recovers(self, turn: TurnId, confident_ms: int) -> bool:
        """Whether we say that we understood nothing: after what was surely speech, and whenever we
        had fallen silent for what turned out to be no words."""
        if turn.index == self._cut_by:
            return self.mouth.may_recover(owed=True)
        surely = confident_ms >= SURELY_MS and not self.hearing.own_speech
        return surely and self.mouth.may_recover()

    def _stands(self, trace: TurnTrace, kept: str) -> None:
        """A re-opened message whose continuation came to nothing is as it was."""
        self.conversation.add_user(kept, trace.turn.first)
        self.apply(tm.ReplyBegins())
        self.answer(trace)

    def _dismiss(self, turn: TurnId) -> None:
        """What was being said is no turn. One that we had committed to before stays one."""
        self.mouth.cancel_early()
        if kept := self._reopened:
            self._stands(self._close_utterance(turn, self.state.last_voiced_ms, kept), kept)
            return
        trace = self._traces.pop(turn.index, None)
        if trace is not None and turn.index == self._reopened_index:
            self.trace_done(trace, "interrupted")
        self.after_utterance()
        self.expect()

    def _interrupt(self, turn: TurnId, onset_ms: int) -> None:
        reply = self.mouth.reply
        if reply is not None and reply.trace is not None:
            onset_s = self.ear.clock_at(onset_ms * IN_RATE // 1000)
            reply.trace.mark(Mark.BARGE_IN_ONSET, onset_s)
            reply.trace.mark(Mark.BARGE_IN_DECIDED, self._clock.now())
        self._announce(turn, onset_ms)  # clients stop playing on it
        if reply is not None and not self._reply_ending:
            self._cut_by = turn.index
        self._end_reply()
        if not self._reply_ending:
            self.tools.interrupted()

    def _cut(self) -> None:
        reply = self.mouth.reply
        if reply is not None and reply.trace is not None:
            reply.trace.mark(Mark.BARGE_IN_DECIDED, self._clock.now())
        self._end_reply()
        self.tools.interrupted()

    def _end_reply(self, *, finish_trace: bool = True) -> int:
        """As the turn machine decided: it has moved the floor on, perhaps to the next answer."""
        self._moved_on = True
        try:
            return self.mouth.over(ReplyStatus.INTERRUPTED, finish_trace=finish_trace)
        finally:
            self._moved_on = False

    def end(self) -> None:
        """Nobody is listened to and nothing more is begun."""
        self.apply(tm.ReplyBegins(tm.Floor.DRAINING))
        self.mouth.withdraw()
        self.tools.interrupted()

    def _reopen(self, effect: tm.Reopen) -> None:
        """The caller goes on with what we had just committed."""
        self.ear.endpointer.learn_pause(float(effect.onset_ms - self.state.committed_end_ms))
        trace = self._traces.get(effect.old.index)
        heard = self._end_reply(finish_trace=False)
        self.tools.interrupted(finish_trace=False)
        if heard == 0:  # take the message back; its words join what follows
            self._reopened = self.conversation.reopen_user() or ""
            self.call.emit(TurnReopened(effect.old))
        for index in [i for i in self._traces if i > effect.old.index]:
            del self._traces[index]  # the candidate was this turn going on, not one of its own
        self._reopened_index = self._cut_by = effect.turn.index
        self.hearing.revise(effect.turn)
        trace = trace or TurnTrace(effect.turn)
        trace.turn = effect.turn
        trace.marks = {k: v for k, v in trace.marks.items() if k is Mark.SPEECH_START}
        self._traces[effect.turn.index] = trace
        self.expect()
        self._announce(effect.turn, effect.onset_ms)

    def _joined(self, text: str) -> str:
        return f"{self._reopened} {text}".strip()

    def answer(self, trace: TurnTrace | None, asked: ReplySettings = AS_THE_CALL) -> None:
        self.mouth.answer(trace.turn if trace is not None else None, trace, asked)

    def prompt_of(self, asked: ReplySettings, words: str | None = None) -> Prompt:
        """What a reply is made from: the history and `words` of the caller's that are not in it
        yet, unless it was asked for otherwise."""
        may_call = self.tools.may_call(asked)
        if not asked.own_prompt:
            return replace(self.conversation.prompt(words), may_call=may_call)
        history = self.conversation.other(
            asked.instructions, asked.tools, empty=asked.said is not None
        )
        for message in asked.said or ():
            history.add(message.role, message.text)
        return replace(history.prompt(), may_call=may_call)

    def silent_for(self, ms: int) -> None:
        """The client's limit of silence is over: a turn without words, and an answer to it."""
        now_ms, turn = self.ear.now_ms, self.state.turn.next()
        if self.state.floor is not tm.Floor.IDLE or self.state.caller is not tm.Caller.SILENT:
            return
        self.call.emit(CallerSilent(turn, max(0, now_ms - ms), now_ms))
        self.apply(tm.Keyed(SAYS_NOTHING, now_ms))

    def prompt(self, speech: FixedSpeech) -> None:
        """Ask a silent caller, unless a client decides when we speak."""
        if self.auto_response and not self.manual and self.mouth.reply is None:
            self.apply(tm.ReplyBegins())
            self.mouth.say(speech)

    def follow_up(self, unsaid: Unsaid) -> None:
        """Called by the desk: results are in the history, and nobody speaks."""
        self.apply(tm.ReplyBegins())
        if not unsaid.may_call:
            self.conversation.add_system(SPEAK)
        self.mouth.follow_up(
            unsaid.turn,
            unsaid.trace,
            replace(self.conversation.prompt(), may_call=unsaid.may_call),
            step=unsaid.step,
            spoken=unsaid.spoken,
        )

    def reply_over(self, status: ReplyStatus) -> None:
        """Called by the mouth when the reply with the floor ended; the history is up to date."""
        self.call.touch()
        if not self._moved_on:
            self._reply_ending = True  # a candidate that is left becomes a turn: nobody was cut
            self.apply(tm.ReplyOver())
            self._reply_ending = False
        if self.tools.waiting and self.state.caller in (tm.Caller.SILENT, tm.Caller.MUTED):
            self.apply(tm.ReplyBegins())  # the floor stays ours until their results are spoken of
        self.conversation.make_room()
        self.expect()
        if status is not ReplyStatus.CANCELLED:
            self.call.reply_ended()

    def trace_done(self, trace: TurnTrace, outcome: str) -> None:
        trace.outcome, trace.echo = outcome, self.echo_note
        trace.agent, trace.model = self._agent_name, self._stack.models.get(trace.backend, "")
        trace.prompt_version = self.conversation.version
        self._traces.pop(trace.turn.index, None)
        self.n_done += 1
        if (heard_after := trace.voice_to_voice_ms) is not None:
            self.voice_to_voice_ms = heard_after
        logs.turn_done(trace, content=self._stack.content)
        if self._stack.tracing is not None:
            self._stack.tracing.turn(trace)
        self.call.emit(TurnTraced(trace))
