"""What one call says: the reply that has the floor, the one thinking ahead, and what was heard.

At most one reply has the floor and at most one is early. Every reply with the floor ends in `over`,
however it ends: there the history receives exactly what was heard.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.sampling import SamplingParams

from . import turn as tm
from .context import Message, Prompt
from .errors import InternalError, UsageError, VoiceAgentError
from .events import ReplyDone, ReplySounds, ReplyStarted, ReplyStatus, ReplyText, WordsHeard
from .own_words import OwnWords
from .player import Sounding
from .playout import Playout, Tick
from .reply import Reply, Voiced
from .reply_settings import AS_THE_CALL, ReplySettings, forced
from .scope import CancelScope
from .shedding import Shed
from .trace import Mark, TurnTrace
from .tts.base import Clause
from .types import OUT_RATE, ReplyId, TurnId

if TYPE_CHECKING:
    from .stack import AgentRuntime, FixedSpeech, Stack
    from .turns import Turns

log = logging.getLogger(__name__)

MAX_BEHIND_MS = 4000
"""A client that plays later than this has lost its line: Playout remembers no more."""
RECOVERY_GAP_S = 10.0
RECOVERIES_IN_A_ROW = 2
_EARLY_MARKS = (
    Mark.LLM_SUBMIT,
    Mark.LLM_FIRST_TEXT,
    Mark.FIRST_CLAUSE,
    Mark.TTS_FIRST_AUDIO,
    Mark.LLM_DONE,
)


class Mouth:
    """Owns the playout and the replies of one call."""

    def __init__(self, turns: Turns, stack: Stack, agent: AgentRuntime, lead_ms: int) -> None:
        self._turns = turns
        self._stack = stack
        self._agent = agent
        self._clock = stack.clock
        self._least_behind_ms = lead_ms
        self._lead = lead_ms * OUT_RATE // 1000
        self._playout = Playout()
        self._voiced = Voiced(agent.speaker, agent.file.speed, agent.splitter)
        self._sampling = agent.sampling
        self.aloud = True
        """Replies are spoken; False: they are only written."""
        self._n_replies = 0
        self.reply: Reply | None = None
        self._early: Reply | None = None
        self._sounded = False
        self._last_audible_s = 0.0
        self.ticked_s = self._clock.now()
        """When the clock's owner last took a frame."""
        self._chars_heard = 0
        self.own_words = OwnWords()
        self._last: ReplyId | None = None
        self._said: Message | None = None  # what was heard of it, as it stands in the history
        self._cut_short = False
        self._unsaid = ""  # the end of a reply that was over, and did not arrive
        self._sound_by_s = 0.0  # when the reply must have been heard, or heard again
        self.early_work = stack.early.open_call()
        self._waiters: list[asyncio.Future[None]] = []
        self._recoveries = 0
        self._recovered_at_s = float("-inf")

    # ------------------------------------------------------------ the clock's owner

    def tick(self) -> Tick:
        """The next 20 ms for the caller, silence included."""
        tick = self._playout.tick()
        self.ticked_s = self._clock.now()
        reply = self.reply
        if reply is None:
            return tick
        if tick.audible:
            self._last_audible_s = self._clock.now()
            self._sound_by_s = self._last_audible_s + self._stack.answer_within_s
            if not self._sounded:
                self._first_sound(reply)
        chars = self._playout.heard(self._lead).chars
        if chars > self._chars_heard:
            self.own_words.add(
                self._clock.now(), reply.text[self._chars_heard : chars], reply.text[chars:]
            )
            self._chars_heard = chars
            self._turns.call.emit(WordsHeard(reply.id, chars))
        if tick.finished == reply.id:
            self.over(ReplyStatus.FAILED if reply.failed else ReplyStatus.COMPLETED)
        else:
            reply.on_tick()
        return tick

    def _first_sound(self, reply: Reply) -> None:
        self._sounded = True
        if reply.trace is not None:
            reply.trace.mark(Mark.FIRST_SOUND, self._clock.now())
        if not reply.fixed:
            self._recoveries = 0
        self._turns.call.emit(ReplySounds(reply.id))
        self._turns.tools.first_sound(reply)
        self._turns.apply(tm.FirstSound())

    def play_on(self, player: Sounding) -> None:
        self._playout.play_on(player)

    def duck(self, gain: float) -> None:
        self._playout.duck(gain)

    def hold(self) -> None:
        self._playout.hold()

    def resume(self) -> None:
        self._playout.resume()

    def line_lost(self, unheard_ms: int) -> None:
        """What left in the last `unheard_ms` did not arrive; nothing moves until `line_back`."""
        heard = self._playout.line_lost(self._lead + unheard_ms * OUT_RATE // 1000)
        if self.reply is not None:
            self._chars_heard = min(self._chars_heard, heard.chars)
        elif self._said is not None and not self._cut_short and self._playout.is_last(self._last):
            said = self._said
            self._said = self._turns.conversation.truncate(said, heard.chars)
            if self._said is not said:
                self._unsaid = said.text[heard.chars :].strip()

    def line_back(self) -> str:
        """What is left to say of a reply that was over when the line was lost; "" of others, which
        go on by themselves."""
        self._sound_by_s = self._clock.now() + self._stack.answer_within_s
        self._playout.line_back()
        unsaid, self._unsaid = self._unsaid, ""
        return unsaid

    def playing_behind(self, ms: int) -> None:
        """The client says how much later than sent our sound leaves its loudspeaker."""
        self._lead = max(0, min(ms, MAX_BEHIND_MS)) * OUT_RATE // 1000

    async def silent(self) -> None:
        """Returns once no reply has the floor."""
        while self.reply is not None:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(over)
            await over

    # ------------------------------------------------------------ settings

    def configure(
        self,
        *,
        voice: str | None = None,
        speed: float | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        aloud: bool | None = None,
    ) -> None:
        """For replies that start from now on. Raises UsageError for an unknown voice.

        voice "": the agent's own.
        """
        voiced = self.voiced(voice)
        self._voiced = voiced if speed is None else replace(voiced, speed=speed)
        self.aloud = self.aloud if aloud is None else aloud
        if max_output_tokens is not None:
            self._sampling = replace(self._sampling, max_tokens=max_output_tokens)
        if temperature is not None:
            self._sampling = replace(self._sampling, temperature=temperature)

    def voiced(self, voice: str | None) -> Voiced:
        """How the call sounds, or would with another voice. Raises like `configure`."""
        if voice is None:
            return self._voiced
        speaker = self._stack.speaker(voice) if voice else self._agent.speaker
        return replace(self._voiced, speaker=speaker)

    def sampling(self, asked: ReplySettings) -> SamplingParams:
        """For one reply. Raises UsageError for a choice of tools that can't be had."""
        desk, params = self._turns.tools, self._sampling
        choice = asked.tool_choice or desk.choice
        grammar = forced(self._stack, list(desk.offered(asked).values()), choice)
        limit = asked.max_output_tokens or params.max_tokens
        return replace(params, max_tokens=limit, grammar=grammar)

    # ------------------------------------------------------------ starting replies

    def next_id(self, turn: TurnId | None = None, *, aside: bool = False) -> ReplyId:
        reply_id = ReplyId(self._turns.call.id, self._n_replies, turn, aside)
        self._n_replies += 1
        return reply_id

    def _new(
        self,
        turn: TurnId | None,
        trace: TurnTrace | None,
        deadline_s: float,
        asked: ReplySettings = AS_THE_CALL,
        *,
        step: int = 0,
        may_be_silent: bool = False,
    ) -> Reply:
        reply_id = self.next_id(turn)
        return Reply(
            reply_id,
            CancelScope(str(reply_id)),
            clock=self._clock,
            playout=self._playout,
            voiced=self.voiced(asked.voice),
            listener=self,
            trace=trace,
            deadline_s=deadline_s,
            tools=self._turns.tools.offered(asked),
            step=step,
            may_be_silent=may_be_silent,
            aloud=self.aloud if asked.aloud is None else asked.aloud,
            short=self._stack.shed >= Shed.REPLIES,
        )

    def _produce(self, reply: Reply, prompt: Prompt, asked: ReplySettings = AS_THE_CALL) -> None:
        """asked.own_prompt: computed apart, so that what is cached of the call stays as it is."""
        call = f"{reply.id.call}/{reply.id.n}" if asked.own_prompt else reply.id.call
        job = self._think(reply, prompt, self.sampling(asked), call)
        self._turns.call.spawn(job, reply.scope)

    async def _think(
        self, reply: Reply, prompt: Prompt, sampling: SamplingParams, call: str
    ) -> None:
        thinker, tenant = self._stack.thinker, self._agent.file.tenant
        try:
            await reply.think(thinker, prompt, sampling, call=call, tenant=tenant)
        finally:
            if call != self._turns.call.id:
                thinker.forget(call)

    def think_early(self, trace: TurnTrace, text: str, prompt: Prompt) -> None:
        """Work without side effects: the answer the caller gets if this pause is the end."""
        self.cancel_early()
        ear = self._turns.ear
        spoken_s = ear.clock_at(ear.endpointer.last_voiced_sample)
        reply = self._new(trace.turn, trace, spoken_s + self._stack.target_s)
        reply.user_text = text
        trace.early_refused = self.early_work.may_voice()
        reply.voices_early = not trace.early_refused
        self._early = reply
        self._produce(reply, prompt)

    def release_early(self, trace: TurnTrace, text: str) -> bool:
        """Give the floor to the early reply if it answers exactly this text."""
        early, self._early = self._early, None
        if early is None:
            return False
        if early.user_text != text or early.scope.cancelled:
            self._waste(early)
            return False
        self._give_floor(early, trace)
        return True

    def answer(
        self, turn: TurnId | None, trace: TurnTrace | None, asked: ReplySettings = AS_THE_CALL
    ) -> None:
        due_s = trace.deadline_s if trace is not None else None
        due_s = due_s or self._clock.now() + self._stack.target_s
        reply = self._new(turn, trace, due_s, asked)
        self._give_floor(reply, trace)
        self._produce(reply, self._turns.prompt_of(asked), asked)

    def follow_up(
        self,
        turn: TurnId | None,
        trace: TurnTrace | None,
        prompt: Prompt,
        *,
        step: int,
        spoken: bool,
    ) -> None:
        """The answer to results of tools. spoken: the turn has had words of ours already."""
        deadline_s = self._clock.now() + self._stack.target_s
        reply = self._new(turn, trace, deadline_s, step=step, may_be_silent=spoken)
        self._give_floor(reply, trace)
        self._produce(reply, prompt)

    def say(self, speech: FixedSpeech, trace: TurnTrace | None = None) -> None:
        """Words of ours: greeting, recovery, goodbye; their sound is in the clause cache."""
        reply = self._new(trace.turn if trace else None, trace, self._clock.now())
        self._give_floor(reply, trace)
        self._turns.call.spawn(reply.recite(speech.text, speech.ids), reply.scope)

    def may_recover(self, *, owed: bool = False) -> bool:
        """A recovery is spoken at most once in 10 s and twice in a row. owed: a reply was cut for
        nothing, so the caller is not left waiting for those 10 s."""
        waited = owed or self._clock.now() - self._recovered_at_s >= RECOVERY_GAP_S
        return waited and self._recoveries < RECOVERIES_IN_A_ROW

    def recover(self, trace: TurnTrace | None) -> None:
        self._recoveries += 1
        self._recovered_at_s = self._clock.now()
        self.say(self._agent.recovery, trace)

    def _give_floor(self, reply: Reply, trace: TurnTrace | None) -> None:
        self.reply = reply
        reply.after = self._turns.conversation.messages[-1]
        self._sounded = False
        self._chars_heard = 0
        self._sound_by_s = self._clock.now() + self._stack.answer_within_s
        if trace is not None:
            trace.reply = reply.id
        self._turns.call.emit(ReplyStarted(reply.id))
        reply.release(trace.deadline_s if trace is not None and not reply.step else None)
        if self._turns.state.floor is tm.Floor.HELD:
            self._playout.hold()
        if not self._turns.interruptible:
            self._turns.apply(tm.Guard(True))
        if reply.asks:
            self._turns.tools.take(reply, sounded=False)

    @property
    def sounding(self) -> bool:
        """A reply has the floor and its first sound has left."""
        return self.reply is not None and self._sounded

    @property
    def thinks_early(self) -> bool:
        return self._early is not None

    @property
    def busy(self) -> bool:
        """A reply is being thought or said."""
        return self.reply is not None or self._early is not None

    # ------------------------------------------------------------ ending replies

    def cancel_early(self) -> None:
        early, self._early = self._early, None
        if early is not None:
            self._waste(early)

    def _waste(self, reply: Reply) -> None:
        reply.scope.cancel()
        tokens, voice_s = _output_tokens(reply), reply.audio_samples / OUT_RATE
        self.early_work.wasted(tokens=tokens, voice_s=voice_s)
        if reply.trace is not None:
            reply.trace.wasted_tokens += tokens
            reply.trace.wasted_voice_ms += round(voice_s * 1000)
            for mark in _EARLY_MARKS:
                reply.trace.marks.pop(mark, None)

    def withdraw(self) -> None:
        """Nothing more will be said."""
        self.cancel_early()
        self.over(ReplyStatus.CANCELLED)

    def over(
        self, status: ReplyStatus, *, limit_ms: int | None = None, finish_trace: bool = True
    ) -> int:
        """End the reply that has the floor; returns the characters heard of it (0: none).

        limit_ms: the client's own count of what it played; the smaller position wins.
        """
        reply, self.reply = self.reply, None
        if reply is None:
            return 0
        if status is ReplyStatus.COMPLETED:
            chars, samples = len(reply.text), self._playout.heard().samples
        else:
            reply.scope.cancel()
            heard = self._playout.flush(reply.id, self._lead)
            chars, samples = heard.chars, heard.samples
        if not reply.aloud:
            chars = reply.told_chars
        if limit_ms is not None:
            at = self._playout.heard_at(reply.id, limit_ms * OUT_RATE // 1000)
            chars, samples = min(chars, at.chars), min(samples, at.samples)
        if reply.trace is not None:
            reply.trace.holes += self._playout.holes(reply.id)
        if reply.trace is not None and not reply.fixed:
            unheard = max(0, reply.audio_samples - samples)
            reply.trace.unheard_voice_ms += unheard * 1000 // OUT_RATE
        conversation, tools = self._turns.conversation, self._turns.tools
        self._cut_short = status is not ReplyStatus.COMPLETED
        later = conversation.count_after(reply.after) if reply.after is not None else 0
        kept = conversation.add_assistant(
            reply.ids,
            reply.written or reply.text,
            chars,
            interrupted=self._cut_short,
            key=reply.id,
            before=later,
        )
        self._last, self._said = reply.id, conversation.messages[-1 - later] if kept else None
        finish_trace = not tools.continues(reply, status) and finish_trace
        if reply.trace is not None:
            self._close_trace(reply, reply.trace, status, kept, finish_trace)
        tools.reply_over(reply, status, self._said)
        usage = reply.usage
        self._turns.call.emit(
            ReplyDone(
                reply.id,
                status,
                reply.text,
                kept,
                audio_ms=samples * 1000 // OUT_RATE,
                input_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                output_tokens=_output_tokens(reply),
                finish=reply.finish,
            )
        )
        self._turns.reply_over(status)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return chars

    def truncate(self, reply: ReplyId, audio_ms: int) -> int:
        """The client played only audio_ms of `reply`. Returns the ms that count.

        Raises UsageError past what was sent, or for a reply that is not the latest.
        """
        if self.reply is not None and self.reply.id == reply:
            self.over(ReplyStatus.INTERRUPTED, limit_ms=audio_ms)
        elif self._last != reply:
            raise UsageError("only the latest reply can be truncated", code="VA112")
        sent = self._playout.heard_at(reply, 1 << 40).samples
        at = self._playout.heard_at(reply, audio_ms * OUT_RATE // 1000)
        if audio_ms * OUT_RATE // 1000 > sent + OUT_RATE // 50:
            sent_ms = sent * 1000 // OUT_RATE
            raise UsageError(f"audio_end_ms {audio_ms} is past the {sent_ms} ms sent", code="VA113")
        if self._cut_short:  # so much lay in the client's buffer, and will the next time
            self._cut_short = False
            self.playing_behind(max(self._least_behind_ms, (sent - at.samples) * 1000 // OUT_RATE))
        if self._said is not None:
            self._said = self._turns.conversation.truncate(self._said, at.chars)
            self._turns.expect()
        return at.samples * 1000 // OUT_RATE

    def _close_trace(
        self, reply: Reply, trace: TurnTrace, status: ReplyStatus, heard: str, finish: bool
    ) -> None:
        trace.reply_text = f"{trace.reply_text} {reply.text}".strip()
        trace.heard = f"{trace.heard} {heard}".strip()
        trace.interrupted = status is ReplyStatus.INTERRUPTED
        if trace.interrupted and self._sounded:
            trace.mark(Mark.LAST_FRAME, self._last_audible_s)
        trace.clauses += reply.n_clauses
        trace.output_tokens += _output_tokens(reply)
        if reply.usage is not None:
            trace.prompt_tokens = reply.usage.prompt_tokens
            trace.cached_tokens = reply.usage.cached_tokens
        if reply.source is not None:
            trace.backend, trace.fallback = reply.source.backend, reply.source.fallback
        trace.mark(Mark.LAST_SOUND, self._clock.now())
        if finish:
            spoken = "recovery" if reply.fixed else "spoken"
            self._turns.trace_done(trace, spoken if self._sounded else status.value)

    # ------------------------------------------------------------ ReplyListener

    def reply_ready(self, reply: Reply) -> None:
        """Its first sound is made and waits for the release."""
        if reply is self._early:
            self._turns.early_answer_ready()

    def reply_text(self, reply: Reply, clause: Clause) -> None:
        if reply is self.reply:
            if not reply.aloud:
                self._sound_by_s = self._clock.now() + self._stack.answer_within_s
            self._turns.call.emit(ReplyText(reply.id, clause.text))

    def reply_asks(self, reply: Reply) -> None:
        """It is complete and calls tools. An early one waits for the release with them."""
        if reply is self.reply:
            self._turns.tools.take(reply, sounded=self._sounded)
        elif reply is self._early and not reply.text.strip():
            self._turns.early_answer_ready()

    def reply_produced(self, reply: Reply) -> None:
        """All of its audio is in playout; it ends when the last sample has left."""

    def reply_failed(self, reply: Reply, error: Exception) -> None:
        if reply is self._early:
            self.cancel_early()  # the commit tries again
            self._turns.early_answer_ready()
            return
        if reply is not self.reply:
            return
        self._turns.call.fault(error)
        if self._playout.buffered_s > 0:
            reply.cut_short()
        else:
            self._give_up(reply, error)

    def _give_up(self, reply: Reply, error: Exception) -> None:
        """End it now. Who heard nothing hears a recovery, but no more than twice in a row."""
        trace, silent = reply.trace, not self._sounded
        self.over(ReplyStatus.FAILED, finish_trace=not silent)
        recovers = silent and self._recoveries < RECOVERIES_IN_A_ROW and not reply.fixed
        if recovers and self.reply is None:
            self._turns.apply(tm.ReplyBegins())
            self.recover(trace)
        elif silent and trace is not None:
            why = error.code if isinstance(error, VoiceAgentError) else type(error).__name__
            self._turns.trace_done(trace, f"no_input: {why}")

    def watch(self, now_s: float) -> None:
        """From commit to the first sound, and between two sounds of a reply, time is bounded: past
        it the caller is told, not left in silence."""
        reply = self.reply
        if reply is None:
            return
        held = self._turns.state.floor is tm.Floor.HELD or self._turns.line_lost
        if self._sounded and (held or self._playout.buffered_s > 0):
            self._sound_by_s = now_s + self._stack.answer_within_s
        elif not held and now_s >= self._sound_by_s:
            error = InternalError("the answer made no sound in time", code="VA321")
            self._turns.call.fault(error)
            self._give_up(reply, error)


def _output_tokens(reply: Reply) -> int:
    return reply.usage.output_tokens if reply.usage is not None else len(reply.ids)
